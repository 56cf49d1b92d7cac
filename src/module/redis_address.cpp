#include "module/redis_words.h"
#include "store/redis_tls.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr in_port_t redis_port = 6379;
constexpr in_port_t sentinel_port = 26379;
constexpr std::size_t most_hosts = 15;

bool find_sentinels(ngx_conf_t *cf, redis_settings &settings,
                    const redis_words &words);
bool find_list(ngx_conf_t *cf, redis_settings &settings,
               std::string_view hosts, in_port_t default_port,
               std::span<server_location> &out);
bool find_server(ngx_conf_t *cf, const redis_settings &settings, ngx_str_t url,
                 in_port_t default_port, server_location &server);
bool is_service(std::string_view name);
bool set_tls_name(ngx_conf_t *cf, tls_name &certificate,
                  const ngx_str_t &given);

}


bool
find_servers(ngx_conf_t *cf, redis_settings &settings,
             const redis_words &words)
{
    std::string_view path = words.url.path;
    ngx_str_t url = str(words.url.host);

    if (words.url.kind == redis_kind::sentinel) {
        return find_sentinels(cf, settings, words);
    }

    if (words.url.kind == redis_kind::cluster) {
        return find_list(cf, settings, words.url.host, redis_port,
                         settings.cluster.servers);
    }

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

    /* What Sentinels or the nodes of a cluster name is not known yet. */
    bool named = words.url.kind == redis_kind::single
                 || words.tls_name.len != 0;

    if (named
        && !set_tls_name(cf, settings.server.certificate, words.tls_name)) {
        return false;
    }

    for (auto servers : {settings.sentinels.servers, settings.cluster.servers})
    {
        for (server_location &server : servers) {
            if (!set_tls_name(cf, server.certificate, words.tls_name)) {
                return false;
            }
        }
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
find_sentinels(ngx_conf_t *cf, redis_settings &settings,
               const redis_words &words)
{
    if (!is_service(words.url.service)) {
        return wrong(cf, settings,
                     "the name of a master has letters, digits and \".-_\" "
                     "only");
    }

    settings.sentinels.service = str(words.url.service);

    if (!find_list(cf, settings, words.url.host, sentinel_port,
                   settings.sentinels.servers))
    {
        return false;
    }

    settings.server.name = settings.sentinels.service;

    return true;
}


/* Hosts, each with or without a port, which tell where the records are. */
bool
find_list(ngx_conf_t *cf, redis_settings &settings, std::string_view hosts,
          in_port_t default_port, std::span<server_location> &out)
{
    auto servers = make_array<server_location>(cf->pool, most_hosts);
    std::size_t count = 0;

    if (servers.data() == nullptr) {
        return false;
    }

    while (!hosts.empty()) {
        std::size_t comma = ngx_min(hosts.find(','), hosts.size());
        ngx_str_t one = str(hosts.substr(0, comma));

        hosts.remove_prefix(ngx_min(comma + 1, hosts.size()));

        if (count == most_hosts) {
            return wrong(cf, settings,
                         "its address can have 15 hosts at most");
        }

        servers[count] = {};

        if (!find_server(cf, settings, one, default_port, servers[count++])) {
            return false;
        }
    }

    out = servers.first(count);
    settings.server.name = servers[0].name;
    settings.server.core = servers[0].core;

    return true;
}


bool
is_service(std::string_view name)
{
    return std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
               || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
    });
}


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
