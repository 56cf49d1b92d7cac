#pragma once

#include <string_view>

namespace idempotency {

/* The C library's classes depend on the locale; a fingerprint must not. */

constexpr char
to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
}


constexpr bool
is_alphanumeric(char c)
{
    return (c >= '0' && c <= '9')
           || (to_lower(c) >= 'a' && to_lower(c) <= 'z');
}


/* What a token of RFC 9110 is made of. */
constexpr bool
is_token_char(char c)
{
    constexpr std::string_view others = "!#$%&'*+-.^_`|~";

    return is_alphanumeric(c) || others.find(c) != others.npos;
}


/* What a field's value is made of, RFC 9110: no control but the tab. */
constexpr bool
is_field_char(char c)
{
    auto byte = static_cast<unsigned char>(c);

    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
}


constexpr bool
is_blank(char c)
{
    return c == ' ' || c == '\t';
}


constexpr std::string_view
trim_blanks(std::string_view text)
{
    while (!text.empty() && is_blank(text.front())) {
        text.remove_prefix(1);
    }

    while (!text.empty() && is_blank(text.back())) {
        text.remove_suffix(1);
    }

    return text;
}


/* The second is in lower case. */
constexpr bool
same_but_for_case(std::string_view text, std::string_view lower)
{
    if (text.size() != lower.size()) {
        return false;
    }

    for (std::size_t i = 0; i < text.size(); i++) {
        if (to_lower(text[i]) != lower[i]) {
            return false;
        }
    }

    return true;
}

}
