#include "contract/media_type.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

struct parameter {
    std::string_view name;
    std::string_view value; /* a quoted one: between its quotes, escaped */
    bool quoted = false;
};


media kind_of(std::string_view type, std::string_view subtype);
bool is_json(std::string_view type, std::string_view subtype);
bool take_parameters(std::string_view rest, parameter &boundary);
bool take_parameter(std::string_view &rest, parameter &found);
bool take_quoted(std::string_view &rest, std::string_view &content);
bool is_unquoted_char(char c);
std::string_view boundary_of(const parameter &from, std::span<char> out);
bool is_boundary_char(char c);

}


media_type
parse_media_type(std::string_view content_type, std::span<char> out)
{
    std::string_view rest = trim_blanks(content_type);
    std::string_view type = take_while(rest, is_token_char);
    parameter boundary;

    if (type.empty() || !skip(rest, '/')) {
        return {};
    }

    std::string_view subtype = take_while(rest, is_token_char);

    if (subtype.empty() || !take_parameters(rest, boundary)) {
        return {};
    }

    media_type found = {kind_of(type, subtype), {}};

    if (found.kind == media::multipart) {
        found.boundary = boundary_of(boundary, out);

        if (found.boundary.empty()) {
            return {};
        }
    }

    return found;
}


bool
names_json(std::string_view content_type)
{
    std::string_view rest = trim_blanks(content_type);
    std::string_view type = take_while(rest, is_token_char);

    return skip(rest, '/') && is_json(type, take_while(rest, is_token_char));
}


bool
is_boundary(std::string_view text)
{
    return !text.empty() && text.size() <= max_boundary && text.back() != ' '
           && std::all_of(text.begin(), text.end(), is_boundary_char);
}


namespace {

media
kind_of(std::string_view type, std::string_view subtype)
{
    if (is_json(type, subtype)) {
        return media::json;
    }

    if (same_but_for_case(type, "application")
        && same_but_for_case(subtype, "x-www-form-urlencoded"))
    {
        return media::form;
    }

    if (same_but_for_case(type, "multipart")
        && same_but_for_case(subtype, "form-data"))
    {
        return media::multipart;
    }

    return media::other;
}


/* The x-amz types are those of AWS's JSON protocols. */
bool
is_json(std::string_view type, std::string_view subtype)
{
    constexpr std::string_view suffix = "+json";

    if (subtype.size() > suffix.size()
        && same_but_for_case(subtype.substr(subtype.size() - suffix.size()),
                             suffix))
    {
        return !type.empty();
    }

    if (same_but_for_case(type, "text")) {
        return same_but_for_case(subtype, "json");
    }

    return same_but_for_case(type, "application")
           && (same_but_for_case(subtype, "json")
               || same_but_for_case(subtype, "x-amz-json-1.0")
               || same_but_for_case(subtype, "x-amz-json-1.1"));
}


/*
 * The parameters after the subtype.  An empty one is none, RFC 9110, section
 * 5.6.6.
 */
bool
take_parameters(std::string_view rest, parameter &boundary)
{
    while (!rest.empty()) {
        parameter next;

        take_while(rest, is_blank);

        if (!skip(rest, ';')) {
            return false;
        }

        take_while(rest, is_blank);

        if (rest.empty() || rest.front() == ';') {
            continue;
        }

        if (!take_parameter(rest, next)) {
            return false;
        }

        if (same_but_for_case(next.name, "boundary")) {
            if (!boundary.name.empty()) {
                return false;
            }

            boundary = next;
        }
    }

    return true;
}


bool
take_parameter(std::string_view &rest, parameter &found)
{
    found.name = take_while(rest, is_token_char);

    if (found.name.empty() || !skip(rest, '=')) {
        return false;
    }

    found.quoted = skip(rest, '"');

    if (found.quoted) {
        return take_quoted(rest, found.value);
    }

    found.value = take_while(rest, is_unquoted_char);
    return !found.value.empty();
}


/* After the first quote.  The content stays as it is, with its escapes. */
bool
take_quoted(std::string_view &rest, std::string_view &content)
{
    for (std::size_t i = 0; i < rest.size(); i++) {
        if (rest[i] == '"') {
            content = rest.substr(0, i);
            rest.remove_prefix(i + 1);
            return true;
        }

        if (rest[i] == '\\' && ++i == rest.size()) {
            return false;
        }

        if (!is_field_char(rest[i])) {
            return false;
        }
    }

    return false;
}


/*
 * Java's "----=_Part_0_123.456" is sent without quotes by some: of the
 * characters that may be in a boundary but not in a token, those are let
 * through that start nothing else.
 */
bool
is_unquoted_char(char c)
{
    return is_token_char(c) || is_one_of(c, "/:=?");
}


/* Empty: it is no boundary, or out is too short. */
std::string_view
boundary_of(const parameter &from, std::span<char> out)
{
    auto value = from.quoted ? unescape_quoted(from.value, out) : from.value;

    return value && is_boundary(*value) ? *value : std::string_view();
}


bool
is_boundary_char(char c)
{
    return is_alphanumeric(c) || is_one_of(c, "'()+_,-./:=? ");
}

}

}
