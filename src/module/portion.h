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

}
