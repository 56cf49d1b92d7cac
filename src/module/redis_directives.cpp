#include "module/directives.h"
#include "module/redis_words.h"
#include "store/redis.h"

namespace idempotency {

namespace {

constexpr ngx_int_t most_connections = 64;
constexpr ngx_msec_t longest_delay = 2000;
constexpr ngx_msec_t shortest_delay = 100;
constexpr ngx_msec_t default_local_ttl = 10000;


struct parameter {
    std::string_view name;
    ngx_str_t redis_words::*value;
};


constexpr parameter known_parameters[] = {
    {"prefix", &redis_words::prefix},
    {"timeout", &redis_words::timeout},
    {"connect_timeout", &redis_words::connect_timeout},
    {"connections", &redis_words::connections},
    {"reassert", &redis_words::reassert},
    {"failover_grace", &redis_words::failover_grace},
    {"durability", &redis_words::durability},
    {"durability_timeout", &redis_words::durability_timeout},
    {"local", &redis_words::local},
    {"local_ttl", &redis_words::local_ttl},
    {"user", &redis_words::user},
    {"password_file", &redis_words::password_file},
    {"tls_ca", &redis_words::tls_ca},
    {"tls_cert", &redis_words::tls_cert},
    {"tls_key", &redis_words::tls_key},
    {"tls_name", &redis_words::tls_name},
    {"tls_verify", &redis_words::tls_verify},
    {"sentinel_user", &redis_words::sentinel_user},
    {"sentinel_password_file", &redis_words::sentinel_password_file},
    {"sentinel_check", &redis_words::sentinel_check},
};


bool read_parameter(ngx_conf_t *cf, const redis_settings &settings,
                    const ngx_str_t &text, redis_words &words, unsigned &seen);
bool read_values(ngx_conf_t *cf, redis_settings &settings, redis_words &words);
bool read_put_back(ngx_conf_t *cf, redis_settings &settings,
                   redis_words &words);
bool read_durability(ngx_conf_t *cf, redis_settings &settings,
                     redis_words &words);
bool read_replicas(std::string_view text, durability_settings &out);
bool read_local(ngx_conf_t *cf, redis_settings &settings, redis_words &words);
bool name_local_zone(ngx_conf_t *cf, redis_settings &settings,
                     const redis_words &words);
bool read_time(ngx_str_t &text, ngx_msec_t &out);
bool read_time_or_0(ngx_str_t &text, ngx_msec_t &out);
bool read_sentinels(ngx_conf_t *cf, redis_settings &settings,
                    redis_words &words);
void set_up_cluster(redis_settings &settings);

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
        || !read_put_back(cf, settings, words)
        || !read_durability(cf, settings, words)
        || !read_local(cf, settings, words)
        || !read_credentials(cf, settings, words)
        || !find_servers(cf, settings, words)
        || (words.url.tls && !set_up_tls(cf, settings, words))
        || !read_sentinels(cf, settings, words))
    {
        return nullptr;
    }

