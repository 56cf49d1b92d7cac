#include "module/directives.h"
#include "module/method.h"

namespace idempotency {

namespace {

constexpr std::size_t longest_key = 4096;
constexpr std::string_view json_prefix = "json:";

/* What a retry cannot have in common with its first request. */
constexpr std::string_view passing_variables[] = {
    "bytes_sent",          "connection",         "connection_requests",
    "connection_time",     "idempotency_token",  "msec",
    "proxy_protocol_port", "realip_remote_port", "remote_port",
    "request_id",          "request_time",       "time_iso8601",
    "time_local",
};


/* A variable in a text, without its "$" and braces. */
struct variable_use {
    std::string_view name;
    bool braced;
    std::string_view after; /* all that follows in the text */
};


/* The first variable in the text; an empty name: there is none. */
variable_use
first_variable(std::string_view text)
{
    std::size_t at = text.find('$');

    if (at == std::string_view::npos) {
        return {};
    }

    text.remove_prefix(at + 1);

    bool braced = text.starts_with('{');

    if (braced) {
        text.remove_prefix(1);
    }

    auto end = std::find_if_not(text.begin(), text.end(), is_variable_name);
    auto length = static_cast<std::size_t>(end - text.begin());

    return {text.substr(0, length), braced, text.substr(length)};
}


/* False, and told why, if the text has a variable that no retry repeats. */
bool
stays_the_same(ngx_conf_t *cf, const ngx_str_t &text)
{
    for (variable_use use = first_variable(view(text)); !use.name.empty();
         use = first_variable(use.after))
    {
        ngx_str_t name = str(use.name);

        if (std::ranges::find(passing_variables, view(name))
            == std::end(passing_variables))
        {
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"$%V\" in \"%V\" directive is different in a "
                           "retry, so no retry would be recognized: write a "
                           "value that the client sends again",
                           &name, &elements<ngx_str_t>(cf->args)[0]);
        return false;
    }

    return true;
}


/* "-api-key" behind "$http_x": how far it seems to be meant as the name. */
std::string_view
seeming_name(const variable_use &use)
{
    std::string_view after = use.after;
    bool joined = !use.braced && after.size() > 1
                  && (after[0] == '-' || after[0] == '.')
                  && is_variable_name(after[1]) && !is_digit(after[1]);

    if (!joined) {
        return {};
    }

    auto end = std::find_if_not(after.begin(), after.end(), [](char c) {
        return is_variable_name(c) || c == '-' || c == '.';
    });

    return after.substr(0, static_cast<std::size_t>(end - after.begin()));
}


void
tell_where_name_ends(ngx_conf_t *cf, const variable_use &use,
                     const ngx_str_t &rest)
{
    ngx_str_t name = str(use.name);
    ngx_str_t proper = format(cf->pool, name.len + rest.len, "%V%V", &name,
                              &rest);

    std::replace_if(
        proper.data, proper.data + proper.len,
        [](u_char c) { return c == '-' || c == '.'; }, u_char{'_'});

    ngx_conf_log_error(
        NGX_LOG_EMERG, cf, 0,
        "\"$%V%V\" in \"%V\" directive is the variable \"$%V\" and the text "
        "\"%V\": write \"$%V\" for a header, use \"map\" for a cookie or an "
        "argument of that name, or write \"${%V}%V\" if this is meant",
        &name, &rest, &elements<ngx_str_t>(cf->args)[0], &name, &rest, &proper,
        &name, &rest);
}


/* The text stays where it is: nginx keeps it as long as the pointer. */
bool
compile_pointer(ngx_conf_t *cf, std::string_view text, json_pointer &pointer)
{
    std::size_t count = 0;
    auto segments = make_array<std::string_view>(cf->pool,
                                                 count_segments(text));
    auto storage = make_array<char>(cf->pool, text.size());

    if (segments.data() == nullptr || storage.data() == nullptr
        || !parse_pointer(text, segments, storage, count))
    {
        return false;
    }

    pointer.segments = segments.first(count);
    return true;
}


char *
parse_pointer_source(ngx_conf_t *cf, ngx_str_t &text, key_source &source)
{
    std::string_view pointer = view(text).substr(json_prefix.size());

    if (compile_pointer(cf, pointer, source.pointer)
        && !has_wildcard(source.pointer))
    {
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid JSON pointer in source \"%V\" of "
                       "\"idempotency_key\" directive, write e.g. "
                       "\"json:/idempotency_key\"; \"*\" is not allowed",
                       &text);
    return failed;
}


char *
parse_key_source(ngx_conf_t *cf, ngx_str_t &text, key_source &source)
{
    constexpr std::string_view header = "header:";

    if (view(text).starts_with(json_prefix)) {
        return parse_pointer_source(cf, text, source);
    }

    if (!view(text).starts_with(header)) {

        if (ngx_http_script_variables_count(&text) == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid source \"%V\" in \"idempotency_key\" "
                               "directive, write \"header:NAME\", "
                               "\"json:/POINTER\" or a string with variables",
                               &text);
            return failed;
        }

        return names_are_whole(cf, text) && stays_the_same(cf, text)
                       && compile(cf, text, source.value)
                   ? NGX_CONF_OK
                   : failed;
    }

