#pragma once

#include "ngx.h"
#include "store/store.h"

namespace idempotency {

/* When a file is written to its disk. */
enum class sync_when : std::uint8_t {
    by_system,
    at_intervals,
    always, /* before a claim and an outcome are answered */
};


struct memory_settings {
    std::size_t size;
    ngx_str_t file; /* its path; empty: none */
    sync_when sync = sync_when::by_system;
    ngx_msec_t sync_interval = 1000; /* of what nobody waits for */
};


/* A store in a shared zone of this size; null: the reason is logged. */
store *make_memory_store(ngx_conf_t *cf, const ngx_str_t &name,
                         const memory_settings &how);

/* Says which zones of the configuration before are not in this one. */
void say_dropped_zones(ngx_cycle_t *cycle);

}
