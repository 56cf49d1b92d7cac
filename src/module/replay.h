#pragma once

#include "ngx.h"

namespace idempotency {

struct context;
struct location_conf;

/* Answers the request with the stored response, as a phase handler. */
ngx_int_t replay(context &ctx);

/* The same from a filter, in place of another response. */
ngx_int_t send_replay(context &ctx);

/* Replays alone have the mark: an application's own is taken away. */
void strip_mark(ngx_list_t &fields, const location_conf *conf);

}