    std::string_view name = view(text).substr(header.size());

    if (!is_header_name(name)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid header name in source \"%V\" of "
                           "\"idempotency_key\" directive, write e.g. "
                           "\"header:Idempotency-Key\"",
                           &text);
        return failed;
    }

    source.header = str(name);
    ngx_strlow(source.header.data, source.header.data, source.header.len);

    return NGX_CONF_OK;
}


struct route_part {
    std::string_view name;
    ngx_uint_t bit;
};


constexpr route_part route_parts[] = {
    {"host", route_host},
    {"port", route_port},
    {"method", route_method},
    {"path", route_path},
};


/* 0: there is no such part. */
ngx_uint_t
part_by_name(std::string_view name)
{
    for (const route_part &part : route_parts) {
        if (part.name == name) {
            return part.bit;
        }
    }

    return 0;
}

}


bool
names_are_whole(ngx_conf_t *cf, const ngx_str_t &text)
{
    for (variable_use use = first_variable(view(text)); !use.name.empty();
         use = first_variable(use.after))
    {
        if (ngx_str_t rest = str(seeming_name(use)); rest.len != 0) {
            tell_where_name_ends(cf, use, rest);
            return false;
        }
    }

    return true;
}


/* "none" is an empty list, no directive no list. */
char *
set_scope(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto values = arguments(cf);

    if (conf->scope != NGX_CONF_UNSET_PTR) {
        return duplicate;
    }

    if (open_list<ngx_http_complex_value_t>(cf, conf->scope) == nullptr) {
        return failed;
    }

    if (values.size() == 1 && view(values[0]) == "none") {
        return NGX_CONF_OK;
    }

    if (values.size() > scope_limit) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too many values in \"idempotency_scope\" "
                           "directive, write at most %uz",
                           scope_limit);
        return failed;
    }

    for (ngx_str_t &text : values) {
        ngx_http_complex_value_t value = {};

        if (view(text) == "none") {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"none\" cannot be combined with other values "
                               "in \"idempotency_scope\" directive");
            return failed;
        }

        if (ngx_http_script_variables_count(&text) == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"idempotency_scope\" directive is "
                               "the same for every caller, write a variable "
                               "that identifies the caller, or \"none\"",
                               &text);
            return failed;
        }

        if (!names_are_whole(cf, text) || !stays_the_same(cf, text)
            || !compile(cf, text, value) || !append(conf->scope, value))
        {
            return failed;
        }
    }

    return NGX_CONF_OK;
}


char *
set_scope_route(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto values = arguments(cf);
    std::string_view first = view(values[0]);

    if (conf->scope_route != NGX_CONF_UNSET_UINT) {
        return duplicate;
    }

    if (values.size() == 1 && (first == "on" || first == "off")) {
        conf->scope_route = first == "on" ? whole_route : 0;
        return NGX_CONF_OK;
    }

    conf->scope_route = 0;

    for (ngx_str_t &value : values) {
        ngx_uint_t part = part_by_name(view(value));

        if (part == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in "
                               "\"idempotency_scope_route\" directive, write "
                               "\"on\", \"off\", or one or more of \"host\", "
                               "\"port\", \"method\", \"path\"",
                               &value);
            return failed;
        }

        if ((conf->scope_route & part) != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate part \"%V\" in "
                               "\"idempotency_scope_route\" directive",
                               &value);
            return failed;
        }

        conf->scope_route |= part;
    }

    return NGX_CONF_OK;
}


