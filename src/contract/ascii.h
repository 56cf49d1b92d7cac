#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

namespace idempotency {

/*
 * Characters, and what headers and bodies are taken apart with.  The C
 * library's classes depend on the locale; a fingerprint must not.
 */

constexpr bool
is_one_of(char c, std::string_view set)
{
    return set.find(c) != set.npos;
}


constexpr bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}


constexpr bool
is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}


constexpr char
to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
}


constexpr bool
is_alpha(char c)
{
    return is_lower(to_lower(c));
}


constexpr bool
is_alphanumeric(char c)
{
    return is_digit(c) || is_alpha(c);
}


/* The value of a hexadecimal digit; negative: it is none. */
constexpr int
hex_value(char c)
{
    if (is_digit(c)) {
        return c - '0';
    }

    c = to_lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}


constexpr bool
is_hex(char c)
{
    return hex_value(c) >= 0;
}


constexpr bool
is_printable(char c)
{
    return c >= 0x20 && c <= 0x7e;
}


/* What a token of RFC 9110 is made of. */
constexpr bool
is_token_char(char c)
{
    return is_alphanumeric(c) || is_one_of(c, "!#$%&'*+-.^_`|~");
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


/* For both functions the second text is in lower case. */
constexpr bool
starts_with_but_for_case(std::string_view text, std::string_view lower)
{
    if (text.size() < lower.size()) {
        return false;
    }

    for (std::size_t i = 0; i < lower.size(); i++) {
        if (to_lower(text[i]) != lower[i]) {
            return false;
        }
    }

    return true;
}


constexpr bool
same_but_for_case(std::string_view text, std::string_view lower)
{
    return text.size() == lower.size()
           && starts_with_but_for_case(text, lower);
}


/* Takes c from the front of rest; false: it is not there. */
constexpr bool
skip(std::string_view &rest, char c)
{
    if (rest.empty() || rest.front() != c) {
        return false;
    }

    rest.remove_prefix(1);
    return true;
}


/* Takes from the front of rest as many as are of the class. */
template <typename Class>
constexpr std::string_view
take_while(std::string_view &rest, Class is_member)
{
    auto end = std::find_if_not(rest.begin(), rest.end(), is_member);
    auto taken = rest.substr(0, static_cast<std::size_t>(end - rest.begin()));

    rest.remove_prefix(taken.size());
    return taken;
}


/*
 * The content of a well-formed quoted string, without the backslashes of its
 * escapes: the content itself where it has none, else in out.  Nothing: out
 * is too short.
 */
constexpr std::optional<std::string_view>
unescape_quoted(std::string_view content, std::span<char> out)
{
    if (content.find('\\') == content.npos) {
        return content;
    }

    std::size_t size = 0;

    for (std::size_t i = 0; i < content.size(); i++) {
        if (size == out.size()) {
            return std::nullopt;
        }

        i += content[i] == '\\';
        out[size++] = content[i];
    }

    return std::string_view(out.data(), size);
}

}
