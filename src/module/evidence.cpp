#include "module/evidence.h"

#include "module/context.h"
#include "module/framing.h"
#include "module/portion.h"

namespace idempotency {

namespace {

std::span<ngx_http_upstream_state_t> exchanges(const context &ctx);
std::span<ngx_http_upstream_state_t> exchanges(const context &ctx,
                                               ngx_http_request_t *r);
bool nothing_follows(const context &ctx, ngx_int_t rc);
unsigned answered_status(ngx_http_request_t *r,
                         const ngx_http_upstream_state_t &s);
ngx_uint_t own_status(const context &ctx);
bool is_app_word(const ngx_table_elt_t &h);

}


evidence
collect_evidence(context &ctx, bool complete)
{
    const evidence_state &known = ctx.run.evidence;
    evidence seen = known.seen;
    auto all = exchanges(ctx);

    if (!known.frozen) {
        seen.sent = any_byte_sent(ctx);
        seen.own_handler = !has_upstream(ctx) || ctx.request->cached;
        seen.complete = complete;
        seen.status = static_cast<unsigned>(own_status(ctx));
        seen.unanswered = ctx.run.subrequests.unanswered || known.nonsense;
        seen.unfinished = is_subrequest_under_way(ctx);

        for (const ngx_http_upstream_state_t &s : all) {

            if (is_answered(s)) {
                seen.status = answered_status(ctx.request, s);

            } else if (s.bytes_sent > 0) {
                seen.unanswered = true;
            }
        }
    }

    seen.again = ctx.run.attempt > 1;

    /* The rest of an answer that was to come from elsewhere is part of it. */
    if (known.delegated) {
        seen.complete = complete || known.from_file;
        seen.unanswered = seen.unanswered
                          || (!all.empty() && !is_answered(all.back()));
    }

    return seen;
}


/*
 * Of a response that nginx has in a file the client may get a part only.  That
 * says nothing of what the application did: it has given all of its answer.
 */
evidence
evidence_without_response(context &ctx)
{
    return collect_evidence(ctx,
                            ctx.run.evidence.answered || ctx.request->cached);
}


void
note_end_of_exchange(context &ctx, ngx_int_t rc)
{
    const ngx_http_upstream_t *u = ctx.request->upstream;

    ctx.run.evidence.answered = rc == NGX_OK && has_end(u)
                                && !has_no_framing(u);

    if (ctx.at == stage::running && nothing_follows(ctx, rc)) {
        abandon_run(ctx);
    }
}


void
freeze_evidence(context &ctx)
{
    read_app_word(ctx);

    ctx.run.evidence.seen = collect_evidence(ctx, true);
    ctx.run.evidence.frozen = true;
}


bool
any_byte_sent(const context &ctx)
{
    if (ctx.run.subrequests.sent || any_byte_sent(ctx, ctx.request)) {
        return true;
    }

    for (const guarded_exchange *e = ctx.run.peers.under_way; e != nullptr;
         e = e->next)
    {
        if (any_byte_sent(ctx, e->request)) {
            return true;
        }
    }

    return false;
}


bool
any_byte_sent(const context &ctx, ngx_http_request_t *r)
{
    const ngx_http_upstream_t *u = r->upstream;

    for (const ngx_http_upstream_state_t &s : exchanges(ctx, r)) {
        if (s.bytes_sent > 0) {
            return true;
        }
    }

    return u != nullptr && u->peer.connection != nullptr
           && u->peer.connection->sent > 0;
}


bool
is_answered(const ngx_http_upstream_state_t &s)
{
    return s.header_time != static_cast<ngx_msec_t>(-1) && s.status != 0;
}


/* No client of this version sends a key. */
bool
is_nonsense(const ngx_http_request_t *r)
{
    return r->http_version == NGX_HTTP_VERSION_9 && r->upstream != nullptr;
}


/* With an error page the exchange is over, or never was. */
bool
is_own_answer(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    const evidence_state &known = ctx.run.evidence;

    if (known.frozen || known.handler_status != 0) {
        return false;
    }

    return r->cached || !has_upstream(ctx) || r->upstream->cleanup != nullptr;
}


bool
has_upstream(const context &ctx)
{
    return ctx.request->upstream != ctx.run.evidence.upstream_before;
}


bool
application_redirected(const context &ctx)
{
    ngx_http_upstream_t *u = ctx.request->upstream;

    if (u == nullptr || !has_upstream(ctx)
        || u->headers_in.x_accel_redirect == nullptr
        || (u->conf->ignore_headers & NGX_HTTP_UPSTREAM_IGN_XA_REDIRECT))
    {
        return false;
    }

    bool intercepted = u->conf->intercept_errors
                       && has_error_page(ctx.run.location,
                                         u->headers_in.status_n);

    return !intercepted;
}


ngx_uint_t
last_error_status(const context &ctx)
{
    auto all = exchanges(ctx);

    return !all.empty() && all.back().status >= NGX_HTTP_SPECIAL_RESPONSE
               ? all.back().status
               : NGX_HTTP_BAD_GATEWAY;
}


/*
 * The word is looked for in the upstream's own header, as nginx may have made
 * another one of it.  What was said before X-Accel-Redirect or an error page
 * counts first.
 */
void
read_app_word(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_http_upstream_t *u = r->upstream;
    evidence_state &known = ctx.run.evidence;
    bool asked = u != nullptr && has_upstream(ctx)
                 && u->headers_in.headers.part.elts != nullptr;

    if (!ctx.conf->app_control || known.frozen || spoken(known.word)) {
        return;
    }

    each_field(asked ? u->headers_in.headers : r->headers_out.headers,
               [&](ngx_table_elt_t &h) {
                   if (is_app_word(h)
                       && !parse_app_word(view(h.value), known.word)) {
                       ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                                     "idempotency: ignored invalid value "
                                     "\"%V\" of the response header "
                                     "X-Accel-Idempotency; valid are "
                                     "\"release\", \"discard\" and "
                                     "\"ttl=SECONDS\"",
                                     &h.value);
                   }
               });
}


