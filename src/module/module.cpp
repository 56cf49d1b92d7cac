#include "module/body.h"
#include "module/capture.h"
#include "module/config.h"
#include "module/config_checks.h"
#include "module/gate.h"
#include "module/known_bodies.h"
#include "module/method.h"
#include "module/peers.h"
#include "module/status.h"
#include "module/variables.h"
#include "module/wait_groups.h"
#include "ngx.h"
#include "store/memory.h"

namespace idempotency {

namespace {

ngx_array_t *
handlers_of(ngx_conf_t *cf, ngx_http_phases phase)
{
    auto *core = static_cast<ngx_http_core_main_conf_t *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));

    return &core->phases[phase].handlers;
}


/*
 * The handler of mirror; null: there is none.  It has no name outside of its
 * file, so mirror is made to register it once more, and that is undone.
 */
ngx_http_handler_pt
mirror_handler(ngx_conf_t *cf)
{
    ngx_array_t *handlers = handlers_of(cf, NGX_HTTP_PRECONTENT_PHASE);
    ngx_uint_t before = handlers->nelts;
    ngx_module_t *m = find_http_module(cf->cycle, "ngx_http_mirror_module");

    if (m == nullptr) {
        return nullptr;
    }

    auto *module = static_cast<ngx_http_module_t *>(m->ctx);

    if (module->postconfiguration == nullptr
        || module->postconfiguration(cf) != NGX_OK
        || handlers->nelts != before + 1)
    {
        return nullptr;
    }

    handlers->nelts = before;
    return static_cast<ngx_http_handler_pt *>(handlers->elts)[before];
}


/*
 * Handlers of a phase run in reverse order of registration.  The gate goes to
 * the front to run last: whatever may still redirect the request to a location
 * with access rules of its own (try_files) has had its turn then.  Only mirror
 * comes after it, where it is the first in the array as in nginx's own order:
 * it does not redirect, and it is not to copy what does not run.
 */
ngx_int_t
add_gate(ngx_conf_t *cf)
{
    ngx_http_handler_pt mirror = mirror_handler(cf);
    ngx_array_t *handlers = handlers_of(cf, NGX_HTTP_PRECONTENT_PHASE);

    if (ngx_array_push(handlers) == nullptr) {
        return NGX_ERROR;
    }

    auto *h = static_cast<ngx_http_handler_pt *>(handlers->elts);
    ngx_uint_t place = mirror != nullptr && h[0] == mirror ? 1 : 0;

    ngx_memmove(h + place + 1, h + place,
                (handlers->nelts - 1 - place) * sizeof(*h));
    h[place] = gate;

    return NGX_OK;
}


/* A post_action with a name begins in the second of these phases. */
ngx_int_t
add_post_action_handler(ngx_conf_t *cf)
{
    for (ngx_http_phases phase :
         {NGX_HTTP_SERVER_REWRITE_PHASE, NGX_HTTP_REWRITE_PHASE})
    {
        if (!append(handlers_of(cf, phase),
                    ngx_http_handler_pt{end_before_post_action}))
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_int_t
add_to_nginx(ngx_conf_t *cf)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));

    if (check_locations(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (main->stores.nelts == 0) {
        return NGX_OK;
    }

    if (add_gate(cf) != NGX_OK || add_post_action_handler(cf) != NGX_OK
        || guard_upstreams(cf, main) != NGX_OK
        || keep_server_names(cf) != NGX_OK
        || add_counter_memory(cf, &main->zones, &main->counts) != NGX_OK
        || add_known_bodies(cf, main) != NGX_OK)
    {
        return NGX_ERROR;
    }

    find_proxy_method(cf, main);
    main->charset = find_http_module(cf->cycle,
                                     "ngx_http_charset_filter_module");
    init_request_body_filter();
    init_response_filters();

    return NGX_OK;
}


bool
is_worker()
{
    return ngx_process == NGX_PROCESS_WORKER
           || ngx_process == NGX_PROCESS_SINGLE;
}


/* Null: there is no http{} in the configuration. */
main_conf *
main_of_cycle(ngx_cycle_t *cycle)
{
    if (ngx_get_conf(cycle->conf_ctx, ngx_http_module) == nullptr) {
        return nullptr;
    }

    return static_cast<main_conf *>(ngx_http_cycle_get_module_main_conf(
        cycle, ngx_http_idempotency_module));
}


std::span<named_store *>
stores_of(ngx_cycle_t *cycle)
{
    main_conf *main = main_of_cycle(cycle);

    return elements<named_store *>(main != nullptr ? &main->stores : nullptr);
}


ngx_int_t
init_configuration(ngx_cycle_t *cycle)
{
    say_dropped_zones(cycle);

    if (main_conf *main = main_of_cycle(cycle); main != nullptr) {
        warn_of_open_admin(cycle, *main);
    }

    return NGX_OK;
}


ngx_int_t
init_worker(ngx_cycle_t *cycle)
{
    if (!is_worker()) {
        return NGX_OK;
    }

    init_waiting();

    main_conf *main = main_of_cycle(cycle);

    if (main == nullptr) {
        return NGX_OK;
    }

    start_status(*main);
    start_known_bodies(*main);

    for (named_store *named : stores_of(cycle)) {
        named->backend->is_administered = main->has_admin;
        named->backend->start();
    }

    return NGX_OK;
}


void
exit_worker(ngx_cycle_t *cycle)
{
    if (is_worker()) {

        for (named_store *named : stores_of(cycle)) {
            named->backend->stop();
        }
    }

    free_json_parser();
    stop_known_bodies();
}


ngx_http_module_t http_module = {
    add_variables, /* preconfiguration */
    add_to_nginx,  /* postconfiguration */

    create_main_conf, /* create main configuration */
    init_main_conf,   /* init main configuration */

    create_server_conf, /* create server configuration */
    nullptr,            /* merge server configuration */

    create_location_conf, /* create location configuration */
    merge_location_conf,  /* merge location configuration */
};

}

}


extern "C" {

ngx_module_t ngx_http_idempotency_module = {
    NGX_MODULE_V1,
    &idempotency::http_module,       /* module context */
    idempotency::commands,           /* module directives */
    NGX_HTTP_MODULE,                 /* module type */
    nullptr,                         /* init master */
    idempotency::init_configuration, /* init module */
    idempotency::init_worker,        /* init process */
    nullptr,                         /* init thread */
    nullptr,                         /* exit thread */
    idempotency::exit_worker,        /* exit process */
    nullptr,                         /* exit master */
    NGX_MODULE_V1_PADDING,
};
}
