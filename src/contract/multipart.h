#pragma once

#include "contract/digest.h"
#include "contract/media_type.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace idempotency {

enum class multipart_result {
    ok,
    not_multipart,
    no_memory,
};


/*
 * The digest of a multipart/form-data body by what it means: its parts in
 * their order, each with its header fields (names in lower case, sorted by
 * name, those of one name in their order) and its content.  The boundary does
 * not count.
 *
 * start(), then feed() with the body in pieces of any sizes, then finish().
 * Never keeps more than a part's header; allocates only what two hashers do.
 *
 * Servers differ in what they forgive, so that one body may mean several
 * things: whatever is not strictly of the form is not multipart.  That is
 * anything before the first or after the last boundary but one CRLF, a line
 * end in a header or a boundary line that is not CRLF, a folded or nameless
 * header line, a part without Content-Disposition, without a line for its
 * content or with a header of more than max_header bytes or max_lines lines,
 * and a line that begins as a boundary line does but is none.
 */
class multipart_hasher {
public:
    static constexpr std::size_t max_header = 8192;
    static constexpr std::size_t max_lines = 64;

    void start(std::string_view boundary);

    /* False: what it will be is certain, the rest need not be fed. */
    bool feed(std::string_view piece);

    /* Adds the digest to out; unless it is ok nothing was added. */
    [[nodiscard]] multipart_result finish(hasher &out);

private:
    /* What comes next. */
    enum class state : std::uint8_t {
        first_line, /* a boundary, or a CRLF before it */
        first_lf,   /* the LF of that CRLF */
        first_boundary,
        delimited,     /* what follows a boundary: "--" or the line's end */
        delimited_end, /* the rest of its padding, its CRLF */
        delimited_lf,
        header,
        content,
        closing, /* the second '-' of the last boundary */
        closed,  /* padding, CRLF or the end */
        closed_lf,
        closed_end, /* the end */
        failed,
        no_memory,
    };

    /*
     * The end of the line before what is compared with a boundary.  Only
     * CRLF makes it one; after the others, and at the content's start, some
     * servers see one and some do not.
     */
    enum class line_end : std::uint8_t { none, start, cr, lf, crlf };

    struct line {
        std::uint16_t at = 0;
        std::uint16_t name = 0;
        std::uint16_t value_at = 0;
        std::uint16_t value = 0;
    };

    void step(char c);
    void step_delimited(char c);
    void step_closed(char c);
    void expect(char c, char expected, state next);

    std::size_t feed_header(std::string_view piece);
    std::size_t feed_content(std::string_view piece);
    bool match_content(char c);
    void start_content();
    void end_part();
    std::size_t pending() const;
    void hash_held(std::size_t size);

    bool read_header();
    bool read_line(std::string_view text, std::size_t at, line &read);
    std::string_view dash_boundary() const;

    hasher parts_;
    hasher content_;
    std::uint64_t count_ = 0;
    std::size_t header_size_ = 0;
    std::size_t delimiter_size_ = 0;
    std::size_t matched_ = 0; /* of the dash-boundary */
    state state_ = state::failed;
    line_end before_ = line_end::none;
    std::array<char, 4 + max_boundary> delimiter_; /* CRLF, "--", boundary */
    std::array<char, max_header> header_;
};

}
