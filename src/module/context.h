#pragma once

#include "contract/stage.h"
#include "module/body.h"
#include "module/capture.h"
#include "module/claim.h"
#include "module/config.h"
#include "module/ending.h"
#include "module/jsonrpc.h"
#include "module/method.h"
#include "module/problem.h"
#include "module/run.h"
#include "module/waiting.h"
#include "ngx.h"

namespace idempotency {

/* What $idempotency_status says. */
enum class status : std::uint8_t {
    none,
    bypass,
    unscoped,
    fresh,
    replay,
    in_progress,
    reused,
    unknown,
    not_kept,
    invalid,
    store_error,
};


/*
 * A request's life in this module.  The gate makes it for a request that
 * carries a key.  It is found again after internal redirects through its pool
 * cleanup, which is also its end: a run that has no outcome when nginx closes
 * the request gets one from what is known.  Settings, key and names are taken
 * once, at the gate.
 */
struct context {
    ngx_http_request_t *request;
    const location_conf *conf;
    stage at; /* changed by move_to() alone */
    idempotency::status status;
    error_code error;
    key_fault fault; /* of an invalid key */

    ngx_str_t key;
    ngx_str_t method;
    ngx_str_t path; /* undecoded, without arguments */
    ngx_str_t arguments;
    ngx_str_t uri; /* as it was at the gate */
    admission admitted;
    bool named; /* claim.own.name is set */
    bool grpc;
    time_t expires; /* Unix time; 0: not known; -1: never */

    body_state body;
    jsonrpc_state jsonrpc;
    claim_state claim;
    wait_state wait;
    run_state run;
    capture_state capture;
    ending_state ending;
};


/* Empty beyond the last status. */
std::string_view name_of(status s);

/* The record's name in hex, for the log; "-" if it has none yet. */
struct id_text {
    explicit id_text(const context &ctx);

    u_char bytes[2 * sizeof(ownership::name)];
    ngx_str_t text;
};


/* The request's context, if it has one; also behind internal redirects. */
context *find_context(ngx_http_request_t *r);
context *make_context(ngx_http_request_t *r, const location_conf *conf);

/* The only way to another stage.  A move that is not in the table is a bug. */
void move_to(context &ctx, stage to);

/* Goes on with the phases from an event that is not the request's own. */
void resume(context &ctx);

/* Not protected: the request goes on as if the module were not there. */
ngx_int_t pass(context &ctx, status as);

/*
 * The request cannot be protected, so it may not run: answers with 500, and
 * tells the log why.
 */
ngx_int_t fail(context &ctx, const char *why);

/*
 * nginx has done with the request: neither the store nor the end of another
 * run may wake it any more.  A settlement that is under way goes on.
 */
void detach(context &ctx);

void set_expires(context &ctx, std::uint64_t remaining);

}
