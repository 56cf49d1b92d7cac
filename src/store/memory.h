#pragma once

#include "ngx.h"
#include "store/store.h"

namespace idempotency {

struct memory_settings {
    std::size_t size;
    ngx_str_t file; /* its path; empty: none */
};


/* A store in a shared zone of this size; null: the reason is logged. */
store *make_memory_store(ngx_conf_t *cf, const ngx_str_t &name,
                         const memory_settings &how);

/* Says which zones of the configuration before are not in this one. */
void say_dropped_zones(ngx_cycle_t *cycle);

}
