#include "contract/jsonrpc.h"

#include <algorithm>
#include <array>

namespace idempotency {

namespace {

std::string_view spelling_of(std::string_view body, const json_extent &extent);
bool is_batch(std::string_view body);
bool is_id(std::string_view spelling);
bool is_mcp_method(std::string_view method);
bool next_line(std::string_view &rest, std::string_view &line);
bool data_of(std::string_view line, std::string_view &data);

}


bool
read_jsonrpc_request(json_parser &parser, std::string_view body,
                     jsonrpc_request &request)
{
    enum { version, id, method };

    static constexpr std::array<std::string_view, 3> names = {"jsonrpc", "id",
                                                              "method"};
    std::array<json_extent, 3> values;

    request = {};

    if (is_batch(body)) {
        request.call = true;
        return true;
    }

    if (find_json_members(parser, body, names, values) != json_result::ok) {
        return false;
    }

    request.call = spelling_of(body, values[version]) == "\"2.0\"";
    request.mcp = request.call
                  && is_mcp_method(spelling_of(body, values[method]));

    if (is_id(spelling_of(body, values[id]))) {
        request.id = spelling_of(body, values[id]);
    }

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


jsonrpc_events::jsonrpc_events(json_parser &parser, std::string_view body,
                               std::span<char> room)
    : parser_(parser), body_(body), rest_(body), room_(room)
{
    if (rest_.starts_with("\xef\xbb\xbf")) {
        rest_.remove_prefix(3);
    }
}


bool
jsonrpc_events::next(jsonrpc_answer &answer)
{
    std::string_view lines;
    std::string_view data;

    while (next_message(lines, data)) {
        if (!data.empty() && read_jsonrpc_answer(parser_, data, answer)) {
            if (answer.has_id) {
                answer.id_at = place_of(lines, answer.id_at);
            }

            return true;
        }
    }

    return false;
}


/*
 * The lines of the next message, up to the empty one that ends it, and its
 * data, which are those of its lines.  What has no end never was a message.
 */
bool
jsonrpc_events::next_message(std::string_view &lines, std::string_view &data)
{
    std::string_view line;
    char *out = room_.data();

    lines = rest_;

    while (next_line(rest_, line)) {
        if (line.empty()) {
            data = {room_.data(),
                    static_cast<std::size_t>(out - room_.data())};
            return true;
        }

        if (data_of(line, line)) {
            out = std::copy(line.begin(), line.end(), out);
            *out++ = '\n';
        }
    }

    return false;
}


/* Where in the body a place in the data of these lines is. */
std::size_t
jsonrpc_events::place_of(std::string_view lines, std::size_t at) const
{
    std::string_view line;

    while (next_line(lines, line)) {
        if (!data_of(line, line)) {
            continue;
        }

        if (at < line.size()) {
            return static_cast<std::size_t>(line.data() - body_.data()) + at;
        }

        at -= line.size() + 1;
    }

    return body_.size();
}


namespace {

std::string_view
spelling_of(std::string_view body, const json_extent &extent)
{
    return body.substr(extent.at, extent.size);
}


bool
is_batch(std::string_view body)
{
    std::size_t first = body.find_first_not_of(" \t\r\n");

    return first != body.npos && body[first] == '[';
}


bool
is_id(std::string_view spelling)
{
    return spelling == "null"
           || (!spelling.empty() && spelling.find_first_of("{[tf") != 0);
}


/* Their names have a slash (tools/call), but for two. */
bool
is_mcp_method(std::string_view method)
{
    return method.find('/') != method.npos || method == "\"initialize\""
           || method == "\"ping\"";
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
