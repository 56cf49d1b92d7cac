#include "module/run.h"

#include "module/context.h"

namespace idempotency {

namespace {

void wrap_content_handler(context &ctx);
ngx_int_t run_content(ngx_http_request_t *r);
bool was_sent(const context &ctx);
bool is_same_request(const context &ctx);

}


ngx_int_t
start_run(context &ctx)
{
    ngx_http_headers_in_t &in = ctx.request->headers_in;

    move_to(ctx, stage::running);
    ctx.run.attempt = ctx.claim.answer.attempt;
    ctx.run.http_version = ctx.request->http_version;
    ctx.run.evidence.first_exchange = elements<ngx_http_upstream_state_t>(
                                          ctx.request->upstream_states)
                                          .size();

    /*
     * The outcome is the whole answer.  A condition is for the application,
     * which still gets the header: nginx itself must not make a 304 of it.
     */
    if (!ctx.conf->dry_run) {
        in.if_match = nullptr;
        in.if_none_match = nullptr;
        in.if_modified_since = nullptr;
        in.if_unmodified_since = nullptr;
    }

    start_place(ctx);
    start_renewal(ctx);
    start_noting_copies(ctx, false);
    wrap_content_handler(ctx);

    return NGX_DECLINED;
}


/*
 * If no peer was asked yet, the handler has only sent the request on
 * (ngx.exec), and the run begins here.  After X-Accel-Redirect or error_page
 * to a URI, what comes is another request.  A named location would send the
 * same request again: if it may have been executed, that is done only where
 * the application itself has said so.
 */
ngx_int_t
enter_again(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    evidence_state &known = ctx.run.evidence;
    bool redirected = application_redirected(ctx);

    note_place(ctx, redirected || known.delegated);
    start_noting_copies(ctx, true);

    if (redirected) {
        known.delegated = true;
        read_app_word(ctx);
    }

    known.from_file = known.delegated && r->content_handler == nullptr;

    if (!known.frozen && !is_same_request(ctx)) {
        freeze_evidence(ctx);
    }

    /* A page must not become the request again (ngx.req.set_method). */
    bool page = known.frozen && !known.delegated;
    bool allowed = ctx.conf->dry_run || r->content_handler == nullptr;

    if (page && (allowed || is_safe_method(r))) {
        return NGX_DECLINED;
    }

    if (!page && (allowed || known.frozen || redirected || !was_sent(ctx))) {
        wrap_content_handler(ctx);
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: request already sent to an upstream peer, not "
                  "sending it again from location \"%V\"",
                  &location_around(r)->name);

    r->error_page = 1;
    return static_cast<ngx_int_t>(last_error_status(ctx));
}


ngx_int_t
stop_or_pass(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (r->content_handler == nullptr || ctx.conf->dry_run
        || !is_same_request(ctx))
    {
        return NGX_DECLINED;
    }

    r->error_page = 1;

    if (ctx.at == stage::refused) {
        return send_problem(ctx, ctx.error);
    }

    return ctx.body.refused_by != 0 ? ctx.body.refused_by
                                    : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


bool
is_guarded(const context &ctx)
{
    const evidence_state &known = ctx.run.evidence;

    return ctx.at == stage::running && !ctx.conf->dry_run
           && (!known.frozen || known.delegated);
}


namespace {

void
wrap_content_handler(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (r->content_handler != nullptr && r->content_handler != run_content) {
        ctx.run.content_handler = r->content_handler;
        ctx.run.location = core_location(r);
        r->content_handler = run_content;
    }
}


/*
 * The client's leaving must not end the exchange.  The gate has read the body,
 * so that the upstream was started inside the content handler's call.
 */
ngx_int_t
run_content(ngx_http_request_t *r)
{
    if (r != r->main) {
        return run_subrequest(r);
    }

    context *ctx = find_context(r);
    evidence_state &known = ctx->run.evidence;

    if (!note_copies(*ctx)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    known.upstream_before = r->upstream;
    known.handler_status = 0;
    known.nonsense = false;
    known.answered = false;

    ngx_int_t rc = ctx->run.content_handler(r);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE && !has_upstream(*ctx)) {
        known.handler_status = static_cast<ngx_uint_t>(rc);
    }

    if (!is_guarded(*ctx) || r->upstream == nullptr || !has_upstream(*ctx)) {
        return rc;
    }

    if (guard_exchange(*ctx, r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    stop_watching_client(r);

    return rc;
}


/*
 * A handler may ask others by subrequests and then send the request itself on
 * (ngx.exec).  An error page in place of a handler that failed would do again
 * what the subrequests have done.
 */
bool
was_sent(const context &ctx)
{
    const ngx_http_request_t *r = ctx.request;
    bool error_page = r->error_page || r->err_status != 0
                      || ctx.run.location->recursive_error_pages;

    return error_page ? any_byte_sent(ctx) : any_byte_sent(ctx, ctx.request);
}


/*
 * nginx makes a GET of what it sends to a URI, by error_page or by
 * X-Accel-Redirect: what has kept its method has come to a named location,
 * whatever was rewritten there.  Any other method was set by a handler
 * (ngx.req.set_method), and goes on with the same body.
 */
bool
is_same_request(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return !has_become_get(ctx)
           && (!is_safe_method(r) || location_around(r)->named
               || view(r->uri) == view(ctx.uri));
}

}

}
