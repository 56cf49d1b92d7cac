#include "module/method.h"

#include "module/context.h"

#include <algorithm>

namespace idempotency {

namespace {

/* The registry of HTTP methods at IANA, but for CONNECT. */
constexpr std::string_view registered_methods[] = {
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
};


bool is_safe_for_upstream(ngx_http_request_t *r);

}


bool
is_registered_method(std::string_view name)
{
    return std::ranges::find(registered_methods, name)
           != std::end(registered_methods);
}


bool
is_safe_method(ngx_http_request_t *r)
{
    return (r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)) != 0
           && is_safe_for_upstream(r);
}


bool
has_become_get(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return is_safe_method(r) && view(r->method_name) != view(ctx.method);
}


void
find_proxy_method(ngx_conf_t *cf, main_conf *main)
{
    ngx_module_t *proxy = find_http_module(cf->cycle, "ngx_http_proxy_module");

    if (proxy == nullptr) {
        return;
    }

    for (ngx_command_t *c = proxy->commands; c->name.len != 0; c++) {
        if (view(c->name) == "proxy_method"
            && c->set == ngx_http_set_complex_value_slot)
        {
            main->proxy_method = c;
            main->proxy_index = proxy->ctx_index;
        }
    }
}


namespace {

bool
is_safe_for_upstream(ngx_http_request_t *r)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(r, ngx_http_idempotency_module));

    if (main->proxy_method == nullptr) {
        return true;
    }

    auto *value = *reinterpret_cast<ngx_http_complex_value_t **>(
        static_cast<char *>(r->loc_conf[main->proxy_index])
        + main->proxy_method->offset);
    ngx_str_t method;

    if (value == nullptr) {
        return true;
    }

    if (ngx_http_complex_value(r, value, &method) != NGX_OK) {
        return false;
    }

    return view(method) == "GET" || view(method) == "HEAD";
}

}

}
