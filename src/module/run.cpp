#include "module/context.h"

#include <algorithm>

namespace idempotency {

namespace {

/* What a peer's owner has put into the upstream, behind our guard. */
struct guarded_peer {
    run_state *run; /* of a subrequest */
    void *data;
    ngx_event_get_peer_pt get;
    ngx_event_free_peer_pt free;
    ngx_event_notify_peer_pt notify;
#if (NGX_SSL || NGX_COMPAT)
    ngx_event_set_peer_session_pt set_session;
    ngx_event_save_peer_session_pt save_session;
#endif
};


constexpr ngx_msec_t renew_again = 300;


/* For such an answer nginx would ask another peer. */
constexpr ngx_uint_t answered_by_peer = NGX_HTTP_UPSTREAM_FT_HTTP_500
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_502
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_503
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_504
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_403
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_404
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_429;


void
renewed(settle_waiter &waiter, settle_result result)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    if (ctx->at != stage::running) {
        return;
    }

    if (result == settle_result::lost) {
        ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                      "idempotency: the lease of a running request was lost");
        return;
    }

    /* What failed is tried again well before the lease is over. */
    ngx_msec_t third = ctx->conf->lease / 3;
    ngx_msec_t taken = ngx_current_msec - ctx->run.renewed_at;

    ngx_add_timer(&ctx->run.renewal.event,
                  result == settle_result::unavailable
                      ? ngx_min(third, renew_again)
                      : third - ngx_min(taken, third - 1));
}


void
renew(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    ctx->run.renewed = {ctx, renewed};
    ctx->run.renewed_at = ngx_current_msec;
    ctx->conf->store->backend->renew(ctx->own, ctx->run.renewed);
}


/* The exchanges of this run: some may have been before the gate. */
std::span<ngx_http_upstream_state_t>
exchanges(const context &ctx)
{
    auto all = elements<ngx_http_upstream_state_t>(
        ctx.request->upstream_states);

    return all.subspan(ngx_min(ctx.run.first_exchange, all.size()));
}


/* A byte to one of them, and no other may be tried. */
bool
any_byte_sent(const context &ctx)
{
    ngx_http_upstream_t *u = ctx.request->upstream;

    for (const ngx_http_upstream_state_t &s : exchanges(ctx)) {
        if (s.bytes_sent > 0) {
            return true;
        }
    }

    return ctx.run.subrequest_sent
           || (u != nullptr && u->peer.connection != nullptr
               && u->peer.connection->sent > 0);
}


bool
is_answered(const ngx_http_upstream_state_t &s)
{
    return s.header_time != static_cast<ngx_msec_t>(-1) && s.status != 0;
}


ngx_int_t
get_peer(ngx_peer_connection_t *pc, void *data)
{
    auto *peer = static_cast<guarded_peer *>(data);

    return peer->get(pc, peer->data);
}


/*
 * nginx decides on a further try after it has freed the peer: by the tries
 * that are left and, for a kept connection, by one more.
 */
void
free_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t state)
{
    auto *peer = static_cast<guarded_peer *>(data);
    bool sent = pc->connection != nullptr && pc->connection->sent > 0;

    if (peer->free != nullptr) {
        peer->free(pc, peer->data, state);
    }

    if (!sent) {
        return;
    }

    pc->tries = 0;
    pc->cached = 0;

    if (peer->run != nullptr) {
        peer->run->subrequest_sent = true;
        peer->run->subrequest_unanswered = peer->run->subrequest_unanswered
                                           || (state & NGX_PEER_FAILED) != 0;
    }
}


void
notify_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t type)
{
    auto *peer = static_cast<guarded_peer *>(data);

    peer->notify(pc, peer->data, type);
}


#if (NGX_SSL || NGX_COMPAT)

ngx_int_t
set_peer_session(ngx_peer_connection_t *pc, void *data)
{
    auto *peer = static_cast<guarded_peer *>(data);

    return peer->set_session(pc, peer->data);
}


void
save_peer_session(ngx_peer_connection_t *pc, void *data)
{
    auto *peer = static_cast<guarded_peer *>(data);

    peer->save_session(pc, peer->data);
}

#endif


ngx_int_t
guard_peer(context &ctx, ngx_http_request_t *r)
{
    ngx_peer_connection_t *pc = &r->upstream->peer;
    auto *peer = make<guarded_peer>(r->pool);

    if (peer == nullptr) {
        return NGX_ERROR;
    }

    peer->run = r != r->main ? &ctx.run : nullptr;
    peer->data = pc->data;
    peer->get = pc->get;
    peer->free = pc->free;
    peer->notify = pc->notify;

    pc->data = peer;
    pc->get = get_peer;
    pc->free = free_peer;

    if (pc->notify != nullptr) {
        pc->notify = notify_peer;
    }

#if (NGX_SSL || NGX_COMPAT)
    peer->set_session = pc->set_session;
    peer->save_session = pc->save_session;

    if (pc->set_session != nullptr) {
        pc->set_session = set_peer_session;
    }

    if (pc->save_session != nullptr) {
        pc->save_session = save_peer_session;
    }
#endif

    return NGX_OK;
}


