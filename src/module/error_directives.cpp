#include "module/directives.h"
#include "module/error_body.h"

namespace idempotency {

namespace {

#define ERROR_CODES                                                           \
    "key_missing, key_invalid, key_not_supported, scope_missing, "            \
    "first_sent_invalid, key_expired, in_progress, outcome_unknown, "         \
    "response_not_kept, key_reused and store_unavailable"

bool is_web_address(std::string_view url);
char *add_error_body(location_conf *conf, const error_body &body);

}


char *
set_error(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto values = arguments(cf);

    error_code code = error_by_name(view(values[0]));
    ngx_int_t status = ngx_atoi(values[1].data, values[1].len);

    if (code == error_code::none) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown error code \"%V\" in "
                           "\"idempotency_error\" directive, the codes "
                           "are " ERROR_CODES,
                           &values[0]);
        return failed;
    }

    if (status < 400 || status > 599) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid status \"%V\" in \"idempotency_error\" "
                           "directive, write a code from 400 to 599",
                           &values[1]);
        return failed;
    }

    if (open_list<error_status>(cf, conf->errors) == nullptr) {
        return failed;
    }

    for (const error_status &other : elements<error_status>(conf->errors)) {
        if (other.code == code) {
            return duplicate;
        }
    }

    error_status entry = {code, static_cast<ngx_uint_t>(status)};

    return append(conf->errors, entry) ? NGX_CONF_OK : failed;
}


char *
set_error_body(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto values = arguments(cf);

    if (values.size() < 3) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idempotency_error_body\" directive needs error "
                           "codes or \"any\", a type and a body, write e.g. "
                           "\"any application/json "
                           "'{\"error\":\"$idempotency_error\"}'\"");
        return failed;
    }

    auto codes = values.first(values.size() - 2);
    error_body body = {};

    for (const ngx_str_t &name : codes) {

        if (view(name) == "any" && codes.size() > 1) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"any\" cannot be combined with other codes "
                               "in \"idempotency_error_body\" directive");
            return failed;
        }

        if (view(name) != "any"
            && error_by_name(view(name)) == error_code::none) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "unknown error code \"%V\" in "
                               "\"idempotency_error_body\" directive, the "
                               "codes are " ERROR_CODES ", or \"any\" for all",
                               &name);
            return failed;
        }
    }

    if (open_list<error_body>(cf, conf->error_bodies) == nullptr
        || !compile_error_body(cf, values[values.size() - 2], values.back(),
                               body))
    {
        return failed;
    }

    for (const ngx_str_t &name : codes) {
        body.code = error_by_name(view(name));

        char *rv = add_error_body(conf, body);

        if (rv != NGX_CONF_OK) {
            return rv;
        }
    }

    return NGX_CONF_OK;
}


/* The URL goes into a JSON string and between "<" and ">" as it is. */
char *
set_docs(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    ngx_str_t &value = arguments(cf)[0];

    if (conf->docs.data != nullptr) {
        return duplicate;
    }

    constexpr std::string_view refused = "\"<>\\";
    bool valid = std::all_of(
        view(value).begin(), view(value).end(), [&](char c) {
            return c > 0x20 && c < 0x7f
                   && refused.find(c) == std::string_view::npos;
        });

    if (!valid || !is_web_address(view(value))) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid URL \"%V\" in \"idempotency_docs\" "
                           "directive, write e.g. "
                           "\"https://example.com/docs/idempotency\"",
                           &value);
        return failed;
    }

    conf->docs = value;
    return NGX_CONF_OK;
}


namespace {

/* With a host: anything else would be taken as relative to the request. */
bool
is_web_address(std::string_view url)
{
    constexpr std::string_view schemes[] = {"https://", "http://"};

    return std::any_of(
        std::begin(schemes), std::end(schemes), [&](std::string_view scheme) {
            return url.starts_with(scheme) && url.size() > scheme.size()
                   && url[scheme.size()] != '/';
        });
}


char *
add_error_body(location_conf *conf, const error_body &body)
{
    for (const error_body &other : elements<error_body>(conf->error_bodies)) {
        if (other.code == body.code) {
            return duplicate;
        }
    }

    return append(conf->error_bodies, body) ? NGX_CONF_OK : failed;
}

}

}
