#include "module/context.h"

#include "module/counting.h"

namespace idempotency {

namespace {

void end_run(void *data);
void end_context(void *data);
void forget_operations(context &ctx);

}


context *
make_context(ngx_http_request_t *r, const location_conf *conf)
{
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool,
                                                       sizeof(context));
    ngx_http_cleanup_t *end = ngx_http_cleanup_add(r, 0);

    if (cleanup == nullptr || end == nullptr) {
        return nullptr;
    }

    auto *ctx = ::new (cleanup->data) context{};

    ctx->request = r;
    ctx->conf = conf;
    cleanup->handler = end_context;
    end->handler = end_run;
    end->data = r;
    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    return ctx;
}


/*
 * nginx clears the contexts of a request's modules at each internal redirect,
 * but it keeps the cleanups.
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


id_text::id_text(const context &ctx)
{
    const record_id &name = ctx.claim.own.name;

    if (!ctx.named) {
        ngx_str_set(&text, "-");
        return;
    }

    ngx_hex_dump(bytes, const_cast<u_char *>(name.data()), name.size());
    text = {sizeof(bytes), bytes};
}


void
move_to(context &ctx, stage to)
{
    if (!is_legal_move(ctx.at, to)) {
        ngx_str_t from_name = str(name_of(ctx.at));
        ngx_str_t to_name = str(name_of(to));

        ngx_log_error(NGX_LOG_ALERT, ctx.request->connection->log, 0,
                      "idempotency: request moved from stage \"%V\" to \"%V\" "
                      "unexpectedly, this is a bug in the module",
                      &from_name, &to_name);
    }

    ctx.at = to;
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


ngx_int_t
pass(context &ctx, status as)
{
    ctx.status = as;
    count_status(ctx, as);
    move_to(ctx, stage::passed);

    return NGX_DECLINED;
}


ngx_int_t
fail(context &ctx, const char *why)
{
    move_to(ctx, stage::failed);

    ngx_log_error(NGX_LOG_ERR, ctx.request->connection->log, 0,
                  "idempotency: %s; the request is not run and gets 500", why);

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/*
 * Rounded: what is left of a record is known in milliseconds, and the sum must
 * come to the same second on the run and on each replay.
 */
void
detach(context &ctx)
{
    ctx.body.turn.stop();
    stop_abort_timer(ctx);
    forget_operations(ctx);
    leave(ctx);
}


void
set_expires(context &ctx, std::uint64_t remaining)
{
    const ngx_time_t *now = ngx_timeofday();

    ctx.expires = remaining == forever
                      ? -1
                      : now->sec
                            + static_cast<time_t>((now->msec + remaining + 500)
                                                  / 1000);
}


namespace {

/* nginx closes the request, and logs it after this. */
void
end_run(void *data)
{
    end_run_with_response(static_cast<ngx_http_request_t *>(data));
}


/* The address of this function tells our cleanup from those of others. */
void
end_context(void *data)
{
    auto *ctx = static_cast<context *>(data);

    detach(*ctx);
    ctx->~context();
}


/* The store may answer after the request is gone. */
void
forget_operations(context &ctx)
{
    store *backend = ctx.conf->store->backend;

    if (ctx.claim.waiter.under_way != nullptr) {
        backend->forget(ctx.claim.waiter);
    }

    if (ctx.run.lease.renewed.under_way != nullptr) {
        backend->forget(ctx.run.lease.renewed);
    }

    if (ctx.ending.settled.under_way != nullptr) {
        count_end(ctx, settle_result::done);
        backend->forget(ctx.ending.settled);
    }
}

}

}