/* The exchange goes to its end without the client, and to one peer. */
ngx_int_t
guard_conf(context &ctx, ngx_http_upstream_t *u)
{
    if (u->conf == ctx.run.upstream_conf) {
        return NGX_OK;
    }

    auto *conf = make<ngx_http_upstream_conf_t>(ctx.request->pool, *u->conf);

    if (conf == nullptr) {
        return NGX_ERROR;
    }

    conf->ignore_client_abort = 1;

    /*
     * With the response in a file, nginx would be done with the upstream and
     * the rest of it would wait for the client, out of our sight.
     */
    conf->max_temp_file_size = 0;

    conf->next_upstream &= ~answered_by_peer;

#if (nginx_version >= 1029000)
    conf->pass_early_hints = 0;
#endif

    ctx.run.upstream_conf = conf;
    u->conf = conf;

    return NGX_OK;
}


context *
guarded_run(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (ctx == nullptr || ctx->at != stage::running || ctx->conf->dry_run
        || (ctx->run.frozen && !ctx->run.delegated))
    {
        return nullptr;
    }

    return ctx;
}


bool
is_safe(ngx_http_request_t *r)
{
    return (r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)) != 0;
}


/*
 * In front of the init_peer() of every upstream; before its first peer.  What
 * a content handler writes by subrequests (ngx.location.capture) goes to one
 * peer as well.
 */
ngx_int_t
init_guarded_peer(ngx_http_request_t *r, ngx_http_upstream_srv_conf_t *us)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(r, ngx_http_idempotency_module));
    auto known = elements<guarded_upstream>(&main->upstreams);
    auto found = std::lower_bound(
        known.begin(), known.end(), us,
        [](const guarded_upstream &g, ngx_http_upstream_srv_conf_t *p) {
            return g.upstream < p;
        });

    ngx_int_t rc = found->init(r, us);

    if (rc != NGX_OK) {
        return rc;
    }

    context *ctx = guarded_run(r->main);

    if (ctx == nullptr || r->background || (r != r->main && is_safe(r))) {
        return NGX_OK;
    }

    if (guard_conf(*ctx, r->upstream) != NGX_OK) {
        return NGX_ERROR;
    }

    return guard_peer(*ctx, r);
}


/* For peers that were resolved at run time: they have no init_peer(). */
ngx_int_t
reinit_once(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (any_byte_sent(*ctx)) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: a peer was sent to, no other is tried");
        return NGX_ERROR;
    }

    return ctx->run.reinit_request(r);
}


/*
 * The client's leaving must not end the exchange.  The body was read by the
 * gate, so that the upstream was started inside the content handler's call.
 */
ngx_int_t
guard_exchange(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_http_upstream_t *u = r->upstream;

    if (u == nullptr || u == ctx.run.upstream_before) {
        return NGX_OK;
    }

    bool resolved_later = u->conf != ctx.run.upstream_conf;

    if (guard_conf(ctx, u) != NGX_OK) {
        return NGX_ERROR;
    }

    if (resolved_later && u->reinit_request != reinit_once) {
        ctx.run.reinit_request = u->reinit_request;
        u->reinit_request = reinit_once;
    }

    if (u->cleanup != nullptr) {
        r->read_event_handler = ngx_http_block_reading;

        if (!u->header_sent) {
            r->write_event_handler = ngx_http_request_empty_handler;
        }
    }

    return NGX_OK;
}


