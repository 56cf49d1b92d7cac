#pragma once

#include "ngx.h"
#include "store/redis_link.h"
#include "store/store.h"

namespace idempotency {

struct redis_settings {
    ngx_str_t name; /* of the store */
    ngx_str_t prefix;
    ngx_uint_t connections;
    link_settings server;
};


inline constexpr std::size_t longest_prefix = 64;

/* A store on one Redis server; null: no memory. */
store *make_redis_store(ngx_conf_t *cf, const redis_settings &settings);

}
