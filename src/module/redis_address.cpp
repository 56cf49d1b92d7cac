#include "module/redis_words.h"
#include "store/redis_tls.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr in_port_t redis_port = 6379;

bool find_server(ngx_conf_t *cf, const redis_settings &settings, ngx_str_t url,
                 in_port_t default_port, server_location &server);
bool set_tls_name(ngx_conf_t *cf, tls_name &certificate,
                  const ngx_str_t &given);

}


bool
find_servers(ngx_conf_t *cf, redis_settings &settings,
             const redis_words &words)
{
    std::string_view path = words.url.path;
    ngx_str_t url = str(words.url.host);

    if (!path.empty()) {
        url = format(cf->pool, path.size() + 6, "unix:%*s", path.size(),
                     str(path).data);
    }

    return find_server(cf, settings, url, redis_port, settings.server);
}


bool
set_up_tls(ngx_conf_t *cf, redis_settings &settings, const redis_words &words)
{
    if (!has_tls) {
        return wrong(cf, settings,
                     "\"rediss://\" requires an nginx built with SSL");
    }

    if (!set_tls_name(cf, settings.server.certificate, words.tls_name)) {
        return false;
    }

    settings.link.ssl = make_tls(
        cf, {words.tls_ca, words.tls_cert, words.tls_key});

    return settings.link.ssl != nullptr
           || wrong(cf, settings,
                    "cannot set up TLS with this \"tls_ca\", "
                    "\"tls_cert\" or \"tls_key\"");
}


namespace {

bool
find_server(ngx_conf_t *cf, const redis_settings &settings, ngx_str_t url,
            in_port_t default_port, server_location &server)
{
    ngx_url_t where = {};

    where.default_port = default_port;
    where.url = url;

    if (where.url.data == nullptr || ngx_parse_url(cf->pool, &where) != NGX_OK)
    {
        /* Only the host: the rest of the address may contain a password. */
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "idempotency store \"%V\": %s in its address: "
                           "\"%V\"",
                           &settings.name,
                           where.err != nullptr ? where.err : "no memory",
                           &where.host);
        return false;
    }

    server.addresses = {where.addrs, where.naddrs};
    server.name = where.addrs[0].name;

    /* An IP address or a socket needs no resolver. */
    bool literal = where.family == AF_UNIX || where.host.len == 0
                   || where.host.data[0] == '['
                   || ngx_inet_addr(where.host.data, where.host.len)
                          != INADDR_NONE;

    if (!literal) {
        server.host = where.host;
        server.port = where.port;
        server.name = where.url;
    }

    server.certificate = {where.host, literal};
    server.core = static_cast<const ngx_http_core_loc_conf_t *>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));

    return true;
}


/* The name without brackets, zero-terminated for OpenSSL. */
bool
set_tls_name(ngx_conf_t *cf, tls_name &certificate, const ngx_str_t &given)
{
    std::string_view name = view(given.len != 0 ? given : certificate.text);

    if (name.starts_with('[') && name.ends_with(']')) {
        name = name.substr(1, name.size() - 2);
    }

    if (given.len != 0) {
        certificate.is_address = name.find(':') != std::string_view::npos
                                 || ngx_inet_addr(given.data, given.len)
                                        != INADDR_NONE;
    }

    certificate.text = format(cf->pool, name.size() + 1, "%*s%Z", name.size(),
                              str(name).data);

    if (certificate.text.data == nullptr) {
        return false;
    }

    certificate.text.len--;
    return true;
}

}

}
