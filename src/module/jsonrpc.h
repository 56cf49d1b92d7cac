#pragma once

#include "contract/json.h"
#include "ngx.h"

#include <array>
#include <cstdint>

namespace idempotency {

struct context;


/* A request as JSON-RPC sees it. */
struct jsonrpc_state {
    bool call; /* it is JSON-RPC */
    bool mcp;
    ngx_str_t id; /* as the client spelled it; empty: none */
    std::array<json_extent, 2> not_compared; /* in the body, in their order */

    /* Called when the body is there that a refusal waits for. */
    void (*then)(context &ctx);
};


/* Reads what the body says of itself.  False: no memory. */
bool look_for_call(context &ctx, std::string_view body);

/* Looks at the header of a response, before any filter has changed it. */
void note_encoding(context &ctx);

/*
 * The response to a call is encoded: its id cannot be read, and a retry could
 * not get its own.
 */
bool hides_its_id(const context &ctx);

/* Whether the captured response is a JSON-RPC error. */
bool is_jsonrpc_error(context &ctx);

/*
 * The body of a replay with the id of the retry in every answer that has the
 * first one's.  The buffers lie in the body itself, but for the ids.  Null:
 * there is no id to replace.
 */
ngx_chain_t *with_own_id(context &ctx, std::span<const std::uint8_t> body);

/*
 * The request may be a call that is refused before its body was read: then
 * the refusal has to wait for its id.
 */
bool is_unread_call(const context &ctx);

/*
 * Reads the body of such a request, then calls back.  Returns what the phase
 * handler has to return.
 */
ngx_int_t read_call(context &ctx, void (*then)(context &ctx));

/* A problem as the data of a JSON-RPC error; no data: no memory. */
ngx_str_t jsonrpc_error(context &ctx, std::string_view message,
                        const ngx_str_t &problem);

}
