#include "module/subrequests.h"

#include "module/context.h"
#include "module/portion.h"

namespace idempotency {

namespace {

guarded_subrequest *find_guarded(const context &ctx, ngx_http_request_t *r);
bool is_copy(const context &ctx, ngx_http_request_t *r);
bool would_send_again(ngx_http_request_t *r);
bool is_answered_in_full(ngx_http_request_t *r, ngx_int_t rc);

}


/*
 * A named location that an error page leads to would send the same subrequest
 * again.
 */
ngx_int_t
guard_subrequest(ngx_http_request_t *r)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || r->content_handler == nullptr
        || !is_guarded_subrequest(*ctx, r))
    {
        return NGX_DECLINED;
    }

    guarded_subrequest *guarded = find_guarded(*ctx, r);

    if (guarded == nullptr) {
        guarded = make<guarded_subrequest>(r->pool);

        if (guarded == nullptr) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        guarded->request = r;
        guarded->next = ctx->run.subrequests.guarded;
        ctx->run.subrequests.guarded = guarded;

    } else if (would_send_again(r)) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency: subrequest already sent to an upstream "
                      "peer, not sending it again from named location \"%V\"",
                      &core_location(r)->name);

        r->error_page = 1;
        return NGX_HTTP_BAD_GATEWAY;
    }

    if (r->content_handler != run_subrequest) {
        guarded->content_handler = r->content_handler;
        r->content_handler = run_subrequest;
    }

    return NGX_DECLINED;
}


/* One in the background may outlast the outcome. */
bool
is_guarded_subrequest(const context &ctx, ngx_http_request_t *r)
{
    bool run = ctx.at == stage::running || ctx.at == stage::settling
               || ctx.at == stage::settled;

    return run && !ctx.conf->dry_run && !is_safe_method(r) && !is_copy(ctx, r);
}


/* A copy (of slice, or to refresh the cache) comes with the main's handler. */
ngx_int_t
run_subrequest(ngx_http_request_t *r)
{
    context *ctx = find_context(r->main);
    guarded_subrequest *guarded = find_guarded(*ctx, r);
    ngx_http_upstream_t *before = r->upstream;

    ngx_int_t rc = guarded != nullptr ? guarded->content_handler(r)
                                      : ctx->run.content_handler(r);

    if (r->upstream == nullptr || r->upstream == before
        || !is_guarded_subrequest(*ctx, r))
    {
        return rc;
    }

    if (guard_exchange(*ctx, r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    stop_watching_client(r);

    return rc;
}


/* It is talking to an upstream, or it was made and has not begun. */
bool
is_subrequest_under_way(const context &ctx)
{
    for (const guarded_exchange *e = ctx.run.peers.under_way; e != nullptr;
         e = e->next)
    {
        if (e->request != ctx.request) {
            return true;
        }
    }

    for (ngx_http_posted_request_t *p = ctx.request->posted_requests;
         p != nullptr; p = p->next)
    {
        if (p->request->background && is_guarded_subrequest(ctx, p->request)) {
            return true;
        }
    }

    return false;
}


void
note_end_of_subrequest(context &ctx, ngx_http_request_t *r, ngx_int_t rc)
{
    subrequest_state &known = ctx.run.subrequests;

    if (!any_byte_sent(ctx, r)) {
        return;
    }

    known.sent = true;
    known.unanswered = known.unanswered || !is_answered_in_full(r, rc);
}


void
start_noting_copies(context &ctx, bool from_here)
{
    ngx_uint_t posted = 0;

    for (ngx_http_posted_request_t *p = ctx.request->posted_requests;
         from_here && p != nullptr; p = p->next)
    {
        posted++;
    }

    ctx.run.subrequests.posted_once = posted;
}


bool
note_copies(context &ctx)
{
    subrequest_state &known = ctx.run.subrequests;
    ngx_uint_t n = 0;

    for (ngx_http_posted_request_t *p = ctx.request->posted_requests;
         p != nullptr; p = p->next)
    {
        if (n++ < known.posted_once || !p->request->background) {
            continue;
        }

        auto *copy = make<mirror_copy>(ctx.request->pool);

        if (copy == nullptr) {
            return false;
        }

        *copy = {p->request, known.copies};
        known.copies = copy;
    }

    return true;
}


namespace {

guarded_subrequest *
find_guarded(const context &ctx, ngx_http_request_t *r)
{
    guarded_subrequest *g = ctx.run.subrequests.guarded;

    while (g != nullptr && g->request != r) {
        g = g->next;
    }

    return g;
}


bool
is_copy(const context &ctx, ngx_http_request_t *r)
{
    const mirror_copy *c = ctx.run.subrequests.copies;

    while (c != nullptr && c->request != r) {
        c = c->next;
    }

    return c != nullptr;
}


/* Unless the application itself has sent nginx there. */
bool
would_send_again(ngx_http_request_t *r)
{
    const ngx_http_upstream_t *u = r->upstream;
    const context *ctx = find_context(r->main);

    return any_byte_sent(*ctx, r)
           && (u == nullptr || u->headers_in.x_accel_redirect == nullptr);
}


/* The code is 0, or tells that something else takes the answer's place. */
bool
is_answered_in_full(ngx_http_request_t *r, ngx_int_t rc)
{
    const ngx_http_upstream_t *u = r->upstream;

    for (const ngx_http_upstream_state_t &s :
         elements<ngx_http_upstream_state_t>(r->upstream_states))
    {
        if (s.bytes_sent > 0 && !is_answered(s)) {
            return false;
        }
    }

    if (is_nonsense(r)) {
        return false;
    }

    return rc == NGX_OK ? has_end(u) : rc == NGX_DECLINED || !u->header_sent;
}

}

}
