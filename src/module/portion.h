#pragma once

#include "ngx.h"

namespace idempotency {

/* What there is of the response in a chain. */
struct portion {
    off_t size;
    bool last;
    bool flush;
    bool in_memory;
};


portion measure(ngx_chain_t *in);

/* Whether the upstream broke off before this portion was complete. */
bool is_truncated(ngx_http_request_t *r, const portion &p);

/* Whether the upstream itself has ended its response. */
bool has_end(const ngx_http_upstream_t *u);

/*
 * A response whose upstream breaks the protocol shall break off as any other:
 * nginx would close the client's connection, with nothing of the held response
 * sent.  False: no memory.
 */
bool break_off_on_error(ngx_http_request_t *r);

}
