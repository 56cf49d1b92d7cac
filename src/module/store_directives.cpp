#include "module/directives.h"
#include "store/memory.h"

namespace idempotency {

namespace {

constexpr std::size_t default_zone = 256 * 1024 * 1024;


/* The store of that name, which may yet have to be defined. */
named_store *
find_store(ngx_conf_t *cf, const ngx_str_t &name)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));

    for (named_store *known : elements<named_store *>(&main->stores)) {
        if (view(known->name) == view(name)) {
            return known;
        }
    }

    auto *named = make<named_store>(cf->pool);

    if (named == nullptr || !append(&main->stores, named)) {
        return nullptr;
    }

    named->name = name;
    named->counts = make<counters>(cf->pool, counters::kind::store, name);

    if (named->counts == nullptr || !append(&main->counts, named->counts)) {
        return nullptr;
    }

    named->file = cf->conf_file->file.name;
    named->line = cf->conf_file->line;

    return named;
}


bool
is_store_name(std::string_view name)
{
    return name != "on" && name != "off" && !name.empty()
           && std::all_of(name.begin(), name.end(), [](char c) {
                  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
                         || (c >= '0' && c <= '9') || c == '_' || c == '-'
                         || c == '.';
              });
}


store *
open_store(ngx_conf_t *cf, const ngx_str_t &name, const ngx_str_t &url,
           std::span<ngx_str_t> parameters)
{
    if (is_memory(url)) {
        return open_memory_store(cf, name, url, parameters);
    }

    if (is_redis(url)) {
        return open_redis_store(cf, name, url, parameters);
    }

    /* What follows the scheme may hold a password. */
    ngx_str_t scheme = str(view(url).substr(0, view(url).find(':')));

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unknown store type \"%V:\" in \"idempotency_store\" "
                       "directive, write e.g. \"memory:64m\", "
                       "\"redis://127.0.0.1:6379\", \"rediss://host\" or "
                       "\"redis+unix:/run/redis.sock\"",
                       &scheme);
    return nullptr;
}

}


char *
set_store(ngx_conf_t *cf, ngx_command_t *, void *)
{
    auto values = arguments(cf);
    ngx_str_t &name = values[0];

    if (!is_store_name(view(name))) {
        ngx_conf_log_error(
            NGX_LOG_EMERG, cf, 0,
            "invalid idempotency store name \"%V\", use letters, "
            "digits, \"_\", \"-\" and \".\", but not \"on\" or \"off\"",
            &name);
        return failed;
    }

    named_store *named = find_store(cf, name);

    if (named == nullptr) {
        return failed;
    }

    if (named->backend != nullptr) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "idempotency store \"%V\" is already defined",
                           &name);
        return failed;
    }

    named->backend = open_store(cf, name, values[1], values.subspan(2));

    return named->backend != nullptr ? NGX_CONF_OK : failed;
}


char *
set_idempotency(ngx_conf_t *cf, ngx_command_t *, void *data)
{
    auto *conf = static_cast<location_conf *>(data);
    ngx_str_t value = arguments(cf)[0];

    if (conf->store != NGX_CONF_UNSET_PTR) {
        return duplicate;
    }

    conf->file = cf->conf_file->file.name;
    conf->line = cf->conf_file->line;

    if (view(value) == "off") {
        conf->store = nullptr;
        return NGX_CONF_OK;
    }

    if (view(value) == "on") {
        ngx_str_set(&value, "default");
    }

    if (!is_store_name(view(value))) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"idempotency\" "
                           "directive, it must be \"on\", \"off\" or the "
                           "name of a store",
                           &value);
        return failed;
    }

    conf->store = find_store(cf, value);

    return conf->store != nullptr ? NGX_CONF_OK : failed;
}


/* Every store that some location names must be there now. */
char *
define_stores(ngx_conf_t *cf, main_conf *main)
{
    for (named_store *named : elements<named_store *>(&main->stores)) {

        if (named->backend != nullptr) {
            named->backend->counts = named->counts;
            continue;
        }

        if (view(named->name) != "default") {
            ngx_conf_log_error(
                NGX_LOG_EMERG, cf, 0,
                "idempotency store \"%V\", used in %V:%ui, is not defined: "
                "add \"idempotency_store %V memory:64m;\" to http{}",
                &named->name, &named->file, named->line, &named->name);
            return failed;
        }

        named->backend = make_memory_store(cf, named->name,
                                           {default_zone, {}});

        if (named->backend == nullptr) {
            return failed;
        }

        named->backend->counts = named->counts;
    }

    return NGX_CONF_OK;
}

}
