#pragma once

#include "module/config.h"
#include "ngx.h"

namespace idempotency {

struct context;


/*
 * An exchange of the run with an upstream, from its start to its end: of the
 * request itself, or of a subrequest that writes.  The guard keeps what it has
 * put itself in front of.
 */
struct guarded_exchange {
    ngx_http_request_t *request;
    ngx_http_upstream_t *upstream;
    ngx_http_upstream_conf_t *conf; /* what nginx would use */
    ngx_output_chain_filter_pt output_filter;
    void *output_data;
    void (*finalize_request)(ngx_http_request_t *r, ngx_int_t rc);
    guarded_exchange *next;
};


/* Once a byte went to one peer no other peer is tried. */
struct peer_guard {
    guarded_exchange *under_way;
};


/* Puts the guard in front of every upstream of the configuration. */
ngx_int_t guard_upstreams(ngx_conf_t *cf, main_conf *main);

/* Guards the exchange that a content handler has started, if it is not yet. */
ngx_int_t guard_exchange(context &ctx, ngx_http_request_t *r);

}
