#pragma once

#include "ngx.h"

namespace idempotency {

/* The phase handler through which every protected request goes. */
ngx_int_t gate(ngx_http_request_t *r);

/*
 * The phase handler in which a run ends that has no outcome when post_action
 * begins: its answer must not be taken for that of the run.
 */
ngx_int_t end_before_post_action(ngx_http_request_t *r);

}