void
strip_app_word(ngx_list_t &fields)
{
    each_field(fields, [](ngx_table_elt_t &h) {
        if (is_app_word(h)) {
            h.hash = 0;
        }
    });
}


namespace {

/* The exchanges of this run: there may have been others before the gate. */
std::span<ngx_http_upstream_state_t>
exchanges(const context &ctx)
{
    return exchanges(ctx, ctx.request);
}


std::span<ngx_http_upstream_state_t>
exchanges(const context &ctx, ngx_http_request_t *r)
{
    auto all = elements<ngx_http_upstream_state_t>(r->upstream_states);
    ngx_uint_t first = r == r->main ? ctx.run.evidence.first_exchange : 0;

    return all.subspan(ngx_min(first, all.size()));
}


/*
 * As ngx_http_upstream_finalize_request() goes on from here: a whole response
 * gets its last buffer and a broken one a flush, unless an output filter has
 * failed.  Of these two, what is passed on waits for the first alone.  Before
 * the header an error becomes a page.
 */
bool
nothing_follows(const context &ctx, ngx_int_t rc)
{
    const ngx_http_upstream_t *u = ctx.request->upstream;
    bool ended = rc == NGX_ERROR || rc == NGX_DONE
                 || rc == NGX_HTTP_REQUEST_TIME_OUT
                 || rc == NGX_HTTP_CLIENT_CLOSED_REQUEST;

    if (ended || rc == NGX_DECLINED) {
        return ended;
    }

    if (!u->header_sent) {
        return ctx.request->connection->error;
    }

    bool failed = u->pipe != nullptr && u->pipe->downstream_error;

    return failed || (rc != NGX_OK && !is_held_back(ctx.capture));
}


/* nginx that knows early hints keeps their status as that of the exchange. */
unsigned
answered_status(ngx_http_request_t *r, const ngx_http_upstream_state_t &s)
{
    const ngx_http_upstream_t *u = r->upstream;
    bool hinted = s.status == 103 && u != nullptr && u->state == &s
                  && u->headers_in.status_n >= 200;

    return static_cast<unsigned>(hinted ? u->headers_in.status_n : s.status);
}


/* Of an answer from inside nginx, also if an error page covers it. */
ngx_uint_t
own_status(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (ctx.run.evidence.handler_status != 0) {
        return ctx.run.evidence.handler_status;
    }

    return r->err_status != 0 ? r->err_status : r->headers_out.status;
}


bool
is_app_word(const ngx_table_elt_t &h)
{
    return h.hash != 0 && same_name(view(h.key), "x-accel-idempotency");
}

}

}
