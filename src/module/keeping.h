#pragma once

#include "module/capture.h"
#include "module/portion.h"
#include "ngx.h"

#include <cstdint>

namespace idempotency {

struct context;

using piece = std::span<const std::uint8_t>;


/* Encodes the header before any other filter may change it. */
bool keep_header(context &ctx);

/* Whether nginx sends no body with this header. */
bool is_bodiless(ngx_http_request_t *r);

/* Counts a chain in; false: the response is more than is kept. */
bool fits(context &ctx, const portion &p);

/* Adds the chain to the captured body; false: no memory. */
bool keep_body(context &ctx, ngx_chain_t *in);

/* The encoded response; nothing: no memory. */
std::span<piece> assemble(context &ctx);

/* The response that idempotency_replay empty keeps. */
std::span<piece> no_content(context &ctx);

/* The first reason counts. */
void not_to_keep(context &ctx, not_kept why);
void log_not_kept(const context &ctx);

/* A response that was promised longer than it came is not whole. */
bool is_whole(const context &ctx);

}
