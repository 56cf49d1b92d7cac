#include "module/admission.h"

#include "module/config.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace idempotency {

namespace {

/* Of IPv6, or of IPv4 mapped to it. */
using address = std::array<u_char, 16>;

bool is_server_by_host(ngx_http_request_t *r);
bool is_name_for(std::string_view name, std::string_view host);
bool is_own_address(ngx_connection_t *c, std::string_view host);
bool parse_address(std::string_view host, address &out);
bool address_of(const sockaddr *from, address &out);
void map_address(in_addr_t v4, address &out);
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

    bool named = std::any_of(
        names.begin(), names.end(),
        [&](const ngx_str_t &name) { return is_name_for(view(name), host); });

    return named || is_own_address(r->connection, host);
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
 * A server without a name is known by its address.  The connection may have
 * come to a socket that listens on all of them.
 */
bool
is_own_address(ngx_connection_t *c, std::string_view host)
{
    address wanted;
    address own;

    return parse_address(host, wanted)
           && ngx_connection_local_sockaddr(c, nullptr, 0) == NGX_OK
           && address_of(c->local_sockaddr, own) && wanted == own;
}


/* "192.0.2.1" or "[2001:db8::1]". */
bool
parse_address(std::string_view host, address &out)
{
    ngx_str_t text = str(host);

#if (NGX_HAVE_INET6)
    if (host.starts_with('[') && host.ends_with(']')) {
        return ngx_inet6_addr(text.data + 1, text.len - 2, out.data())
               == NGX_OK;
    }
#endif

    in_addr_t v4 = ngx_inet_addr(text.data, text.len);

    map_address(v4, out);
    return v4 != INADDR_NONE;
}


bool
address_of(const sockaddr *from, address &out)
{
    if (from->sa_family == AF_INET) {
        map_address(
            reinterpret_cast<const sockaddr_in *>(from)->sin_addr.s_addr, out);
        return true;
    }

#if (NGX_HAVE_INET6)
    if (from->sa_family == AF_INET6) {
        std::memcpy(out.data(),
                    &reinterpret_cast<const sockaddr_in6 *>(from)->sin6_addr,
                    out.size());
        return true;
    }
#endif

    return false;
}


/* As a socket of IPv6 shows an address of IPv4. */
void
map_address(in_addr_t v4, address &out)
{
    out = {};
    out[10] = out[11] = 0xff;
    std::memcpy(&out[12], &v4, sizeof(v4));
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
