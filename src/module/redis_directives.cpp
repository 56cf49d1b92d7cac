#include "module/directives.h"
#include "store/redis.h"
#include "store/redis_tls.h"
#include "store/redis_url.h"

namespace idempotency {

namespace {

constexpr ngx_int_t most_connections = 64;
constexpr std::size_t longest_password = 4096;


/* The parameters of idempotency_store as they are written. */
struct redis_words {
    redis_url url;
    ngx_str_t prefix = ngx_string("idem:");
    ngx_str_t timeout = ngx_string("250ms");
    ngx_str_t connect_timeout = ngx_string("1s");
    ngx_str_t connections = ngx_string("1");
    ngx_str_t user = ngx_null_string;
    ngx_str_t password_file = ngx_null_string;
    ngx_str_t tls_ca = ngx_null_string;
    ngx_str_t tls_cert = ngx_null_string;
    ngx_str_t tls_key = ngx_null_string;
    ngx_str_t tls_name = ngx_null_string;
    ngx_str_t tls_verify = ngx_string("on");
};


struct parameter {
    std::string_view name;
    ngx_str_t redis_words::*value;
};


constexpr parameter known_parameters[] = {
    {"prefix", &redis_words::prefix},
    {"timeout", &redis_words::timeout},
    {"connect_timeout", &redis_words::connect_timeout},
    {"connections", &redis_words::connections},
    {"user", &redis_words::user},
    {"password_file", &redis_words::password_file},
    {"tls_ca", &redis_words::tls_ca},
    {"tls_cert", &redis_words::tls_cert},
    {"tls_key", &redis_words::tls_key},
    {"tls_name", &redis_words::tls_name},
    {"tls_verify", &redis_words::tls_verify},
};


bool read_parameter(ngx_conf_t *cf, const redis_settings &settings,
                    const ngx_str_t &text, redis_words &words, unsigned &seen);
bool read_values(ngx_conf_t *cf, redis_settings &settings, redis_words &words);
bool read_credentials(ngx_conf_t *cf, redis_settings &settings,
                      const redis_words &words);
bool find_server(ngx_conf_t *cf, redis_settings &settings,
                 const redis_url &url);
bool set_up_tls(ngx_conf_t *cf, redis_settings &settings,
                const redis_words &words);
bool read_time(ngx_str_t &text, ngx_msec_t &out);
bool decode(ngx_conf_t *cf, std::string_view text, ngx_str_t &out);
bool read_password(ngx_conf_t *cf, const redis_settings &settings,
                   ngx_str_t name, ngx_str_t &out);
bool set_tls_name(ngx_conf_t *cf, tls_name &certificate,
                  const ngx_str_t &given);
bool wrong(ngx_conf_t *cf, const redis_settings &settings, const char *what);
bool read_time_or_0(ngx_str_t &text, ngx_msec_t &out);

}


bool
is_redis(const ngx_str_t &url)
{
    return is_redis_url(view(url));
}


/* Null: the reason was logged. */
store *
open_redis_store(ngx_conf_t *cf, const ngx_str_t &name, const ngx_str_t &url,
                 std::span<ngx_str_t> parameters)
{
    redis_settings settings = {};
    redis_words words;
    unsigned seen = 0;

    settings.name = name;

    const char *mistake = parse_redis_url(view(url), words.url);

    /* The address itself is not logged, as it may contain a password. */
    if (mistake != nullptr) {
        wrong(cf, settings, mistake);
        return nullptr;
    }

    for (const ngx_str_t &text : parameters) {
        if (!read_parameter(cf, settings, text, words, seen)) {
            return nullptr;
        }
    }

    if (!read_values(cf, settings, words)
        || !read_credentials(cf, settings, words)
        || !find_server(cf, settings, words.url)
        || (words.url.tls && !set_up_tls(cf, settings, words)))
    {
        return nullptr;
    }

    return make_redis_store(cf, settings);
}


namespace {

/* Reads one name=value. */
bool
read_parameter(ngx_conf_t *cf, const redis_settings &settings,
               const ngx_str_t &text, redis_words &words, unsigned &seen)
{
    std::size_t equals = ngx_min(view(text).find('='), text.len);
    std::string_view name = view(text).substr(0, equals);
    const char *mistake = "is unknown, use prefix, timeout, "
                          "connect_timeout, connections, user, "
                          "password_file, tls_ca, tls_cert, tls_key, "
                          "tls_name or tls_verify";

    if (name == "password") {
        mistake = "would be visible in the configuration, use "
                  "\"password_file\"";
    }

    for (const parameter &p : known_parameters) {
        unsigned bit = 1u << (&p - known_parameters);

        if (p.name != name) {
            continue;
        }

        if (seen & bit) {
            mistake = "is given twice";

        } else if (text.len - equals < 2) {
            mistake = "has no value, use \"name=value\"";

        } else if (name.starts_with("tls_") && !words.url.tls) {
            mistake = "requires a \"rediss://\" address";

        } else {
            words.*p.value = str(view(text).substr(equals + 1));
            seen |= bit;
            return true;
        }
    }

    ngx_str_t shown = str(name);

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "idempotency store \"%V\": the parameter \"%V\" %s",
                       &settings.name, &shown, mistake);
    return false;
}


/* Parameters whose values have a syntax of their own. */
bool
read_values(ngx_conf_t *cf, redis_settings &settings, redis_words &words)
{
    link_settings &link = settings.link;
    ngx_int_t connections = ngx_atoi(words.connections.data,
                                     words.connections.len);

    if (!read_time(words.timeout, link.timeout)) {
        return wrong(cf, settings,
                     "\"timeout\" must be a time with a unit, e.g. \"250ms\"");
    }

    if (!read_time(words.connect_timeout, link.connect_timeout)) {
        return wrong(
            cf, settings,
            "\"connect_timeout\" must be a time with a unit, e.g. \"1s\"");
    }

    if (connections < 1 || connections > most_connections) {
        return wrong(cf, settings,
                     "\"connections\" must be a number from 1 to 64");
    }

    if (words.prefix.len > longest_prefix) {
        return wrong(cf, settings,
                     "\"prefix\" must have at most 64 characters");
    }

    if (view(words.tls_verify) != "on" && view(words.tls_verify) != "off") {
        return wrong(cf, settings, "\"tls_verify\" must be on or off");
    }

    if ((words.tls_cert.len == 0) != (words.tls_key.len == 0)) {
        return wrong(cf, settings,
                     "\"tls_cert\" and \"tls_key\" require each other");
    }

    settings.prefix = words.prefix;
    link.prefix = words.prefix;
    settings.connections = static_cast<ngx_uint_t>(connections);
    link.tls_verify = view(words.tls_verify) == "on";
    link.db = str(words.url.db);

    return true;
}


/* A number by itself would be seconds to nginx, and means ms to Redis. */
bool
read_time(ngx_str_t &text, ngx_msec_t &out)
{
    return read_time_or_0(text, out) && out != 0;
}


bool
read_time_or_0(ngx_str_t &text, ngx_msec_t &out)
{
    ngx_int_t time = ngx_parse_time(&text, 0);

    out = static_cast<ngx_msec_t>(time);

    return time != NGX_ERROR && (time == 0 || !is_digit(view(text).back()));
}


bool
read_credentials(ngx_conf_t *cf, redis_settings &settings,
                 const redis_words &words)
{
    link_settings &link = settings.link;

    if (!decode(cf, words.url.user, link.user)
        || !decode(cf, words.url.password, link.password))
    {
        return false;
    }

    if (words.user.len != 0 && words.url.user.data() != nullptr) {
        return wrong(cf, settings,
                     "the address has a user already, remove \"user\"");
    }

    if (words.password_file.len != 0 && !words.url.password.empty()) {
        return wrong(cf, settings,
                     "the address has a password already, remove "
                     "\"password_file\"");
    }

    if (words.user.len != 0) {
        link.user = words.user;
    }

    if (words.password_file.len != 0
        && !read_password(cf, settings, words.password_file, link.password))
    {
        return false;
    }

    if (link.user.len != 0 && link.password.len == 0) {
        return wrong(cf, settings,
                     "\"user\" requires a password, set "
                     "\"password_file\"");
    }

    return true;
}


bool
decode(ngx_conf_t *cf, std::string_view text, ngx_str_t &out)
{
    auto copy = make_array<u_char>(cf->pool, text.size());

    if (copy.data() == nullptr) {
        return false;
    }

    u_char *to = copy.data();
    u_char *from = str(text).data;

    ngx_unescape_uri(&to, &from, text.size(), 0);
    out = {static_cast<std::size_t>(to - copy.data()), copy.data()};

    return true;
}


/* Reads a small file, without the newline at its end. */
bool
read_password(ngx_conf_t *cf, const redis_settings &settings, ngx_str_t name,
              ngx_str_t &out)
{
    if (ngx_conf_full_name(cf->cycle, &name, 1) != NGX_OK) {
        return false;
    }

    ngx_fd_t fd = ngx_open_file(name.data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);
    auto text = make_array<u_char>(cf->pool, longest_password);

    if (fd == NGX_INVALID_FILE || text.data() == nullptr) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "idempotency store \"%V\": cannot open "
                           "password_file \"%V\"",
                           &settings.name, &name);
        return false;
    }

    ssize_t n = ngx_read_fd(fd, text.data(), text.size());

    ngx_close_file(fd);

    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        n--;
    }

    if (n <= 0 || n == static_cast<ssize_t>(text.size())) {
        return wrong(cf, settings,
                     "\"password_file\" must contain one password and nothing "
                     "else");
    }

    out = {static_cast<std::size_t>(n), text.data()};
    return true;
}


bool
find_server(ngx_conf_t *cf, redis_settings &settings, const redis_url &url)
{
    server_location &server = settings.server;
    ngx_url_t where = {};

    where.default_port = 6379;
    where.url = str(url.host);

    if (!url.path.empty()) {
        where.url = format(cf->pool, url.path.size() + 6, "unix:%*s",
                           url.path.size(), str(url.path).data);
    }

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


bool
wrong(ngx_conf_t *cf, const redis_settings &settings, const char *what)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "idempotency store \"%V\": %s",
                       &settings.name, what);
    return false;
}

}

}
