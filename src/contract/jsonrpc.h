#pragma once

#include "contract/json_finder.h"

#include <array>

namespace idempotency {

/*
 * JSON-RPC 2.0, as far as a replay needs it.  Members are found as
 * json_finder finds them, in a text that is complete and need not have a
 * canonical form.  A member that occurs twice is not found.
 */

/* What a request says of itself. */
struct jsonrpc_request {
    bool call = false; /* it is JSON-RPC 2.0, or a batch */
    bool mcp = false;  /* its method is named as MCP names them */

    /* As it is spelled; empty: none, or no string, number or null. */
    std::string_view id;

    /* Where id and, in a call of MCP, params._meta are, in their order. */
    std::array<json_extent, 2> not_compared;
};


jsonrpc_request read_jsonrpc_request(std::string_view body);


/* What an answer says.  The offsets are those of the id in the whole body. */
struct jsonrpc_answer {
    bool error = false; /* it has one, and nothing that says otherwise */
    bool has_id = false;
    std::size_t id_at = 0;
    std::size_t id_size = 0;
};


/* A body that is one answer.  False: it is not, or it is a batch. */
bool read_jsonrpc_answer(std::string_view body, jsonrpc_answer &answer);

/*
 * The answers in a text/event-stream, one after the other.  What else is in
 * it (comments, other fields, notifications, what is no JSON) does not matter.
 */
class jsonrpc_events {
public:
    /* The room is as large as the body, and apart from it. */
    jsonrpc_events(std::string_view body, std::span<char> room);

    /* False: there is no further answer. */
    bool next(jsonrpc_answer &answer);

private:
    bool next_message(std::string_view &lines, std::string_view &data);
    std::size_t place_of(std::string_view lines, std::size_t at) const;

    std::string_view body_;
    std::string_view rest_;
    std::span<char> room_;
};

}
