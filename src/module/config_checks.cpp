#include "module/config_checks.h"

#include "module/directives.h"

namespace idempotency {

namespace {

void note_answer(location_conf *conf);
char *check_location(ngx_conf_t *cf, const merged_location &merged);
char *check_scope(ngx_conf_t *cf, const location_conf &conf,
                  const ngx_http_core_loc_conf_t *core);
char *check_lease(ngx_conf_t *cf, const location_conf &conf,
                  const ngx_http_core_loc_conf_t *core);
void warn_of_size(ngx_conf_t *cf, const location_conf &conf,
                  const ngx_http_core_loc_conf_t *core);
void warn_of_idle_location(ngx_conf_t *cf, const location_conf &conf,
                           const ngx_http_core_loc_conf_t *core);
void warn_of_idle_pointer(ngx_conf_t *cf, const char *name, const char *mode,
                          conf_line &where);

bool has_foreign_access_handler(ngx_cycle_t *cycle);
bool is_restricted(ngx_cycle_t *cycle, const ngx_http_core_loc_conf_t *core);
bool has_access_rules(const void *conf);
bool has_auth_basic(const ngx_module_t *m, const void *conf);
bool has_auth_request(const void *conf);

constexpr const char *access_modules[] = {"ngx_http_access_module",
                                          "ngx_http_auth_basic_module",
                                          "ngx_http_auth_request_module"};

}


void
warn_of_idle_pointers(ngx_conf_t *cf, location_conf &conf)
{
    const char *mode;

    switch (conf.fingerprint) {

    case static_cast<ngx_uint_t>(fingerprint_mode::raw): mode = "raw"; break;
    case static_cast<ngx_uint_t>(fingerprint_mode::off): mode = "off"; break;
    default: return;
    }

    warn_of_idle_pointer(cf, "include", mode, conf.include_line);
    warn_of_idle_pointer(cf, "exclude", mode, conf.exclude_line);
}


bool
remember_location(ngx_conf_t *cf, location_conf *outer, location_conf *conf,
                  bool on_here)
{
    auto *core = static_cast<ngx_http_core_loc_conf_t *>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));

    conf->outer = outer;

    return append(&main_of(cf)->locations,
                  merged_location{conf, core, on_here});
}


