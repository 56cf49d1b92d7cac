#include "module/capture.h"

#include "module/context.h"
#include "module/framing.h"
#include "module/headers.h"
#include "module/keeping.h"
#include "module/portion.h"
#include "module/replay.h"
#include "module/streaming.h"
#include "module/writers.h"

namespace idempotency {

namespace {

using mode = capture_state::mode;

constexpr ngx_uint_t buffered_bit = 0x08;

ngx_http_output_header_filter_pt next_header_filter;
ngx_http_output_body_filter_pt next_body_filter;

ngx_int_t header_filter(ngx_http_request_t *r);
ngx_int_t body_filter(ngx_http_request_t *r, ngx_chain_t *in);

ngx_int_t fail_nonsense(context &ctx);
ngx_int_t start_capture(context &ctx);
bool is_streamed(const context &ctx);
bool is_in_file(const context &ctx);
bool goes_to_file(const ngx_http_request_t *r);

ngx_int_t hold_back(context &ctx, ngx_chain_t *in);
ngx_int_t settle_and_send(context &ctx);
void send_waiting(context &ctx);
ngx_int_t send_held(context &ctx);
ngx_int_t fail_truncated(context &ctx);
ngx_int_t send_error_page(ngx_http_request_t *r, ngx_int_t status);
ngx_int_t stop_holding(context &ctx);

ngx_int_t pass_foreign(context &ctx, ngx_http_request_t *r, ngx_chain_t *in);

}


void
init_response_filters()
{
    next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = header_filter;

    next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = body_filter;
}


ngx_int_t
pass_header(ngx_http_request_t *r)
{
    return next_header_filter(r);
}


ngx_int_t
pass_body(ngx_http_request_t *r, ngx_chain_t *in)
{
    return next_body_filter(r, in);
}


ngx_int_t
send_below(ngx_http_request_t *r, ngx_chain_t *body)
{
    ngx_int_t rc = next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return next_body_filter(r, body);
}


namespace {

/*
 * A second header while one is held: the first will never be sent.  While one
 * is streamed, a filter below us has rejected it.
 */
ngx_int_t
header_filter(ngx_http_request_t *r)
{
    if (r != r->main) {
        return next_header_filter(r);
    }

    context *ctx = find_context(r);

    if (ctx != nullptr && ctx->at == stage::running) {
        if (is_nonsense(r) && !ctx->conf->dry_run) {
            return fail_nonsense(*ctx);
        }

        return ctx->capture.how == mode::streamed ? reject_streamed(*ctx)
                                                  : start_capture(*ctx);
    }

    if (location(r)->store != nullptr) {
        strip_app_word(r->headers_out.headers);
        strip_mark(r->headers_out.headers, location(r));
    }

    return next_header_filter(r);
}


ngx_int_t
body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->capture.how == mode::none) {
        return next_body_filter(r, in);
    }

    if (r != r->main) {
        return pass_foreign(*ctx, r, in);
    }

    switch (ctx->capture.how) {

    case mode::held: return hold_back(*ctx, in);

    case mode::waiting: return NGX_AGAIN;

    default:
        return ctx->at == stage::running ? stream(*ctx, in)
                                         : pass_on(*ctx, in);
    }
}


/* nginx would pass it on to the client as it is, without a header. */
ngx_int_t
fail_nonsense(context &ctx)
{
    ctx.run.evidence.nonsense = true;
    ctx.request->http_version = ctx.run.http_version;

    return NGX_HTTP_BAD_GATEWAY;
}


ngx_int_t
start_capture(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    capture_state &capture = ctx.capture;

    capture = {};
    capture.last = &capture.body;
    capture.own_answer = is_own_answer(ctx);
    capture.bodiless = is_bodiless(r);
    capture.status = static_cast<unsigned>(r->headers_out.status);
    capture.content_length = r->headers_out.content_length_n;

    ctx.run.client.gone = false;
    ctx.run.client.unsent = nullptr;

    read_app_word(ctx);
    strip_app_word(r->headers_out.headers);
    strip_mark(r->headers_out.headers, ctx.conf);

    if (!keep_header(ctx)) {
        return NGX_ERROR;
    }

    if (!capture.bodiless
        && capture.content_length > static_cast<off_t>(ctx.conf->max_response))
    {
        not_to_keep(ctx, not_kept::too_large);
    }

    if (is_kept(capture)) {
        r->filter_need_in_memory = 1;
    }

    /*
     * The range filter would cut what is captured, or what is replayed.  Of a
     * response in slices each slice is a subrequest, which has to be cut.
     */
    if (r->subrequest_ranges) {
        not_alone(ctx);

    } else if (!ctx.conf->dry_run) {
        r->allow_ranges = 0;
    }

    look_for_writers(ctx);

    if (is_streamed(ctx)) {
        return start_streaming(ctx);
    }

    capture.how = mode::held;

    /* Filters below may want the request's body when they get the header. */
    r->preserve_body = 1;

    if (!r->header_only) {
        return break_off_on_error(r) ? NGX_OK : NGX_ERROR;
    }

    capture.whole = true;
    return settle_and_send(ctx);
}


