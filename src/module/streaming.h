#pragma once

#include "ngx.h"

namespace idempotency {

struct context;


/* Sends the header; from now on the response is passed on while it comes. */
ngx_int_t start_streaming(context &ctx);

/* A part of the response: captured and passed on. */
ngx_int_t stream(context &ctx, ngx_chain_t *in);

/* To the client, if it is there. */
ngx_int_t pass_on(context &ctx, ngx_chain_t *in);

/*
 * A filter below us has sent a page in place of the response: the client gets
 * that, and of the response no more will come.
 */
ngx_int_t reject_streamed(context &ctx);

}
