#pragma once

#include "contract/json.h"
#include "contract/json_array.h"

#include <array>
#include <cstdint>

namespace idempotency {

/* What a finder looks for, and what it has found. */
struct json_target {
    /* One segment at least; "*" stands for itself. */
    json_pointer pointer;

    /* Where the text of a string goes; empty: only its place is wanted. */
    std::span<char> out;

    enum class result : std::uint8_t {
        absent,
        found,
        repeated, /* a name on the way to it occurs twice in its object */
    };

    result found = result::absent;
    char first = 0;       /* byte of the value: '"' for a string */
    bool readable = true; /* the string fits out and has no half surrogate */
    json_extent place;
    std::string_view text; /* of a readable string, in out */

    /* The finder's own. */
    std::size_t open = 0;    /* containers on the path that are open now */
    std::size_t reached = 0; /* segments that were ever met */
    bool next = false;       /* the value that begins now is on the path */
    bool inside = false;     /* of the value */
};


enum class json_text : std::uint8_t {
    complete,
    empty,
    broken, /* not JSON from some place on, or cut off */
    no_memory,
};


/*
 * Finds values in a JSON text that comes in pieces of any size.  Where
 * canonical_json() must know what a whole document means, a finder only has to
 * know where a value is.  So it reads RFC 8259 and, besides, a byte order
 * mark, any bytes from 0x80 on, halves of surrogate pairs, numbers of any
 * size, any depth up to max_depth, and names that occur twice.  Names are
 * compared after their escapes are resolved.
 *
 * What was found before the text breaks stays found.
 *
 * It uses a bit for each open array and object, in memory of its own from the
 * 513th on, and nothing else grows with the text.
 */
class json_finder {
public:
    /* One megabyte of bits.  A text that goes deeper is broken. */
    static constexpr std::size_t max_depth = 8 * 1024 * 1024;

    /*
     * The token is room for names and for the text of strings as they are
     * spelled: room_for() the longest of them.  It is not read afterwards.
     */
    json_finder(std::span<json_target> targets, std::span<char> token);

    /* Six characters are the longest spelling of a byte: "\u0041". */
    static constexpr std::size_t room_for(std::size_t longest)
    {
        return 6 * longest;
    }

    void feed(std::string_view piece);

    /* There are no more pieces. */
    json_text finish();

private:
    /* What comes next. */
    enum class state : std::uint8_t {
        start, /* a byte order mark or the document */
        mark,  /* the rest of a byte order mark */
        value,
        first_value, /* or the end of the array */
        name,
        first_name, /* or the end of the object */
        colon,
        behind_value, /* a comma or the end of what it is in */
        string,
        escape,
        hex_digit,
        literal,
        minus,
        zero,
        digits,
        point,
        fraction,
        exponent_mark,
        exponent_sign,
        exponent,
        behind_document,
        failed,
        no_memory,
    };

    void step(char c);
    void step_between(char c);
    void step_value(char c);
    void step_escape(char c);
    void step_literal(char c);
    const char *read_string(const char *at, const char *end);
    const char *read_number(const char *at, const char *end);

    void begin_value(char c);
    void end_value(std::size_t end);
    void begin_container(bool object);
    void end_container(char c);
    void begin_string(bool is_name);
    void end_string();
    void match_name();
    void match_element();
    void follow(json_target &target);
    void leave_path();

    void capture(const char *at, const char *end);
    bool captured(std::string_view &text);
    void keep_text();

    bool in_object() const;

    static state continued(state number, char c);
    static bool is_whole(state number);

    std::span<json_target> targets_;
    std::span<char> token_;
    std::size_t token_size_ = 0;
    std::size_t at_ = 0; /* in the text, of the byte that is being read */
    std::size_t depth_ = 0;
    std::size_t watched_ = 0; /* the deepest container on a path */
    std::size_t element_ = 0; /* the next one, if that is an array */
    std::string_view literal_;
    state state_ = state::start;
    std::uint8_t count_ = 0; /* of a mark's bytes or an escape's digits */
    bool is_name_ = false;   /* the string */
    bool capturing_ = false;
    bool overflow_ = false; /* the token was longer than its room */
    bool escaped_ = false;
    bool any_next_ = false;
    bool any_inside_ = false;

    /* Levels: 1 is an object, 0 an array. */
    std::array<std::uint64_t, 8> levels_ = {};
    json_array<std::uint64_t> deeper_;
};

}
