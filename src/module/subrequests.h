#pragma once

#include "ngx.h"

namespace idempotency {

struct context;


/* A subrequest of the run whose content handler is behind ours. */
struct guarded_subrequest {
    ngx_http_request_t *request;
    ngx_http_handler_pt content_handler;
    guarded_subrequest *next;
};


struct mirror_copy {
    ngx_http_request_t *request;
    mirror_copy *next;
};


/* What the content handler of a run does by subrequests. */
struct subrequest_state {
    bool sent;       /* a byte to some peer, */
    bool unanswered; /* ... which gave no complete answer */
    guarded_subrequest *guarded;
    mirror_copy *copies;    /* made by mirror: no part of the run */
    ngx_uint_t posted_once; /* before the content handler was called */
};


/* The gate lets a subrequest pass: its content handler is put behind ours. */
ngx_int_t guard_subrequest(ngx_http_request_t *r);

/* Whether it belongs to a run and may change something. */
bool is_guarded_subrequest(const context &ctx, ngx_http_request_t *r);

/* The content handler of a subrequest, or of a copy of a running request. */
ngx_int_t run_subrequest(ngx_http_request_t *r);

/* Whether a subrequest that may change something has not ended yet. */
bool is_subrequest_under_way(const context &ctx);

/* An exchange of a subrequest is over, as nginx says by this code. */
void note_end_of_subrequest(context &ctx, ngx_http_request_t *r, ngx_int_t rc);

/*
 * The content handler is about to be called: what was posted since the gate
 * let the request pass is by mirror.
 */
void start_noting_copies(context &ctx, bool from_here);
bool note_copies(context &ctx);

}
