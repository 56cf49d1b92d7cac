#pragma once

#include "module/client.h"
#include "module/evidence.h"
#include "module/lease.h"
#include "module/peers.h"
#include "module/place.h"
#include "module/subrequests.h"
#include "ngx.h"

namespace idempotency {

struct context;


/* The run: from the claim to the outcome. */
struct run_state {
    std::uint32_t attempt;
    ngx_uint_t http_version; /* of the client */
    ngx_http_handler_pt content_handler;
    const ngx_http_core_loc_conf_t *location; /* of that handler */
    lease_state lease;
    peer_guard peers;
    subrequest_state subrequests;
    client_state client;
    evidence_state evidence;
    place_state place;
};


/* The claim was won: the request goes on to its content handler. */
ngx_int_t start_run(context &ctx);

/* A running request came to the gate once more, by an internal redirect. */
ngx_int_t enter_again(context &ctx);

/*
 * An error page brought back a request that has been answered or may not run:
 * it may be answered by the page, but not run.
 */
ngx_int_t stop_or_pass(context &ctx);

/* Whether the request is to be guarded: it runs, and may still be sent. */
bool is_guarded(const context &ctx);

}
