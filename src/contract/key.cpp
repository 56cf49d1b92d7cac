#include "contract/key.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

bool is_bare(char c);
template <bool (*is_member)(char)>
bool all_are(std::string_view text);
bool skip_string(std::string_view &rest);
bool skip_parameters(std::string_view &rest);
bool skip_bare_item(std::string_view &rest);
bool skip_number(std::string_view &rest);
bool is_name(char c);
bool is_token(char c);
bool is_base64(char c);
bool is_uuid(std::string_view key);
void hash_part(hasher &hash, const std::optional<std::string_view> &part);

}


std::optional<std::string_view>
parse_key_field(std::string_view value, std::span<char> out)
{
    value = trim_blanks(value);

    if (value.empty()) {
        return std::nullopt;
    }

    if (value.front() != '"') {
        if (!all_are<is_bare>(value)) {
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

    return unescape_quoted({value.data() + 1, quoted - 2}, out);
}


key_fault
check_key(std::string_view &key, const key_rules &rules, std::span<char> out)
{
    if (key.empty()) {
        return key_fault::empty;
    }

    if (key.size() < rules.min) {
        return key_fault::too_short;
    }

    if (key.size() > rules.max) {
        return key_fault::too_long;
    }

    if (!rules.uuid) {
        return all_are<is_printable>(key) ? key_fault::none
                                          : key_fault::not_printable;
    }

    if (!is_uuid(key) || out.size() < key.size()) {
        return key_fault::not_uuid;
    }

    std::transform(key.begin(), key.end(), out.begin(), to_lower);

    key = std::string_view(out.data(), key.size());
    return key_fault::none;
}


bool
record_name(hasher &hash, std::span<const std::string_view> scope,
            const route &where, std::string_view key, record_id &out,
            run_kind kind)
{
    hash.start(kind == run_kind::real ? "idempotency record 2"
                                      : "idempotency dry run 2");

    /* The count keeps a last scope value apart from what follows the scope. */
    hash.number(scope.size());

    for (std::string_view value : scope) {
        hash.field(value);
    }

    hash_part(hash, where.host);
    hash_part(hash, where.port);
    hash_part(hash, where.method);
    hash_part(hash, where.path);
    hash.field(key);

    digest whole;

    if (!hash.finish(whole)) {
        return false;
    }

    std::copy_n(whole.begin(), out.size(), out.begin());
    return true;
}


namespace {

bool
is_bare(char c)
{
    return is_printable(c) && c != ' ' && c != '"' && c != ',';
}


/* For std::all_of() the class would be called once for each character. */
template <bool (*is_member)(char)>
bool
all_are(std::string_view text)
{
    for (char c : text) {
        if (!is_member(c)) {
            return false;
        }
    }

    return true;
}


/*
 * RFC 8941, section 4.2.  Each skip function takes what it is named after
 * from the front of rest, or returns false where it is not there.
 */

bool
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


bool
skip_parameters(std::string_view &rest)
{
    while (skip(rest, ';')) {
        take_while(rest, [](char c) { return c == ' '; });

        if (rest.empty() || (!is_lower(rest.front()) && rest.front() != '*')) {
            return false;
        }

        take_while(rest, is_name);

        if (skip(rest, '=') && !skip_bare_item(rest)) {
            return false;
        }
    }

    return true;
}


bool
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
        take_while(rest, is_token);
        return true;
    }

    if (skip(rest, '?')) {
        return skip(rest, '0') || skip(rest, '1');
    }

    if (skip(rest, ':')) {
        take_while(rest, is_base64);
        return skip(rest, ':');
    }

    return false;
}


bool
skip_number(std::string_view &rest)
{
    skip(rest, '-');

    std::size_t whole = take_while(rest, is_digit).size();

    if (!skip(rest, '.')) {
        return whole >= 1 && whole <= 15;
    }

    std::size_t fraction = take_while(rest, is_digit).size();

    return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3;
}


bool
is_name(char c)
{
    return is_lower(c) || is_digit(c) || is_one_of(c, "_-.*");
}


bool
is_token(char c)
{
    return is_token_char(c) || c == ':' || c == '/';
}


bool
is_base64(char c)
{
    return is_alphanumeric(c) || is_one_of(c, "+/=");
}


bool
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


/* A part that is not there is not the same as one that is empty. */
void
hash_part(hasher &hash, const std::optional<std::string_view> &part)
{
    hash.number(part.has_value());

    if (part) {
        hash.field(*part);
    }
}

}

}
