#pragma once

#include "ngx.h"

namespace idempotency {

struct context;
class response_reader;
struct location_conf;

/*
 * Opens the response that the store has found, which may have been damaged or
 * changed there.  False: that was logged and counted, and nothing is left of
 * the response; the request gets response_not_kept.
 */
bool open_response(context &ctx, response_reader &reader);

/* Answers the request with that response, as a phase handler. */
ngx_int_t replay(context &ctx, response_reader &reader);

/* The same from a filter, in place of another response. */
ngx_int_t send_replay(context &ctx, response_reader &reader);

/* Replays alone have the mark: an application's own is taken away. */
void strip_mark(ngx_list_t &fields, const location_conf *conf);

}
