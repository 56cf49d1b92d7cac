#include "contract/jsonrpc.h"

#include <array>

namespace idempotency {

namespace {

bool is_id(std::string_view text);
std::string_view spelling_of(std::string_view body, const json_extent &extent);
bool only_data(std::string_view body, std::string_view &data);
bool next_line(std::string_view &rest, std::string_view &line);
bool data_of(std::string_view line, std::string_view &data);

}


bool
jsonrpc_id(json_parser &parser, std::string_view body, std::string_view &id)
{
    static constexpr std::array<std::string_view, 1> names = {"id"};
    std::array<json_extent, 1> values;

    if (find_json_members(parser, body, names, values) != json_result::ok
        || !is_id(spelling_of(body, values[0])))
    {
        return false;
    }

    id = spelling_of(body, values[0]);
    return true;
}


bool
read_jsonrpc_answer(json_parser &parser, std::string_view body,
                    jsonrpc_answer &answer)
{
    enum { version, id, result, error };

    static constexpr std::array<std::string_view, 4> names = {
        "jsonrpc", "id", "result", "error"};
    std::array<json_extent, 4> values;

    if (find_json_members(parser, body, names, values) != json_result::ok) {
        return false;
    }

    /*
     * An object with an id need not be an answer, and only an answer's id may
     * be replaced.  A null error is how older versions spell none.
     */

    std::string_view failure = spelling_of(body, values[error]);

    answer = {};
    answer.error = !failure.empty() && failure != "null";

    if (spelling_of(body, values[version]) != "\"2.0\""
        || (values[result].size == 0 && !answer.error))
    {
        return false;
    }

    if (values[id].size != 0) {
        answer.has_id = true;
        answer.id_at = values[id].at;
        answer.id_size = values[id].size;
    }

    return true;
}


bool
read_jsonrpc_event(json_parser &parser, std::string_view body,
                   jsonrpc_answer &answer)
{
    std::string_view data;

    if (!only_data(body, data) || !read_jsonrpc_answer(parser, data, answer)) {
        return false;
    }

    if (answer.has_id) {
        answer.id_at += static_cast<std::size_t>(data.data() - body.data());
    }

    return true;
}


namespace {

bool
is_id(std::string_view text)
{
    return text == "null"
           || (!text.empty() && text.find_first_of("{[tf") != 0);
}


std::string_view
spelling_of(std::string_view body, const json_extent &extent)
{
    return body.substr(extent.at, extent.size);
}


/*
 * The only data line, in a message that is ended by an empty line.  Messages
 * of no data may stand beside it: MCP begins streams that can be resumed so.
 */
bool
only_data(std::string_view body, std::string_view &data)
{
    std::string_view line;
    bool filled = false; /* the message has its data line */
    bool ended = false;

    data = {};

    if (body.starts_with("\xef\xbb\xbf")) {
        body.remove_prefix(3);
    }

    while (next_line(body, line)) {
        if (line.empty()) {
            filled = false;
            ended = !data.empty();

        } else if (data_of(line, line)) {
            if (filled || (!line.empty() && !data.empty())) {
                return false;
            }

            filled = true;
            data = line.empty() ? data : line;
        }
    }

    /* A message without its empty line never was one. */
    return ended;
}


/* Takes the next line and what ends it: CRLF, LF or CR. */
bool
next_line(std::string_view &rest, std::string_view &line)
{
    std::size_t end = rest.find_first_of("\r\n");

    if (end == rest.npos) {
        return false;
    }

    bool two = rest[end] == '\r' && rest.substr(end + 1).starts_with('\n');

    line = rest.substr(0, end);
    rest.remove_prefix(end + (two ? 2 : 1));
    return true;
}


/* The value of a data line; false: it is another line. */
bool
data_of(std::string_view line, std::string_view &data)
{
    if (line == "data") {
        data = line.substr(line.size());
        return true;
    }

    if (!line.starts_with("data:")) {
        return false;
    }

    data = line.substr(5);

    if (data.starts_with(' ')) {
        data.remove_prefix(1);
    }

    return true;
}

}

}