ngx_int_t
run_content(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    ctx->run.upstream_before = r->upstream;
    ctx->run.handler_status = 0;

    ngx_int_t rc = ctx->run.content_handler(r);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE
        && r->upstream == ctx->run.upstream_before) {
        ctx->run.handler_status = static_cast<ngx_uint_t>(rc);
    }

    if (guarded_run(r) != nullptr && guard_exchange(*ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return rc;
}


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


/* The answer of an application that sends nginx elsewhere for the rest. */
bool
application_redirected(const context &ctx)
{
    ngx_http_upstream_t *u = ctx.request->upstream;

    if (u == nullptr || u == ctx.run.upstream_before
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
last_status(const context &ctx)
{
    auto all = exchanges(ctx);

    return !all.empty() && all.back().status >= NGX_HTTP_SPECIAL_RESPONSE
               ? all.back().status
               : NGX_HTTP_BAD_GATEWAY;
}


/* What the peers have done is known; what follows only dresses it. */
void
freeze(context &ctx)
{
    if (!spoken(ctx.run.word)) {
        ctx.run.word = read_app_word(ctx);
    }

    ctx.run.seen = collect_evidence(ctx, true);
    ctx.run.frozen = true;
}


}


ngx_int_t
start_run(context &ctx)
{
    ngx_http_headers_in_t &in = ctx.request->headers_in;

    ctx.at = stage::running;
    ctx.run.first_exchange = elements<ngx_http_upstream_state_t>(
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

    ctx.run.renewal.init(&ctx, renew, ctx.request->connection->log);
    ngx_add_timer(&ctx.run.renewal.event, ctx.conf->lease / 3);

    wrap_content_handler(ctx);

    return NGX_DECLINED;
}


/*
 * nginx makes a GET of what it sends to a URI, by error_page or by
 * X-Accel-Redirect: what has kept its method has come to a named location,
 * whatever was rewritten there.
 */
bool
is_same_request(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return view(r->method_name) == view(ctx.method)
           && (!is_safe(r) || core_location(r)->named
               || view(r->uri) == view(ctx.uri));
}


/*
 * An error page that brings back what was answered already, or what may not
 * be run, must not run it.
 */
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

    return ctx.error != error_code::none ? send_problem(ctx, ctx.error)
                                         : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/*
 * The run came through the gate once more.  If no peer was asked yet, its
 * handler has only sent it on (ngx.exec), and the run begins here.  After
 * X-Accel-Redirect or error_page to a URI, what comes is another request.  A
 * named location would send the same request again: if it may have been
 * executed, that is done only where the application itself has said so.
 */
ngx_int_t
enter_again(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    bool sent = any_byte_sent(ctx);
    bool redirected = application_redirected(ctx);

    if (ctx.at != stage::running) {
        return stop_or_pass(ctx);
    }

    if (redirected) {
        ctx.run.delegated = true;

        if (!ctx.run.frozen && !spoken(ctx.run.word)) {
            ctx.run.word = read_app_word(ctx);
        }
    }

    if (!ctx.run.frozen && !is_same_request(ctx)) {
        freeze(ctx);
    }

    if (ctx.run.frozen && !ctx.run.delegated) {
        return NGX_DECLINED;
    }

    if (ctx.run.frozen || !sent || redirected || ctx.conf->dry_run
        || r->content_handler == nullptr)
    {
        wrap_content_handler(ctx);
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: a peer was sent to, the request is not run "
                  "again in a named location");

    r->error_page = 1;
    return static_cast<ngx_int_t>(last_status(ctx));
}


/* Of an answer from inside nginx, also if an error page covers it. */
ngx_uint_t
own_status(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (ctx.run.handler_status != 0) {
        return ctx.run.handler_status;
    }

    return r->err_status != 0 ? r->err_status : r->headers_out.status;
}


evidence
collect_evidence(context &ctx, bool complete)
{
    ngx_http_request_t *r = ctx.request;
    evidence seen = ctx.run.seen;
    auto all = exchanges(ctx);

    if (!ctx.run.frozen) {
        seen.sent = any_byte_sent(ctx);
        seen.own_handler = r->upstream == ctx.run.upstream_before || r->cached;
        seen.complete = complete;
        seen.status = static_cast<unsigned>(own_status(ctx));
        seen.unanswered = ctx.run.subrequest_unanswered;

        for (const ngx_http_upstream_state_t &s : all) {

            if (is_answered(s)) {
                seen.status = static_cast<unsigned>(s.status);

            } else if (s.bytes_sent > 0) {
                seen.unanswered = true;
            }
        }
    }

    seen.again = ctx.answer.attempt > 1;

    /* The rest of an answer that was to come from elsewhere is part of it. */
    if (ctx.run.delegated) {
        seen.complete = complete;
        seen.unanswered = seen.unanswered
                          || (!all.empty() && !is_answered(all.back()));
    }

    return seen;
}


/* The outcome is with the store, or never will be. */
void
end_run(context &ctx, settle_result result)
{
    ctx.at = stage::settled;
    ctx.run.renewal.stop();

    if (result == settle_result::lost) {
        ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                      "idempotency: a request outlived its lease, its "
                      "outcome was not stored");
    }

    wake_one(ctx);
}


/* The request dies without an outcome: what is known decides. */
void
abandon_run(context &ctx)
{
    outcome_rules rules = rules_of(ctx.conf);
    evidence seen = collect_evidence(ctx, false);
    outcome how = decide(seen, ctx.run.word, rules);
    store *backend = ctx.conf->store->backend;

    log_ending(ctx, seen, how);

    switch (how.end) {

    case ending::released: backend->release(ctx.own, nullptr); break;

    case ending::unknown:
        backend->mark_unknown(ctx.own, how.ttl, nullptr);
        break;

    default:
        backend->complete(ctx.own,
                          {record_state::not_kept, how.ttl, {}, {}, how.ttl},
                          nullptr);
    }

    end_run(ctx, settle_result::done);
}


ngx_int_t
guard_upstreams(ngx_conf_t *cf, main_conf *main)
{
    auto *upstreams = static_cast<ngx_http_upstream_main_conf_t *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_upstream_module));

    for (auto *us :
         elements<ngx_http_upstream_srv_conf_t *>(&upstreams->upstreams))
    {
        if (!append(&main->upstreams, guarded_upstream{us, us->peer.init})) {
            return NGX_ERROR;
        }

        us->peer.init = init_guarded_peer;
    }

    auto all = elements<guarded_upstream>(&main->upstreams);

    std::sort(all.begin(), all.end(),
              [](const guarded_upstream &a, const guarded_upstream &b) {
                  return a.upstream < b.upstream;
              });

    return NGX_OK;
}

}
