#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace idempotency {

/*
 * The stored form of a response, version 1.  All integers are little-endian.
 *
 *     u8   version
 *     u8   flags: 1 the Location line was nginx's own (headers_out.location),
 *          2 there is a place, 4 the Server header was removed
 *     u16  status
 *     u16  length of the content type without its parameters
 *     u16  number of header fields
 *     u16  number of trailer fields
 *     u16  length of the status line
 *     u16  length of the content type
 *     u16  length of the charset
 *     i64  Content-Length as it was, -1: none
 *     i64  Last-Modified time, -1: none
 *     u64  length of the body
 *     status line, content type, charset
 *     u16  length of the place, and the place; only with the flag
 *     header fields, each: u16 name length, u32 value length, name, value
 *     body
 *     trailer fields, as header fields
 *
 * A writer makes the part before the body at once, when the header is there;
 * the lengths that are known only at the end are set then.
 */

struct response_head {
    std::uint16_t status = 0;
    std::uint16_t content_type_length = 0;
    bool own_location = false;
    bool no_server = false; /* nginx would add one to a response without it */
    std::int64_t content_length = -1;
    std::int64_t last_modified = -1;
    std::string_view status_line;
    std::string_view content_type;
    std::string_view charset;

    /* Where the request was admitted, if not where its gate stood. */
    std::string_view place;
};


struct field {
    std::string_view name;
    std::string_view value;
};


/* The most header fields, or trailer fields, a record can have. */
inline constexpr std::size_t max_fields = UINT16_MAX;

/* Whether its lengths fit the form; asked before any encode(). */
bool encodable(const response_head &head);
bool encodable(const field &f);

/*
 * Whether a client can be sent it as it is: a final status, nothing that ends
 * a line of the header, dates that nginx has room for.  A reader rejects what
 * is not, so a writer must not store it.
 */
bool sendable(const response_head &head);
bool sendable(const field &f);

/*
 * What is the connection's, not the response's, or is set anew.  No record has
 * such a field; one that comes from elsewhere is not sent.
 */
bool is_never_kept(std::string_view name);

/* Whether a response of this status has no body. */
constexpr bool
has_no_body(unsigned status)
{
    return status == 204 || status == 304;
}


std::size_t encoded_size(const response_head &head);
std::size_t encoded_size(const field &f);

/* Each returns where it stopped writing. */
std::uint8_t *encode(std::uint8_t *out, const response_head &head,
                     std::size_t header_fields);
std::uint8_t *encode(std::uint8_t *out, const field &f);

/* Completes an encoded head. */
void set_body(std::uint8_t *head, std::uint64_t body_length,
              std::size_t trailer_fields);


/* A response to HEAD has the length of a body that it does not have. */
enum class response_to : std::uint8_t { head, others };


/*
 * Reads an encoded response.  Its views point into the bytes it was opened
 * on.  The bytes come from outside the process, and others may have changed
 * them: open() checks every length, all that goes into a header, and that the
 * body is as long as Content-Length says.  What it accepted can be walked and
 * sent without further doubt.
 */
class response_reader {
public:
    [[nodiscard]] bool open(std::span<const std::uint8_t> bytes,
                            response_to what = response_to::others);

    const response_head &head() const { return head_; }
    std::span<const std::uint8_t> body() const { return body_; }

    /* The next header field, then, after the last, false; so for trailers. */
    bool next_header(field &f);
    bool next_trailer(field &f);

private:
    response_head head_;
    std::span<const std::uint8_t> body_;
    const std::uint8_t *header_ = nullptr;
    const std::uint8_t *trailer_ = nullptr;
    std::size_t headers_ = 0;
    std::size_t trailers_ = 0;
};

}
