#include "module/config_checks.h"

#include "module/directives.h"

namespace idempotency {

namespace {

bool is_answered(const ngx_http_core_loc_conf_t *core);
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


char *
check_location(ngx_conf_t *cf, const location_conf &conf, bool on_here)
{
    auto *core = static_cast<ngx_http_core_loc_conf_t *>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));

    if (conf.store == nullptr) {
        return NGX_CONF_OK;
    }

    /* A server has no name here, and need not answer itself. */
    if (on_here && core->name.len != 0 && !is_answered(core)) {
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


namespace {

/* By the location itself, or by one in it that may inherit. */
bool
is_answered(const ngx_http_core_loc_conf_t *core)
{
    if (core->handler != nullptr) {
        return true;
    }

    if (core->locations == nullptr) {
        return false;
    }

    for (ngx_queue_t *q = ngx_queue_head(core->locations);
         q != ngx_queue_sentinel(core->locations); q = ngx_queue_next(q))
    {
        auto *l = reinterpret_cast<ngx_http_location_queue_t *>(q);

        if (is_answered(l->exact != nullptr ? l->exact : l->inclusive)) {
            return true;
        }
    }

    return false;
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

}

}
