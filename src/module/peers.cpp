#include "module/peers.h"

#include "module/context.h"

#include <algorithm>

namespace idempotency {

namespace {

/* What a peer's owner has put into the upstream, behind our guard. */
struct guarded_peer {
    peer_guard *guard; /* null: not a subrequest */
    void *data;
    ngx_event_get_peer_pt get;
    ngx_event_free_peer_pt free;
    ngx_event_notify_peer_pt notify;
#if (NGX_SSL || NGX_COMPAT)
    ngx_event_set_peer_session_pt set_session;
    ngx_event_save_peer_session_pt save_session;
#endif
};


/* For such an answer nginx would ask another peer. */
constexpr ngx_uint_t answered_by_peer = NGX_HTTP_UPSTREAM_FT_HTTP_500
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_502
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_503
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_504
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_403
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_404
                                        | NGX_HTTP_UPSTREAM_FT_HTTP_429;


ngx_int_t init_guarded_peer(ngx_http_request_t *r,
                            ngx_http_upstream_srv_conf_t *us);
ngx_int_t reinit_once(ngx_http_request_t *r);
ngx_int_t guard_conf(context &ctx, ngx_http_upstream_t *u);
ngx_int_t guard_peer(context &ctx, ngx_http_request_t *r);
ngx_int_t get_peer(ngx_peer_connection_t *pc, void *data);
void free_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t state);
void notify_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t type);

#if (NGX_SSL || NGX_COMPAT)
ngx_int_t set_peer_session(ngx_peer_connection_t *pc, void *data);
void save_peer_session(ngx_peer_connection_t *pc, void *data);
#endif

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


ngx_int_t
guard_exchange(context &ctx)
{
    ngx_http_upstream_t *u = ctx.request->upstream;
    bool resolved_later = u->conf != ctx.run.peers.conf;

    if (guard_conf(ctx, u) != NGX_OK) {
        return NGX_ERROR;
    }

    if (resolved_later && u->reinit_request != reinit_once) {
        ctx.run.peers.reinit_request = u->reinit_request;
        u->reinit_request = reinit_once;
    }

    return NGX_OK;
}


namespace {

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

    context *ctx = find_context(r->main);

    if (ctx == nullptr || !is_guarded(*ctx) || r->background
        || (r != r->main && is_safe_method(r)))
    {
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
                      "idempotency: request already sent to an upstream peer, "
                      "not trying another");
        return NGX_ERROR;
    }

    return ctx->run.peers.reinit_request(r);
}


/* The exchange goes to its end without the client, and to one peer. */
ngx_int_t
guard_conf(context &ctx, ngx_http_upstream_t *u)
{
    if (u->conf == ctx.run.peers.conf) {
        return NGX_OK;
    }

    auto *conf = make<ngx_http_upstream_conf_t>(ctx.request->pool, *u->conf);

    if (conf == nullptr) {
        return NGX_ERROR;
    }

    ignore_client(*conf);
    conf->next_upstream &= ~answered_by_peer;

    ctx.run.peers.conf = conf;
    u->conf = conf;

    return NGX_OK;
}


ngx_int_t
guard_peer(context &ctx, ngx_http_request_t *r)
{
    ngx_peer_connection_t *pc = &r->upstream->peer;
    auto *peer = make<guarded_peer>(r->pool);

    if (peer == nullptr) {
        return NGX_ERROR;
    }

    peer->guard = r != r->main ? &ctx.run.peers : nullptr;
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

    if (peer->guard != nullptr) {
        peer->guard->subrequest_sent = true;
        peer->guard->subrequest_unanswered = peer->guard->subrequest_unanswered
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

}

}
