#pragma once

#include "ngx.h"

#include <atomic>
#include <cstdint>

namespace idempotency {

/*
 * A histogram is this many buckets, one for all that is larger, and the sum
 * in milliseconds.
 */
inline constexpr std::size_t bound_count = 10;
inline constexpr std::size_t histogram_size = bound_count + 2;

/* The upper bounds of the buckets, in milliseconds. */
using histogram_bounds = std::uint64_t[bound_count];


/* Where the numbers of a status zone are.  Some places are a row of them. */
namespace zone_count {
enum : std::size_t {
    requests = 0,             /* + status */
    refusals = requests + 16, /* + error_code */
    dry_run = refusals + 16,  /* + error_code; none: a replay */
    runs = dry_run + 16,      /* + run_end */
    unknown = runs + 8,       /* + unknown_reason */
    not_kept = unknown + 8,   /* + idempotency::not_kept */
    replay_age = not_kept + 16,
    wait_time = replay_age + histogram_size,
    wait_timeouts = wait_time + histogram_size,
    leases_lost,
    take_overs,
    clients_gone,
    end,
};
}


enum class store_operation : std::uint8_t {
    claim,
    complete,
    release,
    mark_unknown,
    renew,
    local, /* a claim that a copy on this host answered */
    count,
};


/* Where the numbers of a store are. */
namespace store_count {
enum : std::size_t {
    time = 0, /* + store_operation */
    errors = time
             + histogram_size
                   * static_cast<std::size_t>(store_operation::count),
    outcomes_late = errors + 8,
    outcomes_stored_late,
    outcomes_lost,
    damaged,     /* responses that could not be replayed */
    unavailable, /* 1: the worker of this slot cannot use the store */
    end,
};
}


struct counter_block;


/*
 * What is counted of one status zone or one store.  Made while the
 * configuration is read, lives as long as it does.  The numbers are in shared
 * memory, found again by name after a reload.  Each worker adds to a slot of
 * its own, so that no cache line goes to and fro between processors; a reader
 * adds up the slots.  For a moment after a reload two processes share a slot,
 * hence atomic additions.
 */
class counters {
public:
    enum class kind : std::uint8_t { zone, store };

    counters(kind what, const ngx_str_t &name);

    void add(std::size_t which, std::uint64_t n = 1)
    {
        std::atomic_ref(mine_[which]).fetch_add(n, std::memory_order_relaxed);
    }

    void observe(std::size_t first, const histogram_bounds &bounds,
                 std::uint64_t ms);

    std::uint64_t sum(std::size_t which) const;

    const ngx_str_t &name() const { return name_; }

    /* In each worker, before the first add(). */
    void start_worker();

    /* Whether this worker can use the store, and if not, why. */
    void set_available();
    void set_unavailable(const char *why);

    /* How many workers cannot use it, and what the last of them said. */
    ngx_uint_t workers_without(ngx_str_t &why, ngx_pool_t *pool) const;

private:
    friend class counter_memory;

    kind kind_;
    ngx_str_t name_;
    counter_block *block_ = nullptr;
    ngx_slab_pool_t *pool_ = nullptr;
    std::uint64_t *mine_;
};


/* The shared memory for all of these; the reason of a failure is logged. */
ngx_int_t add_counter_memory(ngx_conf_t *cf, const ngx_array_t *zones,
                             const ngx_array_t *stores);

}
