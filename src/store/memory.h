#pragma once

#include "ngx.h"
#include "store/store.h"

namespace idempotency {

/* A store in a shared zone of this size; null: the reason is logged. */
store *make_memory_store(ngx_conf_t *cf, const ngx_str_t &name,
                         std::size_t size);

}
