#include "module/status.h"

#include "contract/accept.h"
#include "module/admin.h"
#include "module/directives.h"
#include "module/headers.h"
#include "module/status_page.h"
#include "module/status_report.h"

namespace idempotency {

namespace {

ngx_int_t send_status(ngx_http_request_t *r);
status_format format_for(ngx_http_request_t *r);
status_format wanted_by(std::string_view accept);

}


void
start_status(main_conf &main)
{
    for (counters *zone : elements<counters *>(&main.zones)) {
        zone->start_worker();
    }

    for (counters *counts : elements<counters *>(&main.counts)) {
        counts->start_worker();
    }
}


char *
set_status(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    auto *core = static_cast<ngx_http_core_loc_conf_t *>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));

    constexpr std::pair<std::string_view, status_format> words[] = {
        {"html", status_format::html},
        {"json", status_format::json},
        {"prometheus", status_format::prometheus},
    };

    if (conf->status != NGX_CONF_UNSET_UINT) {
        return duplicate;
    }

    conf->status = static_cast<ngx_uint_t>(status_format::by_accept);

    for (ngx_str_t &value : arguments(cf)) {
        const auto *known = std::find_if(
            std::begin(words), std::end(words),
            [&](const auto &word) { return word.first == view(value); });

        if (known == std::end(words)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"idempotency_status\""
                               " directive, it must be \"html\" or \"json\" "
                               "or \"prometheus\", or left out",
                               &value);
            return failed;
        }

        conf->status = static_cast<ngx_uint_t>(known->second);
    }

    core->handler = send_status;

    return NGX_CONF_OK;
}


char *
set_status_zone(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    ngx_str_t &value = arguments(cf)[0];

    if (conf->zone_name.data != nullptr) {
        return duplicate;
    }

    if (value.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "empty name in \"idempotency_status_zone\" "
                           "directive, write e.g. \"payments\"");
        return failed;
    }

    conf->zone_name = value;
    return NGX_CONF_OK;
}


char *
merge_status_zone(ngx_conf_t *cf, location_conf *prev, location_conf *conf)
{
    /* What is about protection is itself not protected. */
    if (conf->status != NGX_CONF_UNSET_UINT || conf->admin) {
        conf->store = nullptr;
    }

    ngx_conf_merge_str_value(conf->zone_name, prev->zone_name, "");

    if (conf->store == nullptr) {
        return NGX_CONF_OK;
    }

    auto *server = static_cast<ngx_http_core_srv_conf_t *>(
        ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module));
    ngx_str_t name = conf->zone_name.len != 0 ? conf->zone_name
                                              : server->server_name;
    main_conf *main = main_of(cf);

    /* As nginx users write it for a server without a name. */
    if (name.len == 0) {
        ngx_str_set(&name, "_");
    }

    for (counters *known : elements<counters *>(&main->zones)) {
        if (view(known->name()) == view(name)) {
            conf->zone = known;
            return NGX_CONF_OK;
        }
    }

    conf->zone = make<counters>(cf->pool, counters::kind::zone, name);

    return conf->zone != nullptr && append(&main->zones, conf->zone)
               ? NGX_CONF_OK
               : failed;
}


namespace {

ngx_int_t
send_status(ngx_http_request_t *r)
{
    if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    ngx_int_t rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(r, ngx_http_idempotency_module));
    text_output out(r->pool);
    std::string_view type = "application/json";

    switch (format_for(r)) {

    case status_format::html: return send_status_page(r);

    case status_format::prometheus:
        write_prometheus(*main, r->pool, out);
        type = "text/plain; version=0.0.4; charset=utf-8";
        break;

    default: write_json(*main, admin_path(r), r->pool, out);
    }

    ngx_chain_t *body = out.finish();

    return send_whole(r, type, body, out.size());
}


/* The page asks for its numbers at its own address. */
status_format
format_for(ngx_http_request_t *r)
{
    auto said = static_cast<status_format>(location(r)->status);

    if (said == status_format::json || said == status_format::prometheus) {
        return said;
    }

    ngx_str_t accept = ngx_string("");

    find_header(r, ngx_string("accept"), accept);

    status_format wanted = wanted_by(view(accept));

    if (said == status_format::html
        && (wanted != status_format::json || accept.len == 0
            || quality_of(view(accept), "text/html") != 0))
    {
        return said;
    }

    return wanted;
}


/* Who does not care gets JSON. */
status_format
wanted_by(std::string_view accept)
{
    constexpr std::pair<std::string_view, status_format> offers[] = {
        {"application/json", status_format::json},
        {"text/plain", status_format::prometheus},
        {"application/openmetrics-text", status_format::prometheus},
        {"text/html", status_format::html},
    };

    status_format best = status_format::json;
    unsigned quality = 0;

    for (const auto &offer : offers) {
        unsigned wanted = quality_of(accept, offer.first);

        if (wanted > quality) {
            quality = wanted;
            best = offer.second;
        }
    }

    return best;
}

}

}
