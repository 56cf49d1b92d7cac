#pragma once

#include "contract/json.h"

#include <cstdint>
#include <cstring>
#include <memory>

namespace idempotency {

/*
 * Where the tokens of a document begin: each bracket, brace, comma, colon,
 * string, and whatever else is not white space, in order.  That they are
 * well-formed, and in a sensible order, is left to the reader.  But the text
 * is UTF-8, no string has control characters, all strings are closed, and
 * between the quote that closes a string and the next token there is white
 * space only.
 */
struct json_tokens {
    const char *text = nullptr;
    const std::uint32_t *begin = nullptr; /* behind the last: its end */
    std::uint32_t count = 0;
};


/*
 * Finds tokens, by the first stage of simdjson, which does it many bytes at a
 * time with what the CPU has.  Its second stage is not used: On Demand does
 * not look at what is skipped, nor for double names, and DOM loses numbers.
 */
class json_scanner {
public:
    json_scanner();
    ~json_scanner();

    json_result scan(std::string_view body, json_tokens &tokens);
    std::size_t memory() const;

private:
    struct stage;

    std::unique_ptr<stage> stage_;
};


inline bool
is_json_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}


/*
 * Both write the canonical form of what is between at and end to out and
 * return where it ends there, or null if it is not well-formed.  A number
 * needs as much room as it takes in the text and number_room more, besides
 * that for copies in whole steps; a string as much as it takes.
 */
inline constexpr std::size_t number_room = 32;

char *write_number(char *out, const char *at, const char *end);
char *unescape_json(char *out, const char *at, const char *end);


/* A step of the copies below, which read and write no more beyond the end. */
inline constexpr std::size_t wide = 32;


/* Copies one step.  Whether c is in it. */
inline bool
copy_block(char *out, const char *from, char c)
{
    typedef char half __attribute__((vector_size(16)));

    half low, high;

    std::memcpy(&low, from, sizeof(low));
    std::memcpy(&high, from + sizeof(low), sizeof(high));
    std::memcpy(out, &low, sizeof(low));
    std::memcpy(out + sizeof(low), &high, sizeof(high));

    half found = (low == c) | (high == c);

#if defined(__SSE2__)

    return __builtin_ia32_pmovmskb128(found) != 0;

#else

    std::uint64_t words[2];

    std::memcpy(words, &found, sizeof(words));
    return (words[0] | words[1]) != 0;

#endif
}


/* Most pieces are shorter than what a call of memcpy() is worth. */
inline void
copy_wide(char *out, const char *from, std::size_t size)
{
    if (size > 2 * wide) {
        std::memcpy(out, from, size);
        return;
    }

    std::memcpy(out, from, wide);

    if (size > wide) {
        std::memcpy(out + wide, from + wide, wide);
    }
}

}
