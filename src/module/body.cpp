#include "contract/fingerprint.h"
#include "module/context.h"

namespace idempotency {

namespace {

constexpr std::size_t piece = 64 * 1024;
constexpr std::size_t per_turn = 1024 * 1024;

/* A timer, not a posted event: a worker that quits waits for timers only. */
constexpr ngx_msec_t next_turn = 1;


ngx_int_t
finish_fingerprint(context &ctx)
{
    if (!ctx.hash.finish(ctx.fingerprint)) {
        ngx_log_error(NGX_LOG_ERR, ctx.request->connection->log, 0,
                      "idempotency: no memory for a fingerprint");
        return NGX_ERROR;
    }

    ctx.at = stage::ready;
    return NGX_OK;
}


/* NGX_OK: the buffer is hashed; NGX_AGAIN: enough for this turn. */
ngx_int_t
hash_file(context &ctx, ngx_buf_t *b, std::size_t &left)
{
    u_char *bytes = static_cast<u_char *>(
        ngx_alloc(piece, ctx.request->connection->log));

    if (bytes == nullptr) {
        return NGX_ERROR;
    }

    ngx_int_t rc = NGX_OK;

    while (b->file_pos + ctx.unhashed_offset < b->file_last) {

        if (left == 0) {
            rc = NGX_AGAIN;
            break;
        }

        off_t at = b->file_pos + ctx.unhashed_offset;
        std::size_t size = ngx_min(static_cast<off_t>(ngx_min(piece, left)),
                                   b->file_last - at);
        ssize_t n = ngx_read_file(b->file, bytes, size, at);

        if (n <= 0) {
            rc = NGX_ERROR;
            break;
        }

        ctx.hash.bytes(bytes, static_cast<std::size_t>(n));
        ctx.unhashed_offset += n;
        left -= static_cast<std::size_t>(n);
    }

    ngx_free(bytes);
    return rc;
}


/* The body as others have read it, a bounded part of it a turn. */
ngx_int_t
hash_unhashed(context &ctx)
{
    std::size_t left = per_turn;

    for (/* void */; ctx.unhashed != nullptr;
         ctx.unhashed = ctx.unhashed->next) {
        ngx_buf_t *b = ctx.unhashed->buf;

        if (ngx_buf_in_memory(b)) {
            ctx.hash.bytes(b->pos, static_cast<std::size_t>(b->last - b->pos));
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        ngx_int_t rc = hash_file(ctx, b, left);

        if (rc != NGX_OK) {
            return rc;
        }

        ctx.unhashed_offset = 0;
    }

    return NGX_OK;
}


void
go_on_hashing(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);
    ngx_int_t rc = hash_unhashed(*ctx);

    if (rc == NGX_AGAIN) {
        ngx_add_timer(event, next_turn);
        return;
    }

    if (rc == NGX_OK && finish_fingerprint(*ctx) == NGX_OK) {
        resume(*ctx);
        return;
    }

    ngx_http_request_t *r = ctx->request;
    ngx_connection_t *c = r->connection;

    ngx_http_set_log_request(c->log, r);
    ctx->at = stage::passed;
    ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    ngx_http_run_posted_requests(c);
}


/* NGX_OK: the fingerprint is there; NGX_AGAIN: it will be. */
ngx_int_t
hash_what_was_read(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (!ctx.hash_as_read && r->request_body != nullptr
        && ctx.conf->fingerprint
               != static_cast<ngx_uint_t>(fingerprint_mode::off))
    {
        ctx.unhashed = r->request_body->bufs;

        ngx_int_t rc = hash_unhashed(ctx);

        if (rc == NGX_AGAIN) {
            ctx.hashing.init(&ctx, go_on_hashing, r->connection->log);
            r->read_event_handler = ngx_http_block_reading;
            r->write_event_handler = ngx_http_request_empty_handler;
            ngx_add_timer(&ctx.hashing.event, next_turn);
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return finish_fingerprint(ctx);
}


void
body_read(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (ctx->body_called) {
        ctx->body_there = true;
        return;
    }

    ngx_int_t rc = hash_what_was_read(*ctx);

    if (rc == NGX_OK) {
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_core_run_phases;
        ngx_http_core_run_phases(r);

    } else if (rc == NGX_ERROR) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}

}


/*
 * NGX_AGAIN: body and fingerprint are there, go on; anything else is for the
 * phase handler to return.
 */
ngx_int_t
read_body(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    bool ignored = ctx.conf->fingerprint
                   == static_cast<ngx_uint_t>(fingerprint_mode::off);

    start_fingerprint(ctx.hash,
                      {view(ctx.method), view(ctx.path), view(ctx.arguments)},
                      ignored ? body_kind::none : body_kind::raw);

    /* mirror and Lua may have read it: then no filter of ours saw it. */
    ctx.hash_as_read = r->request_body == nullptr && !ignored;
    ctx.at = stage::reading;

    ctx.body_called = true;
    ngx_int_t rc = ngx_http_read_client_request_body(r, body_read);
    ctx.body_called = false;

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        ctx.at = stage::passed;
        return rc;
    }

    /* Gives back the reference that reading has taken. */
    ngx_http_finalize_request(r, NGX_DONE);

    if (!ctx.body_there) {
        return NGX_DONE;
    }

    rc = hash_what_was_read(ctx);

    if (rc == NGX_ERROR) {
        ctx.at = stage::passed;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return rc == NGX_OK ? NGX_AGAIN : NGX_DONE;
}


static ngx_http_request_body_filter_pt next_request_body_filter;


/* Each byte of a body passes here once, while it arrives, in memory. */
ngx_int_t
request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    auto *ctx = static_cast<context *>(
        ngx_http_get_module_ctx(r, ngx_http_idempotency_module));

    if (ctx != nullptr && ctx->at == stage::reading && ctx->hash_as_read) {
        for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
            ngx_buf_t *b = cl->buf;
            ctx->hash.bytes(b->pos,
                            static_cast<std::size_t>(b->last - b->pos));
        }
    }

    return next_request_body_filter(r, in);
}


void
init_request_body_filter()
{
    next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = request_body_filter;
}

}
