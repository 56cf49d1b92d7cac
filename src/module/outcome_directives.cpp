#include "module/directives.h"

namespace idempotency {

namespace {

bool is_status(std::string_view text);
void warn_without_unit(ngx_conf_t *cf, const ngx_str_t &time);
ttl_rule parse_codes(const ngx_str_t &text);
char *add_ttl_rule(ngx_conf_t *cf, ngx_array_t *rules, const ngx_str_t &text,
                   std::uint64_t ttl);

}


char *
set_ttl(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto values = arguments(cf);
    ngx_str_t &time = values.back();
    std::uint64_t ttl = forever;

    if (is_status(view(time))) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"idempotency_ttl\" directive can be a "
                           "status or a number of seconds: write e.g. \"%V "
                           "24h\" or \"%Vs\"",
                           &time, &time, &time);
        return failed;
    }

    if (view(time) != "forever") {
        ngx_int_t parsed = ngx_parse_time(&time, 0);

        if (parsed == NGX_ERROR) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid time \"%V\" in \"idempotency_ttl\" "
                               "directive, write e.g. \"24h\", \"60s\", \"0\" "
                               "or \"forever\"",
                               &time);
            return failed;
        }

        ttl = static_cast<std::uint64_t>(parsed);
        warn_without_unit(cf, time);
    }

    if (open_list<ttl_rule>(cf, conf->ttl) == nullptr) {
        return failed;
    }

    ngx_str_t usual[] = {ngx_string("2xx"), ngx_string("3xx")};
    auto codes = values.first(values.size() - 1);

    for (const ngx_str_t &text : codes.empty() ? std::span(usual) : codes) {
        if (add_ttl_rule(cf, conf->ttl, text, ttl) != NGX_CONF_OK) {
            return failed;
        }
    }

    return NGX_CONF_OK;
}


char *
set_unknown_status(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto values = arguments(cf);

    if (conf->unknown_status != NGX_CONF_UNSET_PTR) {
        return duplicate;
    }

    if (open_list<std::uint16_t>(cf, conf->unknown_status) == nullptr) {
        return failed;
    }

    if (values.size() == 1 && view(values[0]) == "off") {
        return NGX_CONF_OK;
    }

    for (ngx_str_t &text : values) {
        ngx_int_t code = ngx_atoi(text.data, text.len);

        if (code < 200 || code > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\" in "
                               "\"idempotency_unknown_status\" directive, "
                               "write codes from 200 to 599, or \"off\"",
                               &text);
            return failed;
        }

        if (!append(conf->unknown_status, static_cast<std::uint16_t>(code))) {
            return failed;
        }
    }

    return NGX_CONF_OK;
}


namespace {

bool
is_status(std::string_view text)
{
    return text.size() == 3 && text[0] >= '1' && text[0] <= '5'
           && std::all_of(text.begin(), text.end(), is_digit);
}


/* "24" is surely meant as hours. */
void
warn_without_unit(ngx_conf_t *cf, const ngx_str_t &time)
{
    std::string_view text = view(time);

    if (text == "0" || !std::all_of(text.begin(), text.end(), is_digit)) {
        return;
    }

    ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                       "\"%V\" in \"idempotency_ttl\" directive is a number "
                       "of seconds: write \"%Vh\" for hours, or \"%Vs\"",
                       &time, &time, &time);
}


char *
add_ttl_rule(ngx_conf_t *cf, ngx_array_t *rules, const ngx_str_t &text,
             std::uint64_t ttl)
{
    ttl_rule rule = parse_codes(text);

    if (rule.first == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid status \"%V\" in \"idempotency_ttl\" "
                           "directive, write a code from 200 to 599, a class "
                           "such as \"4xx\", or \"any\"",
                           &text);
        return failed;
    }

    for (const ttl_rule &other : elements<ttl_rule>(rules)) {
        if (other.first == rule.first && other.last == rule.last) {
            ngx_conf_log_error(
                NGX_LOG_EMERG, cf, 0,
                "duplicate status \"%V\" in \"idempotency_ttl\" directives",
                &text);
            return failed;
        }
    }

    rule.ttl = ttl;

    return append(rules, rule) ? NGX_CONF_OK : failed;
}


/* "404", "4xx", "any"; first is 0 if it is none of them. */
ttl_rule
parse_codes(const ngx_str_t &text)
{
    if (view(text) == "any") {
        return {100, 999, 0};
    }

    if (text.len != 3) {
        return {};
    }

    if (text.data[0] >= '2' && text.data[0] <= '5'
        && view(text).substr(1) == "xx") {
        auto first = static_cast<std::uint16_t>((text.data[0] - '0') * 100);
        return {first, static_cast<std::uint16_t>(first + 99), 0};
    }

    ngx_int_t code = ngx_atoi(text.data, text.len);

    if (code < 200 || code > 599) {
        return {};
    }

    return {static_cast<std::uint16_t>(code), static_cast<std::uint16_t>(code),
            0};
}

}

}
