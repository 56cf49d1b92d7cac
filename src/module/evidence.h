#pragma once

#include "contract/outcome.h"
#include "ngx.h"

namespace idempotency {

struct context;


/* What is known of a run: what was sent, what came back, what was said. */
struct evidence_state {
    ngx_uint_t first_exchange;            /* of upstream_states */
    ngx_http_upstream_t *upstream_before; /* the content handler's call */
    ngx_uint_t handler_status; /* an error that the handler returned */
    bool nonsense;             /* came back, and no HTTP */
    bool answered;  /* in full; what is left is on its way to the client */
    bool frozen;    /* the exchange is over: what follows only dresses it */
    bool delegated; /* the application sent nginx elsewhere for the rest */
    bool from_file; /* ... to a file */
    evidence seen;
    app_word word;
};


evidence collect_evidence(context &ctx, bool complete);

/*
 * The run's exchange is over, as nginx says by this code.  If it will send
 * neither the rest of the response nor an error page, so is the run.
 */
void note_end_of_exchange(context &ctx, ngx_int_t rc);

/* The same of a request that dies before it has sent the response. */
evidence evidence_without_response(context &ctx);

/* What the peers have done is known: an error page cannot change it. */
void freeze_evidence(context &ctx);

/* A byte went to some peer: no other may be tried. */
bool any_byte_sent(const context &ctx);

/* The same of the request itself alone, or of a subrequest alone. */
bool any_byte_sent(const context &ctx, ngx_http_request_t *r);

/* Whether a peer has answered, at least by a header. */
bool is_answered(const ngx_http_upstream_state_t &s);

/*
 * An upstream has sent something that is no HTTP.  nginx takes it for an
 * answer of HTTP/0.9, with the status 200.
 */
bool is_nonsense(const ngx_http_request_t *r);

/* Whether it answers itself, with a header that is sent now: no error page. */
bool is_own_answer(const context &ctx);

/* Whether the run's own content handler has asked an upstream. */
bool has_upstream(const context &ctx);

/* The application answered with X-Accel-Redirect. */
bool application_redirected(const context &ctx);

/* The error with which the last exchange ended. */
ngx_uint_t last_error_status(const context &ctx);

/* Takes the application's X-Accel-Idempotency, unless it has spoken before. */
void read_app_word(context &ctx);

/* That header is for the module alone; as a trailer it comes too late. */
void strip_app_word(ngx_list_t &fields);

}
