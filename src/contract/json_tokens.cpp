#include "contract/json_tokens.h"

#include "contract/ascii.h"

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <new>

namespace idempotency {

static_assert(json_padding >= simdjson::SIMDJSON_PADDING);
static_assert(json_padding >= wide);


struct json_scanner::stage {
    std::unique_ptr<simdjson::internal::dom_parser_implementation> parser;
};


namespace {

char *write_decimal(char *out, const char *at, const char *rest,
                    const char *end);
bool read_exponent(const char *at, const char *end, std::int64_t &exponent,
                   bool &fits);
char *write_digits(char *out, std::string_view whole,
                   std::string_view fraction, std::int64_t &exponent);
void trim_zeros(std::string_view &digits, std::int64_t &exponent);
char *write_exponent(char *out, std::int64_t exponent);
inline const char *skip_digits(const char *at, const char *end);
inline std::size_t leading_digits(const char *at);
char *unescape_code(char *out, const char *&at, const char *end);
int hex_unit(const char *at, const char *end);
char *write_utf8(char *out, unsigned code);
char short_escape(char c);

}


json_scanner::json_scanner() = default;
json_scanner::~json_scanner() = default;


json_result
json_scanner::scan(std::string_view body, json_tokens &tokens)
{
    if (body.empty() || body.size() > json_max_size) {
        return json_result::not_json;
    }

    if (stage_ == nullptr) {
        std::unique_ptr<stage> fresh(new (std::nothrow) stage);

        /* The depth is for the second stage. */
        if (fresh == nullptr
            || simdjson::get_active_implementation()
                       ->create_dom_parser_implementation(body.size(), 1,
                                                          fresh->parser)
                   != simdjson::SUCCESS)
        {
            return json_result::no_memory;
        }

        stage_ = std::move(fresh);
    }

    auto &parser = *stage_->parser;

    if (parser.capacity() < body.size()
        && parser.set_capacity(body.size()) != simdjson::SUCCESS)
    {
        return json_result::no_memory;
    }

    auto text = reinterpret_cast<const std::uint8_t *>(body.data());

    if (parser.stage1(text, body.size(), simdjson::stage1_mode::regular)
        != simdjson::SUCCESS)
    {
        return json_result::not_json;
    }

    std::uint32_t *begin = parser.structural_indexes.get();
    std::uint32_t count = parser.n_structural_indexes;

    begin[count] = static_cast<std::uint32_t>(body.size());
    tokens = {body.data(), begin, count};
    return json_result::ok;
}


std::size_t
json_scanner::memory() const
{
    return stage_ == nullptr
               ? 0
               : stage_->parser->capacity() * sizeof(std::uint32_t);
}


char *
write_number(char *out, const char *at, const char *end)
{
    const char *whole = at + (*at == '-' ? 1 : 0);
    const char *rest = skip_digits(whole, end);

    if (rest == whole || (*whole == '0' && rest - whole > 1)) {
        return nullptr;
    }

    if (rest != end) {
        return write_decimal(out, at, rest, end);
    }

    /* An integer, as most are: only zeros at its end need care. */
    if (*whole == '0') {
        *out++ = '0';
        *out++ = ';';
        return out;
    }

    while (rest[-1] == '0') {
        rest--;
    }

    auto size = static_cast<std::size_t>(rest - at);

    copy_wide(out, at, size);
    return write_exponent(out + size, end - rest);
}


namespace {

/* A number with a fraction or an exponent, which begin at rest. */
char *
write_decimal(char *out, const char *at, const char *rest, const char *end)
{
    const char *fraction = rest;
    std::int64_t exponent = 0;
    bool negative = *at == '-';
    bool fits = true;

    if (*rest == '.') {
        fraction = rest + 1;
    }

    const char *mark = skip_digits(fraction, end);

    if ((*rest == '.' && mark == fraction)
        || (mark != end
            && ((*mark != 'e' && *mark != 'E')
                || !read_exponent(mark + 1, end, exponent, fits))))
    {
        return nullptr;
    }

    char *digits = out + (negative ? 1 : 0);
    char *last = write_digits(digits, {at + (negative ? 1 : 0), rest},
                              {fraction, mark}, exponent);

    if (last == digits) {
        *out++ = '0';
        *out++ = ';';
        return out;
    }

    if (!fits) {
        return nullptr;
    }

    *out = negative ? '-' : *out;
    return write_exponent(last, exponent);
}


/* 18 digits: the sum with the number of any digits there are fits as well. */
bool
read_exponent(const char *at, const char *end, std::int64_t &exponent,
              bool &fits)
{
    bool negative = at != end && *at == '-';

    if (at != end && (*at == '-' || *at == '+')) {
        at++;
    }

    if (at == end || skip_digits(at, end) != end) {
        return false;
    }

    while (at != end && *at == '0') {
        at++;
    }

    fits = end - at <= 18;

    for (exponent = 0; fits && at != end; at++) {
        exponent = exponent * 10 + (*at - '0');
    }

    exponent = negative ? -exponent : exponent;
    return true;
}


/* All digits of a number without its leading and trailing zeros. */
char *
write_digits(char *out, std::string_view whole, std::string_view fraction,
             std::int64_t &exponent)
{
    exponent -= static_cast<std::int64_t>(fraction.size());
    trim_zeros(fraction, exponent);

    if (fraction.empty()) {
        trim_zeros(whole, exponent);

    } else if (whole == "0") {
        whole.remove_prefix(1);
        fraction.remove_prefix(fraction.find_first_not_of('0'));
    }

    copy_wide(out, whole.data(), whole.size());
    copy_wide(out + whole.size(), fraction.data(), fraction.size());

    return out + whole.size() + fraction.size();
}


void
trim_zeros(std::string_view &digits, std::int64_t &exponent)
{
    while (!digits.empty() && digits.back() == '0') {
        digits.remove_suffix(1);
        exponent++;
    }
}


char *
write_exponent(char *out, std::int64_t exponent)
{
    if (exponent != 0) {
        *out++ = 'e';

        if (exponent < 0) {
            *out++ = '-';
            exponent = -exponent;
        }

        if (exponent < 10) {
            *out++ = static_cast<char>('0' + exponent);

        } else {
            out = std::to_chars(out, out + 19, exponent).ptr;
        }
    }

    *out++ = ';';
    return out;
}


/* Reads up to seven bytes behind the end, which is in the text or padding. */
inline const char *
skip_digits(const char *at, const char *end)
{
    while (at < end) {
        std::size_t digits = leading_digits(at);

        at += digits;

        if (digits < 8) {
            break;
        }
    }

    return std::min(at, end);
}


/* How many of eight bytes are digits before the first that is none. */
inline std::size_t
leading_digits(const char *at)
{
    constexpr std::uint64_t ones = 0x0101010101010101;
    std::uint64_t bytes;

    std::memcpy(&bytes, at, sizeof(bytes));

    if constexpr (std::endian::native == std::endian::big) {
        bytes = __builtin_bswap64(bytes);
    }

    /* Digits become 0 to 9; with 118 more the others have the highest bit. */
    bytes ^= ones * '0';
    bytes = (((bytes & ones * 0x7f) + ones * 118) | bytes) & ones * 0x80;

    return static_cast<std::size_t>(std::countr_zero(bytes)) / 8;
}

}


char *
unescape_json(char *out, const char *at, const char *end)
{
    while (at != end) {
        auto left = static_cast<std::size_t>(end - at);
        auto stop = static_cast<const char *>(std::memchr(at, '\\', left));

        if (stop == nullptr) {
            return std::copy(at, end, out);
        }

        out = std::copy(at, stop, out);
        at = stop + 1;

        if (at == end) {
            return nullptr;
        }

        char c = *at++;

        if (c == 'u') {
            out = unescape_code(out, at, end);

            if (out == nullptr) {
                return nullptr;
            }

            continue;
        }

        c = short_escape(c);

        if (c == 0) {
            return nullptr;
        }

        *out++ = c;
    }

    return out;
}


namespace {

/* What follows "\u"; at is left behind it.  No half of a surrogate pair. */
char *
unescape_code(char *out, const char *&at, const char *end)
{
    int unit = hex_unit(at, end);

    if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff)) {
        return nullptr;
    }

