#pragma once

#include "ngx.h"

namespace idempotency {

struct context;


/* The client of a run, which may leave before the run has ended. */
struct client_state {
    bool gone;    /* from now on nothing is sent to it */
    bool counted; /* among those that left */
    own_event abort;
    ngx_chain_t *unsent; /* passed on, not sent yet */
    ngx_http_event_handler_pt write_event_handler; /* the upstream's */
    ngx_event_handler_pt event_handler;            /* nginx's, of a stream */
};


/* While a request waits: if the client leaves, the request ends. */
bool watch_client(ngx_http_request_t *r);

/* For the upstream's settings: the client's leaving ends no exchange. */
void ignore_client(ngx_http_upstream_conf_t &conf);

/*
 * The exchange has been started, by the request or by a subrequest: nginx no
 * longer ends it when the client leaves.
 */
void stop_watching_client(ngx_http_request_t *r);

/* The run is over, or will be soon. */
void stop_abort_timer(context &ctx);

/* A client that reads slowly, or not at all, does not end the exchange. */
void outlast_slow_client(context &ctx);

/* From now on the response is read for the record alone. */
void client_left(context &ctx);

/* The client has left: what there is more of the response is not sent. */
void drop_unsent(context &ctx, ngx_chain_t *in);

/* These buffers were passed on to the client. */
void note_passed(context &ctx, ngx_chain_t *in);

}
