#pragma once

#include "contract/json_workspace.h"

#include <cstdint>

namespace idempotency {

/* Where a value is, seen from the rules. */
struct json_position {
    std::uint64_t include = 0; /* which of them may still point into it */
    std::uint64_t exclude = 0;
    bool whole = false;    /* it counts, but for what is excluded in it */
    bool excluded = false; /* it does not count */
    bool params = false;   /* of a call of MCP */
};


/* An object from its opening brace on. */
struct json_opened {
    std::uint32_t object;
    std::uint32_t first; /* of its members */
};


/*
 * How far the reader has come.  Handed from call to call by value: it stays
 * in registers, which members of the reader do not, as any char that is
 * written could be part of them.
 */
struct json_cursor {
    char *out;        /* where the form ends; null: it could not go on */
    std::size_t next; /* token */

    bool failed() const { return out == nullptr; }
};


/*
 * Reads one document, value by value.  Functions that end in "_by_rules" are
 * for values of which a part may not count, and say whether anything did.
 */
class json_reader {
public:
    json_reader(json_workspace &space, const json_tokens &tokens,
                const json_rules &rules)
        : space_(space), text_(tokens.text), tokens_(tokens.begin),
          count_(tokens.count), rules_(rules)
    {}

    json_result document();

private:
    using cursor = json_cursor;

    cursor value(cursor c, unsigned depth);
    cursor value_of(cursor c, const char *at, unsigned depth);
    cursor object(cursor c, unsigned depth);
    cursor array(cursor c, unsigned depth);
    cursor number(cursor c, const char *at);
    cursor literal(cursor c, const char *at, std::string_view word);
    cursor string(cursor c, const char *at, const char *end);
    cursor long_string(cursor c, const char *at, std::size_t size);
    cursor escaped_string(cursor c, const char *at, std::size_t size);

    cursor child(cursor c, const json_position &where, unsigned depth,
                 bool &counts);
    cursor value_by_rules(cursor c, const json_position &where, unsigned depth,
                          bool &counts);
    cursor object_by_rules(cursor c, const json_position &where,
                           unsigned depth, bool &counts);
    cursor member_by_rules(cursor c, const json_position &where,
                           unsigned depth, bool &counts);
    cursor array_by_rules(cursor c, const json_position &where, unsigned depth,
                          bool &counts);
    cursor element_by_rules(cursor c, const json_position &to, unsigned depth,
                            std::uint32_t &left_out);
    json_position root() const;
    json_position step(const json_position &from, std::string_view name,
                       unsigned depth) const;

    template <typename Member>
    cursor read_object(cursor c, unsigned depth, Member read_member);
    template <typename Element>
    cursor read_array(cursor c, unsigned depth, Element read_element);

    cursor begin_object(cursor c, json_opened &open);
    cursor begin_member(cursor c);
    cursor name_of_member(cursor c);
    cursor end_object(cursor c, const json_opened &open);

    cursor not_json() const { return {nullptr, 0}; }
    cursor no_memory();

    const char *at(std::size_t token) const { return text_ + tokens_[token]; }

    /* The next token; 0: there is none. */
    char token(cursor c) const
    {
        return c.next == count_ ? '\0' : *at(c.next);
    }

    bool take(cursor &c, char expected) const
    {
        if (token(c) != expected) {
            return false;
        }

        c.next++;
        return true;
    }

    /* Where a token ends behind which there is only white space. */
    static const char *before_space(const char *end)
    {
        while (is_json_space(end[-1])) {
            end--;
        }

        return end;
    }

    /* Of the one that was taken last. */
    const char *end_of_token(cursor c) const
    {
        return before_space(at(c.next));
    }

    std::uint32_t offset(cursor c) const
    {
        return static_cast<std::uint32_t>(c.out - form_);
    }

    /*
     * Beyond what is asked for there is room for copies in whole steps.  Only
     * what is inlined may take a cursor by reference, or it leaves its
     * registers.
     */
    bool room(cursor &c, std::size_t size)
    {
        if (static_cast<std::size_t>(limit_ - c.out) < size + wide) {
            c = grow(c, size + wide);
        }

        return !c.failed();
    }

    cursor grow(cursor c, std::size_t size);

    json_workspace &space_;
    const char *text_;
    const std::uint32_t *tokens_;
    std::uint32_t count_;
    char *form_ = nullptr;
    char *limit_ = nullptr;
    const json_rules &rules_;
    json_result result_ = json_result::not_json;
};


/* From behind an object's opening brace to behind its closing one. */
template <typename Member>
[[gnu::always_inline]] inline json_cursor
json_reader::read_object(cursor c, unsigned depth, Member read_member)
{
    json_opened open;

    if (depth > json_max_depth) {
        return not_json();
    }

    c = begin_object(c, open);

    if (c.failed()) {
        return c;
    }

    if (take(c, '}')) {
        return end_object(c, open);
    }

    do {
        c = read_member(c);

        if (c.failed()) {
            return c;
        }
    } while (take(c, ','));

    return take(c, '}') ? end_object(c, open) : not_json();
}


/* From behind an array's opening bracket to behind its closing one. */
template <typename Element>
[[gnu::always_inline]] inline json_cursor
json_reader::read_array(cursor c, unsigned depth, Element read_element)
{
    if (depth > json_max_depth) {
        return not_json();
    }

    if (!room(c, 1)) {
        return c;
    }

    *c.out++ = '[';

    if (!take(c, ']')) {
        do {
            c = read_element(c);

            if (c.failed()) {
                return c;
            }
        } while (take(c, ','));

        if (!take(c, ']')) {
            return not_json();
        }
    }

    if (room(c, 1)) {
        *c.out++ = ']';
    }

    return c;
}

}
