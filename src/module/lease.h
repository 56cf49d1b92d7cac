#pragma once

#include "ngx.h"
#include "store/store.h"

namespace idempotency {

struct context;


/* The lease of a running request, renewed every third of it. */
struct lease_state {
    own_event renewal;
    settle_waiter renewed;
    bool lost; /* said that another owns the record */
    ngx_msec_t asked_at;
};


void start_renewal(context &ctx);
void stop_renewal(context &ctx);

}