    auto code = static_cast<unsigned>(unit);
    at += 4;

    if (unit >= 0xd800 && unit <= 0xdbff) {
        if (end - at < 6 || at[0] != '\\' || at[1] != 'u') {
            return nullptr;
        }

        int low = hex_unit(at + 2, end);

        if (low < 0xdc00 || low > 0xdfff) {
            return nullptr;
        }

        code = 0x10000 + ((code - 0xd800) << 10)
               + (static_cast<unsigned>(low) - 0xdc00);
        at += 6;
    }

    return write_utf8(out, code);
}


/* Four hexadecimal digits; negative: they are not. */
int
hex_unit(const char *at, const char *end)
{
    int unit = 0;

    if (end - at < 4) {
        return -1;
    }

    for (int i = 0; i < 4; i++) {
        int digit = hex_value(at[i]);

        if (digit < 0) {
            return -1;
        }

        unit = unit * 16 + digit;
    }

    return unit;
}


char *
write_utf8(char *out, unsigned code)
{
    auto put = [&](unsigned byte) { *out++ = static_cast<char>(byte); };

    if (code < 0x80) {
        put(code);
        return out;
    }

    if (code < 0x800) {
        put(0xc0 | (code >> 6));

    } else {
        if (code < 0x10000) {
            put(0xe0 | (code >> 12));

        } else {
            put(0xf0 | (code >> 18));
            put(0x80 | ((code >> 12) & 0x3f));
        }

        put(0x80 | ((code >> 6) & 0x3f));
    }

    put(0x80 | (code & 0x3f));
    return out;
}


char
short_escape(char c)
{
    switch (c) {
    case '"':
    case '\\':
    case '/': return c;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return 0;
    }
}

}

}