    set_up_cluster(settings);

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
    const char *mistake =
        "is unknown, use prefix, timeout, connect_timeout, connections, "
        "reassert, failover_grace, durability, durability_timeout, local, "
        "local_ttl, user, password_file, tls_ca, tls_cert, tls_key, tls_name, "
        "tls_verify, sentinel_user, sentinel_password_file or sentinel_check";

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

        } else if (name.starts_with("sentinel_")
                   && words.url.kind != redis_kind::sentinel)
        {
            mistake = "requires a \"redis+sentinel://\" address";

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

    /* Its keys would be in one slot. */
    if (words.url.kind == redis_kind::cluster
        && view(words.prefix).find('{') != std::string_view::npos)
    {
        return wrong(cf, settings,
                     "\"prefix\" must not have a \"{\" in a cluster, which "
                     "spreads its keys by what is in braces");
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


/*
 * Others begin to claim when the grace is over: until then this worker has to
 * be connected again, so it may not wait long between two attempts.
 */
bool
read_put_back(ngx_conf_t *cf, redis_settings &settings, redis_words &words)
{
    ngx_msec_t &grace = settings.failover_grace;

    if (!read_time_or_0(words.reassert, settings.reassert)) {
        return wrong(
            cf, settings,
            "\"reassert\" must be 0, or a time with a unit, e.g. \"30s\"");
    }

    if (!read_time_or_0(words.failover_grace, grace)) {
        return wrong(cf, settings,
                     "\"failover_grace\" must be 0, or a time with a unit, "
                     "e.g. \"1s\"");
    }

    settings.link.puts_back = settings.reassert != 0;
    settings.link.longest_delay = longest_delay;

    if (settings.link.puts_back && grace != 0) {
        settings.link.longest_delay = ngx_max(
            shortest_delay, ngx_min(grace / 3, longest_delay));
    }

    return true;
}


bool
read_durability(ngx_conf_t *cf, redis_settings &settings, redis_words &words)
{
    durability_settings &out = settings.durability;

    if (!read_replicas(view(words.durability), out)) {
        return wrong(cf, settings,
                     "\"durability\" must be none, replicas:N, disk or "
                     "disk:N");
    }

    if (!read_time(words.durability_timeout, out.timeout)) {
        return wrong(cf, settings,
                     "\"durability_timeout\" must be a time with a unit, "
                     "e.g. \"100ms\"");
    }

    /* A claim may have to wait for the question of others first. */
    if (out.what != durability_settings::kind::none
        && out.timeout * 2 >= settings.link.timeout)
    {
        return wrong(cf, settings,
                     "\"durability_timeout\" must be less than half of "
                     "\"timeout\"");
    }

    return true;
}


bool
read_replicas(std::string_view text, durability_settings &out)
{
    using kind = durability_settings::kind;
    std::size_t colon = ngx_min(text.find(':'), text.size());
    std::string_view word = text.substr(0, colon);
    ngx_str_t number = str(text.substr(ngx_min(colon + 1, text.size())));
    bool has_number = colon != text.size();
    ngx_int_t replicas = has_number ? ngx_atoi(number.data, number.len) : 0;

    out.what = word == "replicas" ? kind::replicas
               : word == "disk"   ? kind::disk
                                  : kind::none;

    if (out.what == kind::none) {
        return text == "none";
    }

    out.replicas = static_cast<ngx_uint_t>(replicas);

    return (has_number && replicas > 0 && replicas <= 100)
           || (!has_number && out.what == kind::disk);
}


bool
read_local(ngx_conf_t *cf, redis_settings &settings, redis_words &words)
{
    local_settings &out = settings.local;
    std::size_t smallest = 8 * ngx_pagesize;

    if (words.local.len == 0) {
        return words.local_ttl.len == 0
               || wrong(cf, settings,
                        "\"local_ttl\" needs a local copy, add e.g. "
                        "\"local=16m\"");
    }

    ssize_t size = ngx_parse_size(&words.local);

    if (size == NGX_ERROR || static_cast<std::size_t>(size) < smallest) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "idempotency store \"%V\": \"local=%V\" must be a "
                           "size of at least \"%uzk\", e.g. \"local=16m\"",
                           &settings.name, &words.local, smallest / 1024);
        return false;
    }

    out.size = static_cast<std::size_t>(size);
    out.ttl = default_local_ttl;

    if (words.local_ttl.len != 0 && !read_time(words.local_ttl, out.ttl)) {
        return wrong(cf, settings,
                     "\"local_ttl\" must be a time with a unit, e.g. \"10s\"");
    }

    return name_local_zone(cf, settings, words);
}


/* After a reload, copies of what was in another Redis must not be found. */
bool
name_local_zone(ngx_conf_t *cf, redis_settings &settings,
                const redis_words &words)
{
    const redis_url &url = words.url;
    ngx_str_t where = str(url.host.empty() ? url.path : url.host);
    ngx_str_t service = str(url.service);
    ngx_str_t db = str(url.db);
    std::size_t longest = settings.name.len + where.len + service.len + db.len
                          + words.prefix.len + 32;

    settings.local.zone = format(
        cf->pool, longest, "idempotency_local:%V:%V/%V/%V/%V", &settings.name,
        &where, &service, &db, &words.prefix);

    return settings.local.zone.data != nullptr;
}


/* The links to them are as those to Redis, with another login. */
bool
read_sentinels(ngx_conf_t *cf, redis_settings &settings, redis_words &words)
{
    sentinel_settings &sentinels = settings.sentinels;
    link_settings link = settings.link;

    if (sentinels.servers.empty()) {
        return true;
    }

    if (!read_time(words.sentinel_check, sentinels.check)) {
        return wrong(
            cf, settings,
            "\"sentinel_check\" must be a time with a unit, e.g. \"1s\"");
    }

    link.only_asks = true;
    link.puts_back = false;
    link.db = str("0");
    link.user = sentinels.link.user;
    link.password = sentinels.link.password;
    link.connect_timeout = link.connect_timeout / 2 + 1;
    link.longest_delay = ngx_max(shortest_delay,
                                 ngx_min(sentinels.check, longest_delay));
    sentinels.link = link;

    return true;
}


/* To ask for the slots; a node that does not answer is not asked for long. */
void
set_up_cluster(redis_settings &settings)
{
    link_settings &link = settings.cluster.link;

    settings.link.in_cluster = !settings.cluster.servers.empty();
    link = settings.link;
    link.only_asks = true;
    link.puts_back = false;
    link.connect_timeout = link.connect_timeout / 2 + 1;
    link.longest_delay = shortest_delay;
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

}


bool
wrong(ngx_conf_t *cf, const redis_settings &settings, const char *what)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "idempotency store \"%V\": %s",
                       &settings.name, what);
    return false;
}

}
