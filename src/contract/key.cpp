#include "contract/key.h"

#include <algorithm>

namespace idempotency {

/* The C library's classes depend on the locale; a key must not. */

static constexpr bool
is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}


static constexpr bool
is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}


static constexpr bool
is_alpha(char c)
{
    return is_lower(c) || is_upper(c);
}


static constexpr bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}


static constexpr bool
is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}


static constexpr bool
is_printable(char c)
{
    return c >= 0x20 && c <= 0x7e;
}


static constexpr bool
is_bare(char c)
{
    return is_printable(c) && c != ' ' && c != '"' && c != ',';
}


static bool
is_one_of(char c, std::string_view set)
{
    return set.find(c) != set.npos;
}


static bool
is_name(char c)
{
    return is_lower(c) || is_digit(c) || is_one_of(c, "_-.*");
}


static bool
is_token(char c)
{
    return is_alpha(c) || is_digit(c) || is_one_of(c, "!#$%&'*+-.^_`|~:/");
}


static bool
is_base64(char c)
{
    return is_alpha(c) || is_digit(c) || is_one_of(c, "+/=");
}


/*
 * RFC 8941, section 4.2.  Each skip function takes what it is named after
 * from the front of rest, or returns false where it is not there.
 */

static bool
skip(std::string_view &rest, char c)
{
    if (rest.empty() || rest.front() != c) {
        return false;
    }

    rest.remove_prefix(1);
    return true;
}


template <typename Class>
static std::size_t
skip_while(std::string_view &rest, Class is_member)
{
    auto end = std::find_if_not(rest.begin(), rest.end(), is_member);
    auto size = static_cast<std::size_t>(end - rest.begin());

    rest.remove_prefix(size);
    return size;
}


static bool
skip_string(std::string_view &rest)
{
    if (!skip(rest, '"')) {
        return false;
    }

    while (!rest.empty()) {
        char c = rest.front();

        rest.remove_prefix(1);

        if (c == '"') {
            return true;
        }

        if (c == '\\') {
            if (!skip(rest, '"') && !skip(rest, '\\')) {
                return false;
            }

        } else if (!is_printable(c)) {
            return false;
        }
    }

    return false;
}


static bool
skip_number(std::string_view &rest)
{
    skip(rest, '-');

    std::size_t whole = skip_while(rest, is_digit);

    if (!skip(rest, '.')) {
        return whole >= 1 && whole <= 15;
    }

    std::size_t fraction = skip_while(rest, is_digit);

    return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3;
}


static bool
skip_bare_item(std::string_view &rest)
{
    if (rest.empty()) {
        return false;
    }

    char c = rest.front();

    if (c == '"') {
        return skip_string(rest);
    }

    if (c == '-' || is_digit(c)) {
        return skip_number(rest);
    }

    if (c == '*' || is_alpha(c)) {
        skip_while(rest, is_token);
        return true;
    }

    if (skip(rest, '?')) {
        return skip(rest, '0') || skip(rest, '1');
    }

    if (skip(rest, ':')) {
        skip_while(rest, is_base64);
        return skip(rest, ':');
    }

    return false;
}


static bool
skip_parameters(std::string_view &rest)
{
    while (skip(rest, ';')) {
        skip_while(rest, [](char c) { return c == ' '; });

        if (rest.empty() || (!is_lower(rest.front()) && rest.front() != '*')) {
            return false;
        }

        skip_while(rest, is_name);

        if (skip(rest, '=') && !skip_bare_item(rest)) {
            return false;
        }
    }

    return true;
}


static std::string_view
trim(std::string_view value)
{
    while (!value.empty() && is_one_of(value.front(), " \t")) {
        value.remove_prefix(1);
    }

    while (!value.empty() && is_one_of(value.back(), " \t")) {
        value.remove_suffix(1);
    }

    return value;
}


/* The content of a well-formed string, between its quotes. */
static std::optional<std::string_view>
unescape(std::string_view content, std::span<char> out)
{
    if (content.find('\\') == content.npos) {
        return content;
    }

    if (out.size() < content.size()) {
        return std::nullopt;
    }

    std::size_t size = 0;

    for (std::size_t i = 0; i < content.size(); i++) {
        if (content[i] == '\\') {
            i++;
        }

        out[size++] = content[i];
    }

    return std::string_view(out.data(), size);
}


std::optional<std::string_view>
parse_key_field(std::string_view value, std::span<char> out)
{
    value = trim(value);

    if (value.empty()) {
        return std::nullopt;
    }

    if (value.front() != '"') {
        if (!std::all_of(value.begin(), value.end(), is_bare)) {
            return std::nullopt;
        }

        return value;
    }

    std::string_view rest = value;

    if (!skip_string(rest)) {
        return std::nullopt;
    }

    std::size_t quoted = value.size() - rest.size();

    if (!skip_parameters(rest) || !rest.empty()) {
        return std::nullopt;
    }

    return unescape({value.data() + 1, quoted - 2}, out);
}


static bool
is_uuid(std::string_view key)
{
    static constexpr std::string_view form =
        "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

    if (key.size() != form.size()) {
        return false;
    }

    for (std::size_t i = 0; i < form.size(); i++) {
        if (form[i] == '-' ? key[i] != '-' : !is_hex(key[i])) {
            return false;
        }
    }

    return true;
}


bool
check_key(std::string_view &key, const key_rules &rules, std::span<char> out)
{
    if (key.empty() || key.size() < rules.min || key.size() > rules.max) {
        return false;
    }

    if (!rules.uuid) {
        return std::all_of(key.begin(), key.end(), is_printable);
    }

    if (!is_uuid(key) || out.size() < key.size()) {
        return false;
    }

    for (std::size_t i = 0; i < key.size(); i++) {
        out[i] = is_upper(key[i]) ? static_cast<char>(key[i] | 0x20) : key[i];
    }

    key = std::string_view(out.data(), key.size());
    return true;
}


bool
record_name(hasher &hash, std::span<const std::string_view> scope,
            const route *where, std::string_view page, std::string_view key,
            digest &out)
{
    /* the count keeps a last scope value apart from what follows the scope */

    hash.start("idempotency record 1");
    hash.number(scope.size());

    for (std::string_view value : scope) {
        hash.field(value);
    }

    if (where != nullptr) {
        hash.field("route");
        hash.field(where->host);
        hash.field(where->method);
        hash.field(where->path);

    } else {
        hash.field("any");
    }

    hash.field(page);
    hash.field(key);

    return hash.finish(out);
}

}
