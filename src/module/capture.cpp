#include "module/context.h"

namespace idempotency {

namespace {

constexpr ngx_uint_t buffered_bit = 0x08;
ngx_http_output_header_filter_pt next_header_filter;
ngx_http_output_body_filter_pt next_body_filter;

ngx_int_t send_held(context &ctx);

/* What there is of the response in a chain. */
struct portion {
    off_t size;
    bool last;
    bool flush;
    bool in_memory;
};


portion
measure(ngx_chain_t *in)
{
    portion p = {0, false, false, true};

    for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
        ngx_buf_t *b = cl->buf;

        p.size += ngx_buf_size(b);
        p.last = p.last || b->last_buf;
        p.flush = p.flush || b->flush;
        p.in_memory = p.in_memory && (!b->in_file || ngx_buf_in_memory(b));
    }

    return p;
}


void
consume(ngx_chain_t *in)
{
    for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


/* Counts a chain in; notes when the response is more than is kept. */
bool
fits(context &ctx, const portion &p)
{
    capture_state &capture = ctx.capture;

    capture.size += p.size;

    if (capture.size > static_cast<off_t>(ctx.conf->max_response)
        || !p.in_memory) {
        capture.overflow = true;
    }

    return !capture.overflow;
}


void
outcome_settled(settle_waiter &waiter, settle_result result)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    if (result == settle_result::lost && ask_successor(*ctx)) {
        return;
    }

    end_run(*ctx, result);

    /* Nothing is promised that may not come true. */
    if (result == settle_result::unavailable) {
        ctx->expires = 0;
    }

    if (!ctx->capture.waiting) {
        return;
    }

    ctx->store_time += ngx_current_msec - ctx->asked;

    ngx_http_request_t *r = ctx->request;
    ngx_connection_t *c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ctx->capture.waiting = false;
    r->buffered &= ~buffered_bit;
    c->write->delayed = 0;

    if (send_held(*ctx) == NGX_ERROR) {
        c->error = 1;
    }

    r->write_event_handler(r);
    ngx_http_run_posted_requests(c);
}


/*
 * The outcome goes to the store, then the response to the client.  A store
 * that answers later finds the request waiting: marked as buffered, so that
 * nobody ends it, and as delayed, so that no send timeout runs.
 */
ngx_int_t
settle_and_send(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    settle(ctx, true);

    if (ctx.at == stage::settled) {
        return send_held(ctx);
    }

    ctx.capture.waiting = true;
    r->buffered |= buffered_bit;
    r->connection->write->delayed = 1;

    return NGX_AGAIN;
}


ngx_int_t
send_held(context &ctx)
{
    capture_state &capture = ctx.capture;
    ngx_http_request_t *r = ctx.request;

    capture.how = capture_state::none;

    if (capture.superseded) {
        return send_successor(ctx);
    }

    if (!capture.whole) {
        return send_below(r, capture.body);
    }

    ngx_buf_t *last = capture.tail;
    ngx_chain_t only = {nullptr, nullptr};

    if (last == nullptr) {
        last = static_cast<ngx_buf_t *>(ngx_calloc_buf(r->pool));

        if (last == nullptr) {
            return NGX_ERROR;
        }

        only.buf = last;
    }

    last->last_buf = 1;
    last->last_in_chain = 1;

    return send_below(r, capture.body != nullptr ? capture.body : &only);
}


/* The upstream broke off: what is held is no response, and is not shown. */
ngx_int_t
fail_truncated(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    settle(ctx, false);
    ctx.capture.how = capture_state::none;

    r->error_page = 1;
    return ngx_http_filter_finalize_request(r, &ngx_http_idempotency_module,
                                            NGX_HTTP_BAD_GATEWAY);
}


/*
 * FastCGI marks the end of a response, yet nginx takes the end of the
 * connection for it too.
 */
bool
has_end(const ngx_http_upstream_t *u)
{
    if (view(u->schema) != "fastcgi://" || u->headers_in.content_length_n >= 0)
    {
        return true;
    }

    return u->buffering ? u->pipe->upstream_done : u->length == 0;
}


/* nginx flushes what came of a response that broke off, and says no more. */
bool
is_truncated(ngx_http_request_t *r, const portion &p)
{
    ngx_http_upstream_t *u = r->upstream;

    if (u == nullptr || !u->header_sent || u->cleanup != nullptr) {
        return false;
    }

    return p.last ? !has_end(u) : p.flush;
}


/* What was passed on and is not sent yet must be let go when nobody reads. */
void
note_passed(context &ctx, ngx_chain_t *in)
{
    capture_state &capture = ctx.capture;
    ngx_pool_t *pool = ctx.request->pool;
    ngx_chain_t **ll = &capture.unsent;

    while (*ll != nullptr) {
        ngx_chain_t *cl = *ll;

        if (ngx_buf_size(cl->buf) != 0) {
            ll = &cl->next;
            continue;
        }

        *ll = cl->next;
        ngx_free_chain(pool, cl);
    }

    for (/* void */; in != nullptr; in = in->next) {

        if (ngx_buf_size(in->buf) == 0) {
            continue;
        }

        ngx_chain_t *cl = ngx_alloc_chain_link(pool);

        if (cl == nullptr) {
            return;
        }

        cl->buf = in->buf;
        cl->next = nullptr;
        *ll = cl;
        ll = &cl->next;
    }
}


/* From now on the response is read for the record alone. */
void
client_gone(context &ctx)
{
    ngx_log_error(NGX_LOG_INFO, ctx.request->connection->log, 0,
                  "idempotency: the client is gone, its request runs on");

    ctx.capture.client_gone = true;
    ctx.request->keepalive = 0;
    ctx.request->connection->error = 1;

    /* Nobody will ever make room: what stands still for that must go on. */
    ctx.request->connection->write->ready = 1;
    ctx.request->connection->write->delayed = 0;

    consume(ctx.capture.unsent);
}


/* In place of the upstream's: it would end the exchange for a slow client. */
void
write_to_client(ngx_http_request_t *r)
{
    context *ctx = find_context(r);
    ngx_event_t *wev = r->connection->write;

    if (wev->timedout && ctx->at == stage::running) {
        wev->timedout = 0;
        client_gone(*ctx);
    }

    ctx->run.write_event_handler(r);
}


void
outlast_client(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (r->upstream != nullptr && r->upstream->cleanup != nullptr
        && r->write_event_handler != write_to_client && !ctx.conf->dry_run)
    {
        ctx.run.write_event_handler = r->write_event_handler;
        r->write_event_handler = write_to_client;
    }
}


ngx_int_t
pass_on(context &ctx, ngx_chain_t *in)
{
    ngx_http_request_t *r = ctx.request;

    if (ctx.capture.client_gone) {
        consume(in);
        return ctx.at == stage::running ? NGX_OK : NGX_ERROR;
    }

    ngx_int_t rc = next_body_filter(r, in);

    note_passed(ctx, in);

    if (rc != NGX_ERROR || !r->connection->error || ctx.conf->dry_run
        || ctx.at != stage::running)
    {
        return rc;
    }

    client_gone(ctx);
    consume(in);

    return NGX_OK;
}


ngx_int_t
stream(context &ctx, ngx_chain_t *in)
{
    capture_state &capture = ctx.capture;
    portion p = measure(in);

    if (fits(ctx, p) && !keep(ctx, in)) {
        capture.overflow = true;
    }

    outlast_client(ctx);

    if (p.last) {
        settle(ctx, !is_truncated(ctx.request, p));
    }

    return pass_on(ctx, in);
}


ngx_int_t
start_streaming(context &ctx)
{
    ctx.capture.how = capture_state::streamed;

    ngx_int_t rc = next_header_filter(ctx.request);

    if (rc == NGX_ERROR && ctx.request->connection->error
        && !ctx.conf->dry_run) {
        client_gone(ctx);
        rc = NGX_OK;
    }

    if (ctx.request->header_only && rc == NGX_OK) {
        settle(ctx, true);
    }

    return rc;
}


/* What was held goes out, the rest as it comes. */
ngx_int_t
stop_holding(context &ctx)
{
    ngx_int_t rc = start_streaming(ctx);

    if (rc == NGX_ERROR || rc > NGX_OK || ctx.capture.body == nullptr) {
        return rc;
    }

    return pass_on(ctx, ctx.capture.body);
}


ngx_int_t
hold(context &ctx, ngx_chain_t *in)
{
    capture_state &capture = ctx.capture;
    portion p = measure(in);

    if (capture.waiting) {
        return NGX_AGAIN;
    }

    if (is_truncated(ctx.request, p)) {
        consume(in);
        return fail_truncated(ctx);
    }

    outlast_client(ctx);

    if (!fits(ctx, p)) {
        capture.size -= p.size;

        ngx_int_t rc = stop_holding(ctx);

        return rc == NGX_ERROR || rc > NGX_OK ? rc : stream(ctx, in);
    }

    if (!keep(ctx, in)) {
        return NGX_ERROR;
    }

    consume(in);

    if (!p.last) {
        return NGX_OK;
    }

    if (ctx.request->upstream != nullptr && !is_whole(ctx)) {
        return fail_truncated(ctx);
    }

    capture.whole = true;

    return settle_and_send(ctx);
}


/*
 * A subrequest writes while the main header is held: the client must get the
 * header first, and what comes is no response that could be told again.
 */
ngx_int_t
pass_foreign(context &ctx, ngx_http_request_t *r, ngx_chain_t *in)
{
    if (in != nullptr && !r->subrequest_in_memory && !r->background) {
        ctx.capture.overflow = true;

        ngx_int_t rc = stop_holding(ctx);

        if (rc == NGX_ERROR || rc > NGX_OK) {
            return rc;
        }
    }

    return next_body_filter(r, in);
}


/* And not an error page: then the exchange is over, or never was. */
bool
is_own_answer(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (ctx.run.frozen || ctx.run.handler_status != 0) {
        return false;
    }

    return r->cached || r->upstream == ctx.run.upstream_before
           || r->upstream->cleanup != nullptr;
}


ngx_int_t
start_capture(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    capture_state &capture = ctx.capture;

    capture = {};
    capture.last = &capture.body;
    capture.settled = {&ctx, outcome_settled};
    capture.own_answer = is_own_answer(ctx);
    capture.status = static_cast<unsigned>(r->headers_out.status);
    capture.content_length = r->headers_out.content_length_n;

    /* What was said before X-Accel-Redirect or an error page counts first. */
    capture.word = ctx.run.frozen || spoken(ctx.run.word) ? ctx.run.word
                                                          : read_app_word(ctx);
    strip_app_word(r);

    if (!keep_header(ctx)) {
        return NGX_ERROR;
    }

    if (capture.content_length > static_cast<off_t>(ctx.conf->max_response)) {
        capture.overflow = true;
    }

    if (!capture.overflow) {
        r->filter_need_in_memory = 1;
    }

    /* The range filter would cut what is captured, or what is replayed. */
    if (!ctx.conf->dry_run) {
        r->allow_ranges = 0;
    }

    if (capture.overflow || !ctx.conf->hold || ctx.conf->dry_run
        || r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS
        || is_event_stream(view(r->headers_out.content_type)))
    {
        return start_streaming(ctx);
    }

    capture.how = capture_state::held;

    if (!r->header_only) {
        return NGX_OK;
    }

    capture.whole = true;
    return settle_and_send(ctx);
}


/* A second header while one is held: the first will never be sent. */
ngx_int_t
header_filter(ngx_http_request_t *r)
{
    if (r != r->main) {
        return next_header_filter(r);
    }

    context *ctx = find_context(r);

    if (ctx != nullptr && ctx->at == stage::running) {
        return start_capture(*ctx);
    }

    if (location(r)->store != nullptr) {
        strip_app_word(r);
    }

    return next_header_filter(r);
}


ngx_int_t
body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->capture.how == capture_state::none) {
        return next_body_filter(r, in);
    }

    bool held = ctx->capture.how == capture_state::held;

    if (r != r->main) {
        return held ? pass_foreign(*ctx, r, in) : next_body_filter(r, in);
    }

    if (held) {
        return hold(*ctx, in);
    }

    return ctx->at == stage::running ? stream(*ctx, in) : pass_on(*ctx, in);
}

}


/*
 * Sends a response from our place in the chain: the filters above it (range
 * bodies, conditions) saw it once, those below it are to see it.
 */
ngx_int_t
send_below(ngx_http_request_t *r, ngx_chain_t *body)
{
    ngx_int_t rc = next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return next_body_filter(r, body);
}


void
init_response_filters()
{
    next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = header_filter;

    next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = body_filter;
}

}
