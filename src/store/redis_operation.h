#pragma once

#include "store/redis_link.h"
#include "store/store.h"

namespace idempotency {

class redis_store;


enum class purpose : std::uint8_t {
    claim,
    complete,
    mark_unknown,
    renew,
    release,
    give_back, /* a claim that took effect, but nobody runs */
    take_back, /* a claim that was lost, and may yet take effect */
};


/* How the command is written. */
enum class form : std::uint8_t {
    plain_set,      /* claims only */
    script_by_hash, /* Redis may have forgotten it */
    script_in_full,
};


/* Whether an operation has failed, and waits to be tried again. */
enum class lateness : std::uint8_t {
    on_time,
    waiting,
    retried, /* it is on its way again */
};


struct operation;


/* What late_operations knows of an operation. */
struct late_entry {
    ngx_queue_t queue;
    operation *op;
    lateness state;
    ngx_msec_t since;
    ngx_msec_t delay;
    ngx_msec_t next_try;
    std::size_t sent_bytes; /* of its response, in the try under way */
};

static_assert(std::is_standard_layout_v<late_entry>);


/*
 * One command to a store in Redis, until it has been answered.  It outlives
 * the request that wants it: then nobody waits for it, and what it needs of
 * the request is its own.
 */
struct operation : command {
    redis_store *owner;
    redis_link *link;
    purpose why;
    form written;
    ownership whose;
    std::uint64_t expiry;

    /* Who waits: for a claim one, for a settlement the other. */
    claim_waiter *claimer;
    settle_waiter *settler;

    /* Of a claim. */
    digest fingerprint;
    bool take_over;

    /* Of a completion. */
    record_state state;
    pieces response;
    bytes own_response; /* the same, when it is ours */
    std::size_t summary_size;
    std::uint64_t summary_expiry;
    std::uint8_t *summary; /* null: there is none, or it is the response */
    bool is_summary;

    /* How often a lost claim was looked for, and was not there. */
    unsigned times_not_found;

    late_entry late;

    /* A claim goes back to how it was before, which is no outcome. */
    bool returns_claim() const
    {
        return why == purpose::give_back || why == purpose::take_back;
    }

    void copy_summary(pieces summary, std::uint64_t ttl);

    /* From here on the operation needs nothing of its request. */
    bool own_the_response();

    /* Where there is no room for the response, that it ran is kept. */
    bool use_summary();
};


/* Null: no memory. */
operation *make_operation(redis_store &owner, redis_link &link, purpose why,
                          const ownership &whose);
void free_operation(operation *op);


inline std::size_t
size_of(pieces all)
{
    std::size_t size = 0;

    for (bytes part : all) {
        size += part.size();
    }

    return size;
}

}
