#pragma once

#include "store/redis_settings.h"
#include "store/store.h"

namespace idempotency {

/* A store on one Redis server; null: no memory. */
store *make_redis_store(ngx_conf_t *cf, const redis_settings &settings);

}
