#pragma once

#include "contract/verdict.h"
#include "module/problem.h"
#include "ngx.h"
#include "store/store.h"

namespace idempotency {

struct context;


/* What the store was asked for, and what it said. */
struct claim_state {
    ownership own;
    claim_waiter waiter;
    claim_answer answer;
    bool in_call;          /* the store may answer inside the call */
    ngx_msec_t asked_at;   /* when the store was asked last */
    ngx_msec_t store_time; /* how long the request has waited for it */
};


/*
 * Claims the record of the request.  The stage tells on return whether the
 * store has answered already.  NGX_ERROR: nothing was asked.
 */
ngx_int_t claim_key(context &ctx);

/* The store has answered: run, replay, refuse or wait. */
ngx_int_t act_on_answer(context &ctx);

/*
 * Asks once more for the record of a run that lost it: who owns it now, and
 * if nobody does, may this run have it again under the new token?
 */
bool claim_lost_record(context &ctx, token &owner,
                       void (*answered)(claim_waiter &, const claim_answer &));

/* What a request that met a record is told, unless it gets a replay. */
refusal refusal_for(verdict v);

void start_store_time(context &ctx);
void stop_store_time(context &ctx);

}
