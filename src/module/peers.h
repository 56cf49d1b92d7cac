#pragma once

#include "module/config.h"
#include "ngx.h"

namespace idempotency {

struct context;


/* Once a byte went to one peer no other peer is tried. */
struct peer_guard {
    ngx_http_upstream_conf_t *conf; /* our copy of the upstream's */
    ngx_int_t (*reinit_request)(ngx_http_request_t *r);
    bool subrequest_sent;       /* a byte to some peer, */
    bool subrequest_unanswered; /* ... which gave no complete answer */
};


/* Puts the guard in front of every upstream of the configuration. */
ngx_int_t guard_upstreams(ngx_conf_t *cf, main_conf *main);

/* Guards the exchange that the content handler has started. */
ngx_int_t guard_exchange(context &ctx);

}
