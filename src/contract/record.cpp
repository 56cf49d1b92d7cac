#include "contract/record.h"

#include "contract/ascii.h"
#include "contract/little_endian.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace idempotency {

namespace {

constexpr std::uint8_t version = 1;
constexpr std::uint8_t flag_own_location = 1;
constexpr std::uint8_t flag_place = 2;
constexpr std::uint8_t flag_no_server = 4;

/* Where the parts of the fixed head lie. */
constexpr std::size_t at_version = 0;
constexpr std::size_t at_flags = 1;
constexpr std::size_t at_status = 2;
constexpr std::size_t at_plain_type = 4;
constexpr std::size_t at_headers = 6;
constexpr std::size_t at_trailers = 8;
constexpr std::size_t at_status_line = 10;
constexpr std::size_t at_content_type = 12;
constexpr std::size_t at_charset = 14;
constexpr std::size_t at_content_length = 16;
constexpr std::size_t at_last_modified = 24;
constexpr std::size_t at_body = 32;
constexpr std::size_t head_size = 40;

constexpr std::size_t field_head_size = 6;

constexpr std::string_view never_kept[] = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-connection",
    "te",         "trailer",    "transfer-encoding",  "upgrade",
    "date",       "server",     "content-length",
};

/* The last second of the year 9999: nginx has room for four digits. */
constexpr std::int64_t last_date = 253402300799;


bool is_line(std::string_view text);
bool is_name(std::string_view text);
bool is_status_line(std::string_view text, unsigned status);
bool has_right_length(const response_head &head, std::uint64_t body,
                      response_to what);
bool take_head(std::span<const std::uint8_t> &rest, response_head &head);
bool take_place(std::span<const std::uint8_t> &rest, response_head &head);
bool take_fields(std::span<const std::uint8_t> &rest, std::size_t count);
bool take_text(std::span<const std::uint8_t> &rest, std::size_t size,
               std::string_view &text);
bool take(std::span<const std::uint8_t> &rest, std::uint64_t size,
          std::span<const std::uint8_t> &taken);
bool take_field(const std::uint8_t *&in, std::size_t &left, field &f);
void put_u16(std::uint8_t *out, std::size_t value);
std::uint8_t *put_text(std::uint8_t *out, std::string_view text);
std::string_view text_at(const std::uint8_t *in, std::size_t size);

}


bool
encodable(const response_head &head)
{
    return head.status_line.size() <= UINT16_MAX
           && head.content_type.size() <= UINT16_MAX
           && head.content_type_length <= head.content_type.size()
           && head.charset.size() <= UINT16_MAX
           && head.place.size() <= UINT16_MAX;
}


bool
encodable(const field &f)
{
    std::uint64_t value_size = f.value.size();

    return f.name.size() <= UINT16_MAX && value_size <= UINT32_MAX;
}


bool
sendable(const response_head &head)
{
    return head.status >= 200 && head.status <= 999
           && is_status_line(head.status_line, head.status)
           && is_line(head.content_type) && is_line(head.charset)
           && head.content_length >= -1 && head.last_modified >= -1
           && head.last_modified <= last_date;
}


bool
sendable(const field &f)
{
    return is_name(f.name) && is_line(f.value);
}


bool
is_never_kept(std::string_view name)
{
    return std::any_of(std::begin(never_kept), std::end(never_kept),
                       [&](std::string_view never) {
                           return same_but_for_case(name, never);
                       });
}


std::size_t
encoded_size(const response_head &head)
{
    std::size_t place = head.place.empty()
                            ? 0
                            : sizeof(std::uint16_t) + head.place.size();

    return head_size + head.status_line.size() + head.content_type.size()
           + head.charset.size() + place;
}


std::size_t
encoded_size(const field &f)
{
    return field_head_size + f.name.size() + f.value.size();
}


