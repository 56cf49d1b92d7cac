#include "contract/jsonrpc.h"

#include <algorithm>
#include <array>

namespace idempotency {

namespace {

using result = json_target::result;
using segment = std::string_view;

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
constexpr std::array<segment, 1> version_path = {"jsonrpc"};
constexpr std::array<segment, 1> id_path = {"id"};
constexpr std::array<segment, 1> method_path = {"method"};
constexpr std::array<segment, 1> result_path = {"result"};
constexpr std::array<segment, 1> error_path = {"error"};
constexpr std::array<segment, 2> meta_path = {"params", "_meta"};
constexpr std::size_t longest_segment = version_path[0].size();

bool find_all(std::string_view body, std::span<json_target> targets);
json_target target_at(std::span<const segment> path);
json_extent place_of(const json_target &target);
std::string_view spelling_of(std::string_view body, const json_target &target);
bool is_batch(std::string_view body);
bool is_id(std::string_view spelling);
bool is_mcp_method(std::string_view method);
bool next_line(std::string_view &rest, std::string_view &line);
bool data_of(std::string_view line, std::string_view &data);

}


jsonrpc_request
read_jsonrpc_request(std::string_view body)
{
    enum { version, id, method, meta };

    std::array targets = {target_at(version_path), target_at(id_path),
                          target_at(method_path), target_at(meta_path)};
    jsonrpc_request request;

    if (is_batch(body)) {
        request.call = true;
        return request;
    }

    if (!find_all(body, targets)) {
        return request;
    }

    request.call = spelling_of(body, targets[version]) == "\"2.0\"";
    request.mcp = request.call
                  && is_mcp_method(spelling_of(body, targets[method]));

    if (is_id(spelling_of(body, targets[id]))) {
        request.id = spelling_of(body, targets[id]);
    }

    if (request.call) {
        auto &[first, second] = request.not_compared;

        first = place_of(targets[id]);
        second = request.mcp ? place_of(targets[meta]) : json_extent();

        if (second.at < first.at) {
            std::swap(first, second);
        }
    }

    return request;
}


bool
read_jsonrpc_answer(std::string_view body, jsonrpc_answer &answer)
{
    enum { version, id, value, error };

    std::array targets = {target_at(version_path), target_at(id_path),
                          target_at(result_path), target_at(error_path)};

    if (!find_all(body, targets)
        || spelling_of(body, targets[version]) != "\"2.0\""
        || targets[id].found == result::repeated)
    {
        return false;
    }

    /*
     * An object with an id need not be an answer, and only an answer's id may
     * be replaced.  A null error is how older versions spell none.
     */

    bool has_result = targets[value].found != result::absent;
    bool has_error = targets[error].found != result::absent
                     && spelling_of(body, targets[error]) != "null";

    if (!has_result && !has_error) {
        return false;
    }

    /* An answer that contradicts itself may have been executed. */
    answer = {};
    answer.error = !has_result && targets[error].found == result::found;
    answer.has_id = targets[id].found == result::found;
    answer.id_at = targets[id].place.at;
    answer.id_size = targets[id].place.size;

    return true;
}


jsonrpc_events::jsonrpc_events(std::string_view body, std::span<char> room)
    : body_(body), rest_(body), room_(room)
{
    if (rest_.starts_with(byte_order_mark)) {
        rest_.remove_prefix(byte_order_mark.size());
    }
}


bool
jsonrpc_events::next(jsonrpc_answer &answer)
{
    std::string_view lines;
    std::string_view data;

    while (next_message(lines, data)) {
        if (!data.empty() && read_jsonrpc_answer(data, answer)) {
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

/* False: the text is not complete. */
bool
find_all(std::string_view body, std::span<json_target> targets)
{
    std::array<char, json_finder::room_for(longest_segment)> room;
    json_finder finder(targets, room);

    finder.feed(body);

    return finder.finish() == json_text::complete;
}


json_target
target_at(std::span<const segment> path)
{
    json_target target;

    target.pointer = {path};

    return target;
}


/* Of no size: it was not found, or twice. */
json_extent
place_of(const json_target &target)
{
    return target.found == result::found ? target.place : json_extent();
}


std::string_view
spelling_of(std::string_view body, const json_target &target)
{
    json_extent place = place_of(target);

    return body.substr(place.at, place.size);
}


bool
is_batch(std::string_view body)
{
    if (body.starts_with(byte_order_mark)) {
        body.remove_prefix(byte_order_mark.size());
    }

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
