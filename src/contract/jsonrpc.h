#pragma once

#include "contract/json.h"

namespace idempotency {

/*
 * JSON-RPC 2.0, as far as a replay needs it.  Bodies are padded as for
 * canonical_json(); what is not valid JSON by its rules is not touched.
 */

/*
 * The id of a request, as it is spelled.  False: there is none (it is a
 * notification, a batch, no JSON at all), or it is no string, number or null.
 */
bool jsonrpc_id(json_parser &parser, std::string_view body,
                std::string_view &id);


/* What an answer says.  The offsets are those of the id in the whole body. */
struct jsonrpc_answer {
    bool error = false;
    bool has_id = false;
    std::size_t id_at = 0;
    std::size_t id_size = 0;
};


/* A body that is one answer.  False: it is not, or it is a batch. */
bool read_jsonrpc_answer(json_parser &parser, std::string_view body,
                         jsonrpc_answer &answer);

/*
 * A text/event-stream of one message, which is one answer, in one data line.
 * False: it is anything else.  Comments and other fields do not matter.
 */
bool read_jsonrpc_event(json_parser &parser, std::string_view body,
                        jsonrpc_answer &answer);

}