std::uint8_t *
encode(std::uint8_t *out, const response_head &head, std::size_t header_fields)
{
    out[at_version] = version;
    out[at_flags] = static_cast<std::uint8_t>(
        (head.own_location ? flag_own_location : 0)
        | (head.place.empty() ? 0 : flag_place)
        | (head.no_server ? flag_no_server : 0));

    put_u16(out + at_status, head.status);
    put_u16(out + at_plain_type, head.content_type_length);
    put_u16(out + at_headers, header_fields);
    put_u16(out + at_status_line, head.status_line.size());
    put_u16(out + at_content_type, head.content_type.size());
    put_u16(out + at_charset, head.charset.size());

    put_little_endian(out + at_content_length, head.content_length);
    put_little_endian(out + at_last_modified, head.last_modified);

    set_body(out, 0, 0);

    out = put_text(out + head_size, head.status_line);
    out = put_text(out, head.content_type);
    out = put_text(out, head.charset);

    if (head.place.empty()) {
        return out;
    }

    out = put_little_endian(out,
                            static_cast<std::uint16_t>(head.place.size()));
    return put_text(out, head.place);
}


std::uint8_t *
encode(std::uint8_t *out, const field &f)
{
    out = put_little_endian(out, static_cast<std::uint16_t>(f.name.size()));
    out = put_little_endian(out, static_cast<std::uint32_t>(f.value.size()));
    out = put_text(out, f.name);
    return put_text(out, f.value);
}


void
set_body(std::uint8_t *head, std::uint64_t body_length,
         std::size_t trailer_fields)
{
    put_u16(head + at_trailers, trailer_fields);
    put_little_endian(head + at_body, body_length);
}


bool
response_reader::open(std::span<const std::uint8_t> bytes, response_to what)
{
    const std::uint8_t *in = bytes.data();
    response_reader read;

    /* What was opened before must not be found after a failure. */
    *this = response_reader();

    if (!take_head(bytes, read.head_) || !sendable(read.head_)) {
        return false;
    }

    read.headers_ = get_little_endian<std::uint16_t>(in + at_headers);
    read.trailers_ = get_little_endian<std::uint16_t>(in + at_trailers);

    read.header_ = bytes.data();

    if (!take_fields(bytes, read.headers_)
        || !take(bytes, get_little_endian<std::uint64_t>(in + at_body),
                 read.body_)
        || !has_right_length(read.head_, read.body_.size(), what))
    {
        return false;
    }

    read.trailer_ = bytes.data();

    if (!take_fields(bytes, read.trailers_) || !bytes.empty()) {
        return false;
    }

    *this = read;
    return true;
}


bool
response_reader::next_header(field &f)
{
    return take_field(header_, headers_, f);
}


bool
response_reader::next_trailer(field &f)
{
    return take_field(trailer_, trailers_, f);
}


namespace {

/*
 * Whether it can be a part of a header line.  nginx passes on other control
 * characters of an application, so they are not refused here.
 */
bool
is_line(std::string_view text)
{
    return std::none_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) <= '\r'
               && (c == '\r' || c == '\n' || c == '\0');
    });
}


/* As strict as nginx is with an upstream, and no stricter. */
bool
is_name(std::string_view text)
{
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) > ' ' && c != '\x7f' && c != ':';
    });
}


/* Empty, or the status in digits and a reason: "201 Created", "403.1 No". */
bool
is_status_line(std::string_view text, unsigned status)
{
    if (text.empty()) {
        return true;
    }

    auto digit = [&](std::size_t i) {
        return static_cast<unsigned>(text[i] - '0');
    };

    return text.size() >= 3 && is_digit(text[0]) && is_digit(text[1])
           && is_digit(text[2])
           && digit(0) * 100 + digit(1) * 10 + digit(2) == status
           && (text.size() == 3 || !is_digit(text[3])) && is_line(text);
}


/*
 * A client takes what is too much, or what it misses, for a part of the next
 * response on the connection.
 */
bool
has_right_length(const response_head &head, std::uint64_t body,
                 response_to what)
{
    bool bodiless = what == response_to::head || has_no_body(head.status);

    if (bodiless) {
        return body == 0;
    }

    return head.content_length < 0
           || static_cast<std::uint64_t>(head.content_length) == body;
}


