#include "module/context.h"

namespace idempotency {

namespace {

/* The store may answer when there is nobody left to hear. */
void
forget(context &ctx)
{
    store *backend = ctx.conf->store->backend;

    if (ctx.claimer.under_way != nullptr) {
        backend->forget(ctx.claimer);
    }

    if (ctx.run.renewed.under_way != nullptr) {
        backend->forget(ctx.run.renewed);
    }

    if (ctx.capture.settled.under_way != nullptr) {
        backend->forget(ctx.capture.settled);
    }
}


/* Its address also tells our cleanup from others. */
void
end_context(void *data)
{
    auto *ctx = static_cast<context *>(data);

    ctx->body.turn.stop();

    if (ctx->at == stage::running) {
        abandon_run(*ctx);
    }

    forget(*ctx);
    leave(*ctx);

    ctx->~context();
}

}


/*
 * nginx forgets the contexts of a request's modules at each internal
 * redirect, but not its cleanups.
 */
context *
find_context(ngx_http_request_t *r)
{
    auto *ctx = static_cast<context *>(
        ngx_http_get_module_ctx(r, ngx_http_idempotency_module));

    if (ctx != nullptr || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    for (ngx_pool_cleanup_t *c = r->pool->cleanup; c != nullptr; c = c->next) {
        if (c->handler == end_context) {
            ctx = static_cast<context *>(c->data);
            ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
            return ctx;
        }
    }

    return nullptr;
}


context *
make_context(ngx_http_request_t *r, const location_conf *conf)
{
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool,
                                                       sizeof(context));

    if (cleanup == nullptr) {
        return nullptr;
    }

    auto *ctx = ::new (cleanup->data) context{};

    ctx->request = r;
    ctx->conf = conf;
    cleanup->handler = end_context;
    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    return ctx;
}


/* Not application/grpc-web, which has no trailers of its own. */
bool
is_grpc_type(std::string_view type)
{
    constexpr std::string_view grpc = "application/grpc";

    return same_name(type.substr(0, grpc.size()), grpc)
           && (type.size() == grpc.size() || type[grpc.size()] == '+'
               || type[grpc.size()] == ';');
}


/* It cannot be protected, so it may not run, not even on an error page. */
ngx_int_t
fail(context &ctx)
{
    ctx.at = stage::passed;
    ctx.failed = true;

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


bool
is_event_stream(std::string_view type)
{
    return same_name(type.substr(0, type.find_first_of("; ")),
                     "text/event-stream");
}


unsigned
find_header(ngx_http_request_t *r, const ngx_str_t &name, ngx_str_t &value)
{
    unsigned found = 0;

    each_field(r->headers_in.headers, [&](ngx_table_elt_t &h) {
        if (h.key.len == name.len
            && ngx_strncmp(h.lowcase_key, name.data, name.len) == 0
            && found++ == 0)
        {
            value = h.value;
        }
    });

    return found;
}


void
resume(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_connection_t *c = r->connection;

    ngx_http_set_log_request(c->log, r);

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);
    ngx_http_run_posted_requests(c);
}


void
set_expires(context &ctx, std::uint64_t remaining)
{
    ctx.expires = remaining == forever
                      ? -1
                      : ngx_time() + static_cast<time_t>(remaining / 1000);
}

}
