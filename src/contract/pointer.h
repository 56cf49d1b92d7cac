#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace idempotency {

/*
 * A JSON pointer (RFC 6901) that names one or more members of a document: the
 * segment "*" stands for any member of an object or any element of an array,
 * one level deep.  Elements go by their decimal index without leading zeros.
 * The segments are unescaped.
 */
struct json_pointer {
    std::span<const std::string_view> segments;
};


/* How many segments a pointer of this text has, if it is one. */
std::size_t count_segments(std::string_view text);

/*
 * Takes a pointer apart.  The text begins with "/": the pointer to the whole
 * document is refused, as it would leave nothing out or nothing in.  There
 * are to be count_segments() segments and as much storage as text.  What is
 * written to segments lies in storage.
 */
[[nodiscard]] bool parse_pointer(std::string_view text,
                                 std::span<std::string_view> segments,
                                 std::span<char> storage, std::size_t &count);

bool has_wildcard(const json_pointer &pointer);

/* Whether this segment of a pointer names this member or index. */
inline bool
segment_matches(std::string_view segment, std::string_view name)
{
    return segment == name || segment == "*";
}

}
