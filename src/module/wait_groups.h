#pragma once

#include "contract/digest.h"
#include "module/config.h"
#include "ngx.h"
#include "store/store.h"

namespace idempotency {

struct context;


/*
 * The requests of this worker that wait for one record: same name, same
 * fingerprint, same location.  One of them at most asks the store, or runs.
 * What it learns decides for the rest, so that a thousand waiters cost the
 * store no more than one.  While the owner is in another worker or on another
 * machine, the first in the queue asks again now and then.
 */
struct wait_group {
    ngx_queue_t link;
    ngx_queue_t waiters;
    context *asker; /* asks the store, or runs */
    digest name;
    digest fingerprint;
    const location_conf *conf;
    claim_answer last; /* the pending record as it was met */
    bool met;          /* ... if it was, */
    ngx_msec_t met_at; /* ... and when */
    own_event poll;
    ngx_msec_t step;
};


/* Before the first request of a worker. */
void init_waiting();

/* For the key, the fingerprint and the location of the request. */
wait_group *find_group(const context &ctx);

/* Null: no memory. */
wait_group *make_group(const context &ctx, ngx_event_handler_pt poll);

void end_group(wait_group *group);

/* Below each_group(): where the groups of a record are, among others. */
ngx_queue_t *groups_near(const digest &name);


/* The call may not end a group. */
template <class F>
void
each_group(const digest &name, F call)
{
    ngx_queue_t *bucket = groups_near(name);

    for (ngx_queue_t *q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket); q = ngx_queue_next(q))
    {
        auto *group = ngx_queue_data(q, wait_group, link);

        if (group->name == name) {
            call(group);
        }
    }
}

}
