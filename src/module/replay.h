#pragma once

#include "ngx.h"

namespace idempotency {

struct context;

/* Answers the request with the stored response, as a phase handler. */
ngx_int_t replay(context &ctx);

/* The same from a filter, in place of another response. */
ngx_int_t send_replay(context &ctx);

}
