#include "contract/json_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

/*
 * Reading by rules: what they leave out is read like the rest, as it has to
 * be valid, and then forgotten.
 */

namespace idempotency {

namespace {

std::uint64_t all(std::span<const json_pointer> pointers);
std::uint64_t follow(std::span<const json_pointer> pointers,
                     std::uint64_t which, std::size_t depth,
                     std::string_view name, bool &ends);

}


json_position
json_reader::root() const
{
    json_position where;

    where.include = all(rules_.include);
    where.exclude = all(rules_.exclude);
    where.whole = rules_.include.empty();

    return where;
}


namespace {

/* Each pointer that leads further than to the whole document. */
std::uint64_t
all(std::span<const json_pointer> pointers)
{
    std::uint64_t which = 0;

    for (std::size_t i = 0; i < std::min(pointers.size(), max_pointers); i++) {
        if (!pointers[i].segments.empty()) {
            which |= std::uint64_t{1} << i;
        }
    }

    return which;
}

}


json_cursor
json_reader::child(cursor c, const json_position &where, unsigned depth,
                   bool &counts)
{
    if (where.excluded || (!where.whole && where.include == 0)) {
        counts = false;
        return value(c, depth);
    }

    return value_by_rules(c, where, depth, counts);
}


json_cursor
json_reader::value_by_rules(cursor c, const json_position &where,
                            unsigned depth, bool &counts)
{
    bool by_name = where.params || (depth == 0 && rules_.jsonrpc);

    if (!where.whole || where.exclude != 0 || by_name) {
        if (take(c, '{')) {
            return object_by_rules(c, where, depth + 1, counts);
        }

        if (take(c, '[')) {
            return array_by_rules(c, where, depth + 1, counts);
        }
    }

    counts = where.whole;
    return value(c, depth);
}


json_cursor
json_reader::object_by_rules(cursor c, const json_position &where,
                             unsigned depth, bool &counts)
{
    counts = where.whole;

    return read_object(c, depth, [&](cursor next) {
        bool member_counts = false;

        next = begin_member(next);

        if (!next.failed()) {
            next = member_by_rules(next, where, depth, member_counts);
            counts |= member_counts;
        }

        return next;
    });
}


/* The value of the member that has just begun. */
json_cursor
json_reader::member_by_rules(cursor c, const json_position &where,
                             unsigned depth, bool &counts)
{
    std::string_view name = string_in_form(form_ + space_.members.back().at);
    json_position to = step(where, name, depth);
    std::uint32_t objects = space_.objects.size();
    std::uint32_t segments = space_.segments.size();
    std::uint32_t start = offset(c);

    c = child(c, to, depth, counts);

    if (c.failed()) {
        return c;
    }

    if (!counts) {
        /* Its name has to stay, to be found twice. */
        c.out = form_ + start;
        space_.members.back().object = UINT32_MAX;
        space_.objects.resize(objects);
        space_.segments.resize(segments);
    }

    return c;
}


json_cursor
json_reader::array_by_rules(cursor c, const json_position &where,
                            unsigned depth, bool &counts)
{
    std::uint32_t index = 0;
    std::uint32_t left_out = 0;

    counts = where.whole;

    return read_array(c, depth, [&](cursor next) {
        std::array<char, 10> text;
        char *end = std::to_chars(text.begin(), text.end(), index++).ptr;

        next = element_by_rules(next, step(where, {text.data(), end}, depth),
                                depth, left_out);
        counts |= left_out == 0;
        return next;
    });
}


/* After as many that were left out; it may be another one of them. */
json_cursor
json_reader::element_by_rules(cursor c, const json_position &to,
                              unsigned depth, std::uint32_t &left_out)
{
    std::uint32_t objects = space_.objects.size();
    std::uint32_t segments = space_.segments.size();
    std::uint32_t start = offset(c);
    bool counts = false;

    if (!room(c, number_room)) {
        return c;
    }

    if (left_out != 0) {
        *c.out++ = '_';
        c.out = std::to_chars(c.out, c.out + 10, left_out).ptr;
        *c.out++ = ';';
    }

    c = child(c, to, depth, counts);

    if (c.failed()) {
        return c;
    }

    if (counts) {
        left_out = 0;
        return c;
    }

    left_out++;
    c.out = form_ + start;
    space_.objects.resize(objects);
    space_.segments.resize(segments);
    return c;
}


/* From an array or object to what is in it.  The outermost has depth 1. */
json_position
json_reader::step(const json_position &from, std::string_view name,
                  unsigned depth) const
{
    json_position to;
    bool included = false;

    to.include = follow(rules_.include, from.include, depth - 1, name,
                        included);
    to.exclude = follow(rules_.exclude, from.exclude, depth - 1, name,
                        to.excluded);
    to.whole = from.whole || included;
    to.excluded |= rules_.jsonrpc && depth == 1 && name == "id";
    to.params = rules_.mcp && depth == 1 && name == "params";
    to.excluded |= from.params && name == "_meta";

    return to;
}


namespace {

/*
 * Of the pointers that lead here those that lead on by this name; ends: one
 * of them ends there.
 */
std::uint64_t
follow(std::span<const json_pointer> pointers, std::uint64_t which,
       std::size_t depth, std::string_view name, bool &ends)
{
    std::uint64_t on = 0;

    for (; which != 0; which &= which - 1) {
        auto i = static_cast<std::size_t>(std::countr_zero(which));
        auto segments = pointers[i].segments;

        if (!segment_matches(segments[depth], name)) {
            continue;
        }

        if (segments.size() == depth + 1) {
            ends = true;

        } else {
            on |= which & -which;
        }
    }

    return on;
}

}

}