ngx_int_t
check_locations(ngx_conf_t *cf)
{
    auto all = elements<merged_location>(&main_of(cf)->locations);

    for (const merged_location &merged : all) {
        if (merged.core->handler != nullptr) {
            note_answer(merged.conf);
        }
    }

    for (const merged_location &merged : all) {
        if (check_location(cf, merged) != NGX_CONF_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


void
warn_of_open_admin(ngx_cycle_t *cycle, const main_conf &main)
{
    if (has_foreign_access_handler(cycle)) {
        return;
    }

    for (const merged_location &merged :
         elements<merged_location>(&main.locations))
    {
        if (!merged.conf->admin || is_restricted(cycle, merged.core)) {
            continue;
        }

        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "\"idempotency_admin\" in location \"%V\" has no access "
                      "rule: whoever reaches it can read and settle records; "
                      "add e.g. \"allow 127.0.0.1; deny all;\" or "
                      "\"auth_basic\"",
                      &merged.core->name);
    }
}


namespace {

/* A level above need not answer itself. */
void
note_answer(location_conf *conf)
{
    for (/* void */; conf != nullptr && !conf->answered; conf = conf->outer) {
        conf->answered = true;
    }
}


char *
check_location(ngx_conf_t *cf, const merged_location &merged)
{
    const location_conf &conf = *merged.conf;
    const ngx_http_core_loc_conf_t *core = merged.core;

    if (conf.store == nullptr) {
        return NGX_CONF_OK;
    }

    /* A server has no name here. */
    if (merged.on_here && core->name.len != 0 && !conf.answered) {
        warn_of_idle_location(cf, conf, core);
    }

    if (core->handler == nullptr) {
        return NGX_CONF_OK;
    }

    warn_of_size(cf, conf, core);

    if (check_lease(cf, conf, core) != NGX_CONF_OK) {
        return failed;
    }

    return check_scope(cf, conf, core);
}


void
warn_of_idle_location(ngx_conf_t *cf, const location_conf &conf,
                      const ngx_http_core_loc_conf_t *core)
{
    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "\"idempotency\" has no effect in location \"%V\": nothing "
                  "there sends the request to an application; write it in the "
                  "location that has \"proxy_pass\", \"fastcgi_pass\" or "
                  "another content handler, e.g. the one that \"try_files\" "
                  "leads to in %V:%ui",
                  &core->name, &conf.file, conf.line);
}


void
warn_of_idle_pointer(ngx_conf_t *cf, const char *name, const char *mode,
                     conf_line &where)
{
    if (where.number == 0) {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "\"idempotency_fingerprint_%s\" has no effect with "
                  "\"idempotency_fingerprint %s\": use \"auto\", or remove it "
                  "in %V:%ui",
                  name, mode, &where.file, where.number);

    where.number = 0;
}


/* Once for each store: many locations may share it. */
void
warn_of_size(ngx_conf_t *cf, const location_conf &conf,
             const ngx_http_core_loc_conf_t *core)
{
    std::size_t capacity = conf.store->backend->capacity();

    if (capacity == 0 || conf.max_response <= capacity
        || conf.store->warned_of_size)
    {
        return;
    }

    conf.store->warned_of_size = true;

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "\"idempotency_max_response\" of location \"%V\" is %uz "
                  "bytes, but idempotency store \"%V\" has only %uz bytes in "
                  "all: make the first smaller or the second larger",
                  &core->name, conf.max_response, &conf.store->name, capacity);
}


/*
 * A renewal that waits longer than this for the store could come too late, and
 * so could a claim's answer.
 */
char *
check_lease(ngx_conf_t *cf, const location_conf &conf,
            const ngx_http_core_loc_conf_t *core)
{
    auto timeout = static_cast<ngx_msec_t>(conf.store->backend->timeout());

    if (timeout <= conf.lease / 3) {
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(
        NGX_LOG_EMERG, cf, 0,
        "the \"timeout\" of idempotency store \"%V\" is %Mms, but "
        "\"idempotency_lease\" for location \"%V\" is %Mms: a timeout must "
        "not be longer than a third of the lease",
        &conf.store->name, timeout, &core->name, conf.lease);

    return failed;
}


/*
 * Only a location that will answer needs a scope: one that merely inherits
 * "idempotency on" and returns or redirects does not.
 */
char *
check_scope(ngx_conf_t *cf, const location_conf &conf,
            const ngx_http_core_loc_conf_t *core)
{
    if (conf.scope != nullptr) {
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(
        NGX_LOG_EMERG, cf, 0,
        "\"idempotency_scope\" is missing for location \"%V\", where "
        "\"idempotency\" is switched on in %V:%ui: add a value that "
        "identifies "
        "the caller and stays the same in a retry, e.g. \"idempotency_scope "
        "$remote_user;\" or \"idempotency_scope $http_x_api_key;\", or write "
        "\"idempotency_scope none;\" if all callers share their keys",
        &core->name, &conf.file, conf.line);

    return failed;
}


/* Of Lua, njs and others: what it decides, and where, is not known. */
bool
has_foreign_access_handler(ngx_cycle_t *cycle)
{
    auto *core = static_cast<ngx_http_core_main_conf_t *>(
        ngx_http_cycle_get_module_main_conf(cycle, ngx_http_core_module));
    ngx_uint_t known = 0;

    for (const char *name : access_modules) {
        known += find_http_module(cycle, name) != nullptr;
    }

    return core->phases[NGX_HTTP_ACCESS_PHASE].handlers.nelts > known;
}


bool
is_restricted(ngx_cycle_t *cycle, const ngx_http_core_loc_conf_t *core)
{
    const ngx_module_t *access = find_http_module(cycle, access_modules[0]);
    const ngx_module_t *basic = find_http_module(cycle, access_modules[1]);
    const ngx_module_t *request = find_http_module(cycle, access_modules[2]);

    auto conf_of = [&](const ngx_module_t *m) {
        return core->loc_conf[m->ctx_index];
    };

    return core->internal
           || (access != nullptr && has_access_rules(conf_of(access)))
           || (basic != nullptr && has_auth_basic(basic, conf_of(basic)))
           || (request != nullptr && has_auth_request(conf_of(request)));
}


/* The conf begins with the rules for IPv4, IPv6 and Unix sockets. */
bool
has_access_rules(const void *conf)
{
    constexpr std::size_t families = 1 + (NGX_HAVE_INET6 != 0)
                                     + (NGX_HAVE_UNIX_DOMAIN != 0);
    std::span rules(static_cast<ngx_array_t *const *>(conf), families);

    return std::any_of(rules.begin(), rules.end(),
                       [](ngx_array_t *r) { return r != nullptr; });
}


bool
has_auth_basic(const ngx_module_t *m, const void *conf)
{
    for (ngx_command_t *c = m->commands; c->name.len != 0; c++) {

        if (view(c->name) == "auth_basic") {
            auto *realm = *reinterpret_cast<void *const *>(
                static_cast<const char *>(conf) + c->offset);

            return realm != nullptr && realm != NGX_CONF_UNSET_PTR;
        }
    }

    return false;
}


/* The conf begins with the URI; "off" is empty. */
bool
has_auth_request(const void *conf)
{
    return static_cast<const ngx_str_t *>(conf)->len != 0;
}

}

}
