#pragma once

#include "contract/outcome.h"
#include "ngx.h"
#include "store/store.h"

#include <optional>

namespace idempotency {

struct context;


/* The one end of a run: evidence, outcome, store, what follows. */
struct ending_state {
    enum class step : std::uint8_t {
        none,
        storing,      /* the store has the outcome in hand */
        asking_owner, /* the record was lost: whose is it now? */
        storing_anew, /* nobody's: it is ours again */
        superseded,   /* another's, whose outcome is the answer */
    };

    step at;
    outcome how;
    settle_waiter settled;
    std::optional<settle_result> result; /* what the store said in the end */
    token second; /* of the claim that asks whose the record is */

    /* Called when the outcome is with the store, or never will be. */
    void (*then)(context &ctx);
};


/*
 * The whole response is here, or all of it that will ever come.  The store may
 * answer inside the call.
 */
void settle(context &ctx, bool whole, void (*then)(context &ctx));

/* No more of a response will come: what is known decides. */
void abandon_run(context &ctx);

/*
 * nginx has done with the response, whole or not.  What it does now with the
 * request (post_action, logging) is no part of the run.
 */
void end_run_with_response(ngx_http_request_t *r);

/*
 * Answers the client of a superseded run, from a filter: with what everybody
 * else is told who asks for the key.
 */
ngx_int_t send_successor(context &ctx);

}
