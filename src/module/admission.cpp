#include "module/admission.h"

#include "module/config.h"

#include <algorithm>

namespace idempotency {

namespace {

bool is_server_by_host(ngx_http_request_t *r);
bool is_name_for(std::string_view name, std::string_view host);
bool is_location_by_url(ngx_http_request_t *r);

}


/*
 * Access rules belong to a location and to a server.  The location follows
 * from the URL unless something has led the request elsewhere; the server
 * follows from the Host, unless it took the request as the default server of
 * the address.  Both are told from this request alone: what else is in the
 * configuration must not change a fingerprint.  An if can have rules of its
 * own as well (access_by_lua), and its condition can be anything.
 */
admission
admitted_by(ngx_http_request_t *r)
{
    admission how;

    how.by_host = is_server_by_host(r);
    how.condition = view(location(r)->condition);
    how.by_url = is_location_by_url(r) && how.condition.empty();

    if (!how.by_url) {
        const ngx_http_core_loc_conf_t *core = location_around(r);

        how.kind = kind_of(core);
        how.location = view(core->name);
    }

    return how;
}


char
kind_of(const ngx_http_core_loc_conf_t *core)
{
    if (core->named) {
        return '@';
    }

    if (core->exact_match) {
        return '=';
    }

#if (NGX_PCRE)
    if (core->regex != nullptr) {
        return '~';
    }
#endif

    return '/';
}


namespace {

/*
 * A client may send the name of one server to the address of another, whose
 * default server takes it, with rules of its own.
 */
bool
is_server_by_host(ngx_http_request_t *r)
{
    auto *server = static_cast<ngx_http_core_srv_conf_t *>(
        ngx_http_get_module_srv_conf(r, ngx_http_core_module));
    auto *conf = static_cast<server_conf *>(
        ngx_http_get_module_srv_conf(r, ngx_http_idempotency_module));
    auto names = elements<ngx_str_t>(&conf->names);
    std::string_view host = view(r->headers_in.server);

    if (server != r->http_connection->addr_conf->default_server) {
        return true;
    }

    return std::any_of(names.begin(), names.end(), [&](const ngx_str_t &name) {
        return is_name_for(view(name), host);
    });
}


/* "a.b", ".b", "*.b" and "a.*", as nginx takes them; no regex. */
bool
is_name_for(std::string_view name, std::string_view host)
{
    if (name.starts_with("*.")) {
        return host.ends_with(name.substr(1));
    }

    if (name.starts_with('.')) {
        return host.ends_with(name) || host == name.substr(1);
    }

    if (name.ends_with(".*")) {
        return host.starts_with(name.substr(0, name.size() - 1));
    }

    return host == name;
}


/*
 * nginx counts down with each rewrite of a location, internal redirect and
 * step to a named location, and marks what a rewrite has touched, be it the
 * server's.
 */
bool
is_location_by_url(ngx_http_request_t *r)
{
    return !r->internal && r->uri_changes == NGX_HTTP_MAX_URI_CHANGES + 1;
}

}

}
