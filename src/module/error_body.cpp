#include "module/error_body.h"

#include "contract/media_type.h"
#include "module/directives.h"

namespace idempotency {

namespace {

bool is_type(std::string_view type);
std::size_t part_length(std::string_view rest);
bool compile_parts(ngx_conf_t *cf, std::string_view text, ngx_array_t *parts);
bool is_json(ngx_conf_t *cf, std::span<const body_part> parts,
             std::size_t size);

}


bool
compile_error_body(ngx_conf_t *cf, ngx_str_t &type, ngx_str_t &text,
                   error_body &body)
{
    if (!is_type(view(type))) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid type \"%V\" in \"idempotency_error_body\" "
                           "directive, write e.g. \"application/json\"",
                           &type);
        return false;
    }

    std::array<char, max_boundary> unused;
    ngx_array_t *parts = ngx_array_create(cf->pool, 4, sizeof(body_part));

    if (parts == nullptr || !compile_parts(cf, view(text), parts)) {
        return false;
    }

    body.type = type;
    body.json = parse_media_type(view(type), unused).kind == media::json;
    body.parts = elements<body_part>(parts);

    if (body.json && !is_json(cf, body.parts, text.len)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the body of type \"%V\" in "
                           "\"idempotency_error_body\" directive is not JSON",
                           &type);
        return false;
    }

    return true;
}


const error_body *
find_error_body(const location_conf *conf, error_code code)
{
    const error_body *any = nullptr;

    for (const error_body &body : elements<error_body>(conf->error_bodies)) {
        if (body.code == code) {
            return &body;
        }

        if (body.code == error_code::none) {
            any = &body;
        }
    }

    return any;
}


ngx_str_t
render(ngx_http_request_t *r, const error_body &body)
{
    auto values = make_array<ngx_str_t>(r->pool, body.parts.size());
    std::size_t size = 0;

    if (values.data() == nullptr) {
        return ngx_null_string;
    }

    for (std::size_t i = 0; i < values.size(); i++) {

        if (ngx_http_complex_value(r, &body.parts[i].value, &values[i])
            != NGX_OK) {
            return ngx_null_string;
        }

        /* At most "\u00xx" for each byte. */
        size += values[i].len * (body.json && body.parts[i].variable ? 6 : 1);
    }

    auto text = make_array<u_char>(r->pool, size);

    if (text.data() == nullptr) {
        return ngx_null_string;
    }

    u_char *p = text.data();

    for (std::size_t i = 0; i < values.size(); i++) {
        p = body.json && body.parts[i].variable
                ? reinterpret_cast<u_char *>(
                    ngx_escape_json(p, values[i].data, values[i].len))
                : ngx_cpymem(p, values[i].data, values[i].len);
    }

    return {static_cast<std::size_t>(p - text.data()), text.data()};
}


namespace {

/* "type/subtype", and parameters if they are wanted. */
bool
is_type(std::string_view type)
{
    std::string_view essence = type.substr(0, type.find(';'));
    std::size_t slash = essence.find('/');

    return slash != std::string_view::npos
           && is_header_name(essence.substr(0, slash))
           && is_header_name(essence.substr(slash + 1))
           && std::all_of(type.begin(), type.end(),
                          [](char c) { return c >= 0x20 && c < 0x7f; });
}


/*
 * Each variable is compiled by itself, since nginx has no way to escape the
 * values inside a string with variables.
 */
bool
compile_parts(ngx_conf_t *cf, std::string_view text, ngx_array_t *parts)
{
    while (!text.empty()) {
        body_part part = {};
        ngx_str_t source = str(text.substr(0, part_length(text)));

        part.variable = text.front() == '$';

        if (!compile(cf, source, part.value) || !append(parts, part)) {
            return false;
        }

        text.remove_prefix(source.len);
    }

    return true;
}


/* "$name", "${name}", "$1", or the text up to the next of these. */
std::size_t
part_length(std::string_view rest)
{
    if (rest.front() != '$') {
        return std::min(rest.find('$'), rest.size());
    }

    if (rest.size() > 1 && rest[1] == '{') {
        return std::min(rest.find('}'), rest.size() - 1) + 1;
    }

    if (rest.size() > 1 && rest[1] >= '1' && rest[1] <= '9') {
        return 2;
    }

    auto end = std::find_if_not(rest.begin() + 1, rest.end(),
                                is_variable_name);

    return static_cast<std::size_t>(end - rest.begin());
}


/*
 * With a number for each variable: it may stand in a string or by itself.
 * They differ, so that two names of members do not become the same.
 */
bool
is_json(ngx_conf_t *cf, std::span<const body_part> parts, std::size_t size)
{
    auto text = make_array<u_char>(
        cf->temp_pool, size + parts.size() * NGX_INT_T_LEN + json_padding);

    if (text.data() == nullptr) {
        return false;
    }

    u_char *p = text.data();
    ngx_uint_t number = 1;

    for (const body_part &part : parts) {
        p = part.variable
                ? ngx_sprintf(p, "%ui", number++)
                : ngx_cpymem(p, part.value.value.data, part.value.value.len);
    }

    ngx_memzero(p, json_padding);

    json_parser parser;
    hasher unused;
    std::string_view body(reinterpret_cast<char *>(text.data()),
                          static_cast<std::size_t>(p - text.data()));

    unused.start("");

    return canonical_json(parser, body, {}, unused) != json_result::not_json;
}

}

}
