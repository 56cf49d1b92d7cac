#include "module/body.h"
#include "module/capture.h"
#include "module/config.h"
#include "module/gate.h"
#include "module/peers.h"
#include "module/variables.h"
#include "module/waiting.h"
#include "ngx.h"

namespace idempotency {

namespace {

/*
 * Handlers of a phase run in reverse order of registration.  The gate goes to
 * the front to run last: whatever may still redirect the request to a location
 * with access rules of its own (try_files) has had its turn then.
 */
ngx_int_t
add_gate(ngx_conf_t *cf)
{
    auto *core = static_cast<ngx_http_core_main_conf_t *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));
    ngx_array_t *handlers = &core->phases[NGX_HTTP_PRECONTENT_PHASE].handlers;

    if (ngx_array_push(handlers) == nullptr) {
        return NGX_ERROR;
    }

    auto *h = static_cast<ngx_http_handler_pt *>(handlers->elts);

    ngx_memmove(h + 1, h, (handlers->nelts - 1) * sizeof(*h));
    h[0] = gate;

    return NGX_OK;
}


ngx_int_t
add_to_nginx(ngx_conf_t *cf)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));

    if (main->stores.nelts == 0) {
        return NGX_OK;
    }

    if (add_gate(cf) != NGX_OK || guard_upstreams(cf, main) != NGX_OK
        || keep_server_names(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

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


/* There may be no http{} in the configuration. */
std::span<named_store *>
stores_of(ngx_cycle_t *cycle)
{
    if (ngx_get_conf(cycle->conf_ctx, ngx_http_module) == nullptr) {
        return {};
    }

    auto *main = static_cast<main_conf *>(ngx_http_cycle_get_module_main_conf(
        cycle, ngx_http_idempotency_module));

    return elements<named_store *>(&main->stores);
}


ngx_int_t
init_worker(ngx_cycle_t *cycle)
{
    if (!is_worker()) {
        return NGX_OK;
    }

    init_waiting();

    for (named_store *named : stores_of(cycle)) {
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
    &idempotency::http_module, /* module context */
    idempotency::commands,     /* module directives */
    NGX_HTTP_MODULE,           /* module type */
    nullptr,                   /* init master */
    nullptr,                   /* init module */
    idempotency::init_worker,  /* init process */
    nullptr,                   /* init thread */
    nullptr,                   /* exit thread */
    idempotency::exit_worker,  /* exit process */
    nullptr,                   /* exit master */
    NGX_MODULE_V1_PADDING,
};
}
