#pragma once

#include "ngx.h"
#include "store/store.h"

#include <optional>

namespace idempotency {

struct context;
struct wait_group;


struct wait_link {
    ngx_queue_t queue;
    context *waiter;
};


/* A request's place among those that wait for one record. */
struct wait_state {
    wait_link link;
    wait_group *group; /* null: the request asks for itself alone */
    ngx_msec_t since;
    own_event wake;
    own_event deadline;
    bool started;
    bool over; /* the time to wait has passed */

    /* The pending record that the group knew of when the time had passed. */
    std::optional<claim_answer> last_met;
};


/*
 * Before a request claims: true if another request of this worker claims or
 * runs the same key.  Then it waits for what that one learns.
 */
bool join(context &ctx);

/*
 * The record is pending.  False: the request cannot wait, or has waited long
 * enough.
 */
bool park(context &ctx);

/* The store did not answer.  True: the record was known to be pending. */
bool was_pending(context &ctx);

/* The request runs: what was known of the record is out of date. */
void note_claimed(context &ctx);

/* All who wait get the answer that this request got. */
void share_answer(context &ctx);

/* The request waits no more. */
void leave(context &ctx);

/* The run of this key is over: the first of those who wait may ask. */
void wake_one(context &ctx);

}