bool
is_streamed(const context &ctx)
{
    const ngx_http_headers_out_t &out = ctx.request->headers_out;

    if (!is_kept(ctx.capture) || ctx.conf->dry_run
        || out.status == NGX_HTTP_SWITCHING_PROTOCOLS)
    {
        return true;
    }

    if (is_in_file(ctx)) {
        return false;
    }

    return is_event_stream(view(out.content_type))
           || (!ctx.conf->hold && !goes_to_file(ctx.request));
}


/*
 * Nothing more comes from an upstream.  Such a response stands still for a
 * client that reads slowly, and ends with it, out of our sight.
 */
bool
is_in_file(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return r->cached || (has_upstream(ctx) && r->upstream->cleanup == nullptr);
}


/* The same, as nginx reads it to its cache first. */
bool
goes_to_file(const ngx_http_request_t *r)
{
    const ngx_http_upstream_t *u = r->upstream;

    return u != nullptr && u->cleanup != nullptr && (u->cacheable || u->store);
}


ngx_int_t
hold_back(context &ctx, ngx_chain_t *in)
{
    capture_state &capture = ctx.capture;
    ngx_http_request_t *r = ctx.request;
    portion p = measure(in);

    if (is_truncated(r, p)) {
        consume(in);
        return fail_truncated(ctx);
    }

    outlast_slow_client(ctx);

    if (in != nullptr) {
        look_for_writers(ctx);
    }

    if (!fits(ctx, p)) {
        capture.size -= p.size;

        ngx_int_t rc = stop_holding(ctx);

        return rc == NGX_ERROR || rc > NGX_OK ? rc : body_filter(r, in);
    }

    if (!keep_body(ctx, in)) {
        return NGX_ERROR;
    }

    consume(in);

    if (!p.last) {
        return NGX_OK;
    }

    capture.cut_off = is_cut_off(ctx);

    if (r->upstream != nullptr && !is_whole(ctx)) {
        return fail_truncated(ctx);
    }

    capture.whole = true;

    return settle_and_send(ctx);
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

    settle(ctx, true, send_waiting);

    if (ctx.at == stage::settled) {
        return send_held(ctx);
    }

    ctx.capture.how = mode::waiting;
    r->buffered |= buffered_bit;
    r->connection->write->delayed = 1;

    return NGX_AGAIN;
}


/* The store has answered; if that was at once, nothing waits. */
void
send_waiting(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_connection_t *c = r->connection;

    if (ctx.capture.how != mode::waiting) {
        return;
    }

    stop_store_time(ctx);
    ngx_http_set_log_request(c->log, r);

    r->buffered &= ~buffered_bit;
    c->write->delayed = 0;

    ngx_int_t rc = send_held(ctx);

    /* A filter below rejects the response: the client gets its error. */
    if (rc > NGX_OK) {
        rc = send_error_page(r, rc);
    }

    /* Such a page is sent even where NGX_ERROR is returned. */
    if (rc == NGX_ERROR && !r->filter_finalize) {
        c->error = 1;
    }

    r->write_event_handler(r);
    ngx_http_run_posted_requests(c);
}


ngx_int_t
send_held(context &ctx)
{
    capture_state &capture = ctx.capture;
    ngx_http_request_t *r = ctx.request;

    capture.how = mode::none;

    if (ctx.ending.at == ending_state::step::superseded) {
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

    settle(ctx, false, nullptr);
    ctx.capture.how = mode::none;

    return send_error_page(r, NGX_HTTP_BAD_GATEWAY);
}


/* The page that nginx has for it: "error_page" would be a redirect. */
ngx_int_t
send_error_page(ngx_http_request_t *r, ngx_int_t status)
{
    r->error_page = 1;

    return ngx_http_filter_finalize_request(r, &ngx_http_idempotency_module,
                                            status);
}


/*
 * What was held goes out, the rest as it comes.  It was written before any
 * subrequest that is under way was made.
 */
ngx_int_t
stop_holding(context &ctx)
{
    before_subrequests first(ctx.request);
    ngx_int_t rc = start_streaming(ctx);

    if (rc == NGX_ERROR || rc > NGX_OK || ctx.capture.body == nullptr) {
        return rc;
    }

    return pass_on(ctx, ctx.capture.body);
}


/*
 * A subrequest writes.  If the main header is held, the client must get that
 * first, and what comes is no response that could be told again.
 */
ngx_int_t
pass_foreign(context &ctx, ngx_http_request_t *r, ngx_chain_t *in)
{
    if (in != nullptr && ctx.at == stage::running && writes_a_part(ctx, r)) {
        not_alone(ctx);

        if (is_held_back(ctx.capture)) {
            ngx_int_t rc = stop_holding(ctx);

            if (rc == NGX_ERROR || rc > NGX_OK) {
                return rc;
            }
        }
    }

    return next_body_filter(r, in);
}

}

}
