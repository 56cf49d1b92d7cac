#pragma once

#include "store/redis_link.h"
#include "store/store.h"

#include <cstdint>

namespace idempotency {

class redis_store;


enum class purpose : std::uint8_t {
    claim,
    complete,
    mark_unknown,
    renew,
    release,
    give_back, /* undo a claim whose request has gone */
    take_back, /* undo a claim without a reply, which may take effect later */
};


/* How the command is written. */
enum class form : std::uint8_t {
    plain_set,      /* claims only: SET NX GET */
    set_and_get,    /* claims only: SET NX, then GET; works with all servers */
    script_by_hash, /* Redis may not know it */
    script_in_full,
};


/* Whether an operation has failed and is retried. */
enum class lateness : std::uint8_t {
    on_time,
    waiting,
    retried, /* sent again, not answered yet */
};


struct operation;


/* The part of an operation that belongs to late_operations. */
struct late_entry {
    ngx_queue_t queue;
    operation *op;
    lateness state;
    ngx_msec_t since;
    ngx_msec_t delay;
    ngx_msec_t next_try;
    std::size_t sent_bytes; /* of its response, in the current retry */
};

static_assert(std::is_standard_layout_v<late_entry>);


/*
 * One command of a Redis store, from its call until it is answered or given
 * up.  It can outlive its request: then it has no waiter, and its own copy of
 * the response.
 */
struct operation : command {
    redis_store *owner;
    redis_link *link;
    purpose why;
    form written;
    ownership whose;
    std::uint64_t expiry;
    std::uint64_t as_of; /* by the clock of the local copies, if any */

    /* In a cluster: where its key is, and how often it was sent elsewhere. */
    std::uint16_t slot;
    unsigned hops;
    bool is_asking; /* at a node that is about to get the slot */

    /* The waiter of a claim, and of any other operation; may be null. */
    claim_waiter *claimer;
    settle_waiter *settler;

    ngx_msec_t asked_at; /* when it was made, or tried again */

    /* Used by claims. */
    bool take_over;
    bool may_be_claimed;     /* although it was sent elsewhere since */
    unsigned times_vanished; /* a record went while it was looked at */
    ngx_uint_t granted_by;   /* which connection of the link */

    /* Used by completions. */
    record_state state;
    pieces response;
    bytes own_response; /* response points here once it is copied */
    std::size_t summary_size;
    std::uint64_t summary_expiry;
    std::uint8_t *summary; /* null: no memory, or it is in use */
    bool is_summary;       /* the summary is stored instead of the response */

    /*
     * The server may have lost its memory since: another's claim gives way.
     * For an outcome that is put back, when it was stored, and how long ago.
     */
    bool replaces;
    std::uint64_t mark;
    std::uint64_t elapsed;

    bool puts_back;  /* sent by put_back alone */
    bool holds_gate; /* claims on this link wait for it */

    /* How often Redis did not have the claim to take back. */
    unsigned times_not_found;

    late_entry late;

    /* By this worker's clock nobody can have taken over from the run. */
    bool is_leased() const
    {
        return !is_due(static_cast<ngx_msec_t>(whose.leased_until));
    }

    /* It undoes a claim and stores no outcome. */
    bool returns_claim() const
    {
        return why == purpose::give_back || why == purpose::take_back;
    }

    void copy_summary(pieces summary, std::uint64_t ttl);

    /* Copies the response, so that the request may go; false: no memory. */
    bool own_the_response();

    /* Claims on its link wait for it, or need no longer. */
    void enter_gate();
    void leave_gate();

    /* It goes on at another link. */
    void move_to(redis_link &to);

    /* Stores the summary instead of the response; false: there is none. */
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