char *
set_key(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);

    if (conf->keys != NGX_CONF_UNSET_PTR) {
        return duplicate;
    }

    if (open_list<key_source>(cf, conf->keys) == nullptr) {
        return failed;
    }

    for (ngx_str_t &text : arguments(cf)) {
        key_source source = {};

        if (parse_key_source(cf, text, source) != NGX_CONF_OK
            || !append(conf->keys, source))
        {
            return failed;
        }
    }

    return NGX_CONF_OK;
}


char *
set_key_length(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    ngx_str_t &value = arguments(cf)[0];

    if (conf->key_min != NGX_CONF_UNSET_SIZE) {
        return duplicate;
    }

    std::size_t dash = view(value).find('-');

    if (dash != std::string_view::npos) {
        ngx_int_t min = ngx_atoi(value.data, dash);
        ngx_int_t max = ngx_atoi(value.data + dash + 1, value.len - dash - 1);

        if (min >= 1 && max >= min
            && max <= static_cast<ngx_int_t>(longest_key)) {
            conf->key_min = static_cast<std::size_t>(min);
            conf->key_max = static_cast<std::size_t>(max);
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"idempotency_key_length\" "
                       "directive, write \"MIN-MAX\" with 1 <= MIN <= MAX <= "
                       "%uz, e.g. \"1-255\"",
                       &value, longest_key);
    return failed;
}


char *
set_first_sent(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    ngx_str_t &text = arguments(cf)[0];

    if (conf->first_sent != NGX_CONF_UNSET_PTR) {
        return duplicate;
    }

    if (view(text) == "off") {
        conf->first_sent = nullptr;
        return NGX_CONF_OK;
    }

    if (ngx_http_script_variables_count(&text) == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"idempotency_first_sent\" directive "
                           "is the same for every request, write a variable, "
                           "e.g. \"$http_repeatability_first_sent\", or "
                           "\"off\"",
                           &text);
        return failed;
    }

    conf->first_sent = make<ngx_http_complex_value_t>(cf->pool);

    return conf->first_sent != nullptr && names_are_whole(cf, text)
                   && compile(cf, text, *conf->first_sent)
               ? NGX_CONF_OK
               : failed;
}


/* A text behind a variable would make every request pass unprotected. */
char *
set_bypass(ngx_conf_t *cf, ngx_command_t *cmd, void *data)
{
    for (ngx_str_t &text : arguments(cf)) {
        if (!names_are_whole(cf, text)) {
            return failed;
        }
    }

    return ngx_http_set_predicate_slot(cf, cmd, data);
}


char *
set_methods(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);

    if (conf->methods != NGX_CONF_UNSET_PTR) {
        return duplicate;
    }

    if (open_list<ngx_str_t>(cf, conf->methods) == nullptr) {
        return failed;
    }

    for (ngx_str_t &name : arguments(cf)) {
        bool valid = std::all_of(
            view(name).begin(), view(name).end(), [](char c) {
                return (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
            });

        if (view(name) == "CONNECT") {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"CONNECT\" in \"idempotency_methods\" "
                               "directive: what goes through a tunnel cannot "
                               "be replayed");
            return failed;
        }

        if (!valid || name.len == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid method \"%V\" in "
                               "\"idempotency_methods\" directive, write "
                               "e.g. \"POST PATCH\"",
                               &name);
            return failed;
        }

        if (!is_registered_method(view(name))) {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "\"%V\" in \"idempotency_methods\" directive "
                               "is not a registered method of HTTP: check how "
                               "it is spelled",
                               &name);
        }

        if (!append(conf->methods, name)) {
            return failed;
        }
    }

    return NGX_CONF_OK;
}


char *
set_pointers(ngx_conf_t *cf, ngx_command_t *cmd, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    bool include = cmd->offset == offsetof(location_conf, include);
    ngx_array_t *list = open_list<json_pointer>(cf, include ? conf->include
                                                            : conf->exclude);

    if (list == nullptr) {
        return failed;
    }

    (include ? conf->include_line : conf->exclude_line) = line_of(cf);

    for (ngx_str_t &text : arguments(cf)) {
        json_pointer pointer;

        if (!compile_pointer(cf, view(text), pointer)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid JSON pointer \"%V\" in \"%V\" "
                               "directive, write e.g. \"/meta/sent_at\" or "
                               "\"/items/*/id\"",
                               &text, &cmd->name);
            return failed;
        }

        if (list->nelts == max_pointers) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "too many pointers in \"%V\" directives, "
                               "write at most %uz",
                               &cmd->name, max_pointers);
            return failed;
        }

        if (!append(list, pointer)) {
            return failed;
        }
    }

    return NGX_CONF_OK;
}

}
