#pragma once

#include "ngx.h"
#include "store/store.h"

namespace idempotency {

struct context;


struct lease_queue;


/* The lease of a running request, renewed every third of it. */
struct lease_state {
    lease_queue *queue; /* for the first renewal; null: in none */
    ngx_queue_t place;
    ngx_msec_t due;
    own_event renewal; /* all others */
    settle_waiter renewed;
    bool lost; /* said that another owns the record */
    ngx_msec_t asked_at;
};


void start_renewal(context &ctx);
void stop_renewal(context &ctx);

}
