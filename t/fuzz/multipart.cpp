#include "contract/multipart.h"

#include "check.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace idempotency;

/* An input is a boundary, a line feed and a body. */

namespace {

using fields = std::vector<std::pair<std::string, std::string>>;


struct part {
    fields header;
    std::string content;
};


using parts = std::vector<part>;
using result = std::optional<digest>;


/* In pieces of this size, the last one on the heap in its exact size. */
result
digest_of(std::string_view boundary, std::string_view body, std::size_t piece)
{
    static multipart_hasher multipart;
    hasher hash;
    digest d;

    hash.start("multipart");
    multipart.start(boundary);

    while (!body.empty()) {
        std::string_view next = body.substr(0, piece);
        std::vector<char> copy(next.begin(), next.end());

        multipart.feed({copy.data(), copy.size()});
        body.remove_prefix(next.size());
    }

    multipart_result r = multipart.finish(hash);
    check(r != multipart_result::no_memory, "there is memory");
    check(hash.finish(d), "there is a digest");

    if (r != multipart_result::ok) {
        hasher untouched;
        digest none;

        untouched.start("multipart");
        check(untouched.finish(none) && d == none,
              "nothing is added for what is not multipart");
        return std::nullopt;
    }

    return d;
}


bool
parse_line(const std::string &line, const std::string &dashed, part &found)
{
    std::size_t colon = line.find(':');

    if (colon == line.npos || colon == 0 || line.find(dashed) == 0) {
        return false;
    }

    for (std::size_t i = 0; i < line.size(); i++) {
        int c = line[i] & 0xff;

        if ((c < 0x20 && c != '\t') || c == 0x7f
            || (i < colon
                && (c >= 0x80
                    || (!std::isalnum(c)
                        && !std::strchr("!#$%&'*+-.^_`|~", c)))))
        {
            return false;
        }
    }

    std::string name = line.substr(0, colon);
    std::string value = line.substr(colon + 1);

    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return std::tolower(c); });
    value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
    value.erase(value.find_last_not_of(" \t") + 1);
    found.header.emplace_back(name, value);
    return true;
}


bool
parse_header(std::string header, const std::string &dashed, part &found)
{
    bool disposed = false;

    header += "\r\n";

    for (std::size_t at = 0, end; at < header.size(); at = end + 2) {
        end = header.find("\r\n", at);

        if (!parse_line(header.substr(at, end - at), dashed, found)) {
            return false;
        }

        disposed |= found.header.back().first == "content-disposition";
    }

    std::stable_sort(
        found.header.begin(), found.header.end(),
        [](const auto &a, const auto &b) { return a.first < b.first; });

    return disposed && found.header.size() <= multipart_hasher::max_lines
           && header.size() + 2 <= multipart_hasher::max_header;
}


std::string
without_padding(const std::string &text)
{
    return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}


/* The same once more, with the whole body at hand. */
std::optional<parts>
parse(const std::string &boundary, std::string body)
{
    const std::string dashed = "--" + boundary;
    parts found;

    if (body.starts_with("\r\n")) {
        body.erase(0, 2);
    }

    if (!is_boundary(boundary) || !body.starts_with(dashed)) {
        return std::nullopt;
    }

    body.erase(0, dashed.size());

    while (!body.starts_with("--")) {
        part next;

        body = without_padding(body);

        std::size_t header_end = body.find("\r\n\r\n", 2);

        if (!body.starts_with("\r\n") || header_end == body.npos
            || !parse_header(body.substr(2, header_end - 2), dashed, next))
        {
            return std::nullopt;
        }

        body.erase(0, header_end + 4);

        std::size_t end = body.find("\r\n" + dashed);

        if (end == body.npos || body.find("\r" + dashed) < end
            || body.find("\n" + dashed) < end || body.starts_with(dashed))
        {
            return std::nullopt;
        }

        next.content = body.substr(0, end);
        body.erase(0, end + 2 + dashed.size());
        found.push_back(next);
    }

    body = without_padding(body.substr(2));
    return body.empty() || body == "\r\n" ? std::optional(found)
                                          : std::nullopt;
}


std::string
fresh_boundary(const std::string &body)
{
    std::string boundary = "f";

    while (body.find("--" + boundary) != body.npos) {
        boundary += static_cast<char>('a' + body.size() % 26);
    }

    return boundary.size() <= max_boundary ? boundary : "";
}


/* Names in capitals, from the last to the first, with another boundary. */
std::string
serialized(const std::string &boundary, const parts &from)
{
    std::string body = "\r\n--" + boundary;

    for (const part &p : from) {
        body += " \t\r\n";

        for (auto end = p.header.end(); end != p.header.begin();) {
            const std::string &name = (end - 1)->first;
            auto begin = std::find_if(
                p.header.begin(), end,
                [&](const auto &f) { return f.first == name; });

            for (auto f = begin; f != end; f++) {
                for (char c : name) {
                    body += static_cast<char>(std::toupper(c));
                }
                body += ":" + f->second + "\r\n";
            }

            end = begin;
        }

        body += "\r\n" + p.content + "\r\n--" + boundary;
    }

    return body + "-- \r\n";
}


void
check_parts(const std::string &body, const parts &found, const result &same)
{
    std::string other = fresh_boundary(body);

    if (other.empty()) {
        return;
    }

    check(digest_of(other, serialized(other, found), body.size()) == same,
          "boundary, order and case of header fields do not count");

    if (found.empty()) {
        return;
    }

    parts changed = found;

    changed.back().content += 'x';
    check(digest_of(other, serialized(other, changed), 64) != same,
          "content counts");

    changed = found;
    changed.front().header.front().second += 'x';
    check(digest_of(other, serialized(other, changed), 64) != same,
          "header fields count");

    changed = found;
    changed.push_back(found.front());
    check(digest_of(other, serialized(other, changed), 64) != same,
          "parts count");
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string_view input = text_of(data, size);
    std::size_t feed = input.find('\n');

    if (feed == input.npos) {
        return 0;
    }

    std::string boundary(input.substr(0, feed));
    std::string body(input.substr(feed + 1));
    std::size_t some = 1 + std::hash<std::string>()(body) % (size + 1);

    result found = digest_of(boundary, body, size);
    auto expected = parse(boundary, body);

    check(digest_of(boundary, body, 1) == found, "byte by byte");
    check(digest_of(boundary, body, some) == found, "in pieces");
    check(found.has_value() == expected.has_value(), "what is multipart");

    if (found) {
        check_parts(body, *expected, found);
    }

    return 0;
}
