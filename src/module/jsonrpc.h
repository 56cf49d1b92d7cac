#pragma once

#include "ngx.h"

#include <cstdint>

namespace idempotency {

struct context;

/* Whether the captured response is a JSON-RPC error. */
bool is_jsonrpc_error(context &ctx);

/*
 * The body of a replay with the id of the retry in place of the first one.
 * Nothing: there is no id to replace.
 */
std::span<u_char> with_own_id(context &ctx,
                              std::span<const std::uint8_t> body);

}