bool
take_head(std::span<const std::uint8_t> &rest, response_head &head)
{
    const std::uint8_t *in = rest.data();
    std::span<const std::uint8_t> fixed;

    /* An unknown flag might change what the rest means. */
    if (!take(rest, head_size, fixed) || in[at_version] != version
        || (in[at_flags] & ~(flag_own_location | flag_place | flag_no_server))
               != 0)
    {
        return false;
    }

    head.status = get_little_endian<std::uint16_t>(in + at_status);
    head.content_type_length = get_little_endian<std::uint16_t>(
        in + at_plain_type);
    head.own_location = (in[at_flags] & flag_own_location) != 0;
    head.no_server = (in[at_flags] & flag_no_server) != 0;
    head.content_length = get_little_endian<std::int64_t>(in
                                                          + at_content_length);
    head.last_modified = get_little_endian<std::int64_t>(in
                                                         + at_last_modified);

    return take_text(rest,
                     get_little_endian<std::uint16_t>(in + at_status_line),
                     head.status_line)
           && take_text(rest,
                        get_little_endian<std::uint16_t>(in + at_content_type),
                        head.content_type)
           && take_text(rest,
                        get_little_endian<std::uint16_t>(in + at_charset),
                        head.charset)
           && head.content_type_length <= head.content_type.size()
           && ((in[at_flags] & flag_place) == 0 || take_place(rest, head));
}


/* An empty one would be written without the flag. */
bool
take_place(std::span<const std::uint8_t> &rest, response_head &head)
{
    std::span<const std::uint8_t> length;

    return take(rest, sizeof(std::uint16_t), length)
           && take_text(rest, get_little_endian<std::uint16_t>(length.data()),
                        head.place)
           && !head.place.empty();
}


bool
take_fields(std::span<const std::uint8_t> &rest, std::size_t count)
{
    std::span<const std::uint8_t> taken;

    for (std::size_t i = 0; i < count; i++) {
        if (!take(rest, field_head_size, taken)) {
            return false;
        }

        std::uint64_t name = get_little_endian<std::uint16_t>(taken.data());
        std::uint64_t value = get_little_endian<std::uint32_t>(taken.data()
                                                               + 2);

        if (!take(rest, name + value, taken)
            || !sendable(field{text_at(taken.data(), name),
                               text_at(taken.data() + name, value)}))
        {
            return false;
        }
    }

    return true;
}


bool
take_text(std::span<const std::uint8_t> &rest, std::size_t size,
          std::string_view &text)
{
    std::span<const std::uint8_t> taken;

    if (!take(rest, size, taken)) {
        return false;
    }

    text = text_at(taken.data(), taken.size());
    return true;
}


/* Takes the first size bytes away; false: there are not as many. */
bool
take(std::span<const std::uint8_t> &rest, std::uint64_t size,
     std::span<const std::uint8_t> &taken)
{
    if (size > rest.size()) {
        return false;
    }

    taken = rest.first(static_cast<std::size_t>(size));
    rest = rest.subspan(taken.size());
    return true;
}


bool
take_field(const std::uint8_t *&in, std::size_t &left, field &f)
{
    if (left == 0) {
        return false;
    }

    std::size_t name = get_little_endian<std::uint16_t>(in);
    std::size_t value = get_little_endian<std::uint32_t>(in + 2);

    in += field_head_size;
    f.name = text_at(in, name);
    f.value = text_at(in + name, value);
    in += name + value;
    left--;
    return true;
}


void
put_u16(std::uint8_t *out, std::size_t value)
{
    put_little_endian(out, static_cast<std::uint16_t>(value));
}


std::uint8_t *
put_text(std::uint8_t *out, std::string_view text)
{
    /* An empty view may point nowhere, which memcpy() must not be given. */
    if (!text.empty()) {
        std::memcpy(out, text.data(), text.size());
    }

    return out + text.size();
}


std::string_view
text_at(const std::uint8_t *in, std::size_t size)
{
    return {reinterpret_cast<const char *>(in), size};
}

}

}
