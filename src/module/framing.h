#pragma once

#include "ngx.h"

namespace idempotency {

struct context;

/*
 * The last buffer has come.  A response that ends with its connection
 * (HTTP/1.0, neither a length nor chunks) looks whole if the application died
 * in the middle of it.  True: it is JSON and has not ended.  Where nothing can
 * be told the operator is warned, once for each location.
 */
bool is_cut_off(const context &ctx);

/* Whether a response ends with its connection. */
bool has_no_framing(const ngx_http_upstream_t *u);

}
