#include "module/peers.h"

#include "module/context.h"

#include <algorithm>
#include <utility>

namespace idempotency {

namespace {

/* What a peer's owner has put into the upstream, behind our guard. */
struct guarded_peer {
    guarded_exchange *exchange;
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
struct failure {
    ngx_uint_t status;
    ngx_uint_t bit;
    bool counts; /* for max_fails */
};

constexpr failure failures[] = {
    {500, NGX_HTTP_UPSTREAM_FT_HTTP_500, true},
    {502, NGX_HTTP_UPSTREAM_FT_HTTP_502, true},
    {503, NGX_HTTP_UPSTREAM_FT_HTTP_503, true},
    {504, NGX_HTTP_UPSTREAM_FT_HTTP_504, true},
    {403, NGX_HTTP_UPSTREAM_FT_HTTP_403, false},
    {404, NGX_HTTP_UPSTREAM_FT_HTTP_404, false},
    {429, NGX_HTTP_UPSTREAM_FT_HTTP_429, true},
};


ngx_int_t init_guarded_peer(ngx_http_request_t *r,
                            ngx_http_upstream_srv_conf_t *us);
bool is_over(const ngx_http_upstream_t *u);
bool is_to_be_guarded(const context &ctx, ngx_http_request_t *r);
guarded_exchange *find_exchange(const context &ctx,
                                const ngx_http_request_t *r);
ngx_int_t send_guarded(void *data, ngx_chain_t *in);
void finalize_guarded(ngx_http_request_t *r, ngx_int_t rc);
ngx_http_upstream_conf_t *one_peer_conf(ngx_http_request_t *r);
ngx_int_t guard_peer(ngx_http_request_t *r, guarded_exchange *exchange);
ngx_int_t get_peer(ngx_peer_connection_t *pc, void *data);
void free_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t state);
bool is_failure(const ngx_peer_connection_t *pc,
                const guarded_exchange &exchange);
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
guard_exchange(context &ctx, ngx_http_request_t *r)
{
    ngx_http_upstream_t *u = r->upstream;

    if (find_exchange(ctx, r) != nullptr || r->cached || is_over(u)) {
        return NGX_OK;
    }

    auto *exchange = make<guarded_exchange>(r->pool);
    ngx_http_upstream_conf_t *conf = one_peer_conf(r);

    if (exchange == nullptr || conf == nullptr) {
        return NGX_ERROR;
    }

    *exchange = {r,
                 u,
                 u->conf,
                 u->output.output_filter,
                 u->output.filter_ctx,
                 u->finalize_request,
                 ctx.run.peers.under_way};

    ctx.run.peers.under_way = exchange;
    u->conf = conf;
    u->output.output_filter = send_guarded;
    u->output.filter_ctx = exchange;
    u->finalize_request = finalize_guarded;

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

    if (ctx == nullptr || !is_to_be_guarded(*ctx, r)) {
        return NGX_OK;
    }

    if (guard_exchange(*ctx, r) != NGX_OK) {
        return NGX_ERROR;
    }

    return guard_peer(r, find_exchange(*ctx, r));
}


/*
 * An exchange may end inside the call of the content handler.  One that waits
 * for the cache has not begun: it has no cleanup yet, and no output filter.
 */
bool
is_over(const ngx_http_upstream_t *u)
{
    return u->cleanup == nullptr && u->output.output_filter != nullptr;
}


bool
is_to_be_guarded(const context &ctx, ngx_http_request_t *r)
{
    return r == r->main ? is_guarded(ctx) : is_guarded_subrequest(ctx, r);
}


guarded_exchange *
find_exchange(const context &ctx, const ngx_http_request_t *r)
{
    for (guarded_exchange *e = ctx.run.peers.under_way; e != nullptr;
         e = e->next) {
        if (e->upstream == r->upstream) {
            return e;
        }
    }

    return nullptr;
}


/*
 * Peers that are resolved at run time have no init_peer().  They are there
 * when the request is about to be sent.
 */
ngx_int_t
send_guarded(void *data, ngx_chain_t *in)
{
    auto *exchange = static_cast<guarded_exchange *>(data);
    const ngx_peer_connection_t &pc = exchange->upstream->peer;

    if (pc.free != free_peer
        && guard_peer(exchange->request, exchange) != NGX_OK) {
        return NGX_ERROR;
    }

    if (exchange->output_filter == nullptr) {
        return ngx_chain_writer(&exchange->upstream->writer, in);
    }

    return exchange->output_filter(exchange->output_data, in);
}


void
finalize_guarded(ngx_http_request_t *r, ngx_int_t rc)
{
    context *ctx = find_context(r->main);
    guarded_exchange *exchange = find_exchange(*ctx, r);
    guarded_exchange **link = &ctx->run.peers.under_way;

    while (*link != exchange) {
        link = &(*link)->next;
    }

    *link = exchange->next;

    if (r != r->main) {
        note_end_of_subrequest(*ctx, r, rc);

    } else {
        note_end_of_exchange(*ctx, rc);
    }

    exchange->finalize_request(r, rc);
}


/* The exchange goes to its end without the client, and to one peer. */
ngx_http_upstream_conf_t *
one_peer_conf(ngx_http_request_t *r)
{
    auto *conf = make<ngx_http_upstream_conf_t>(r->pool, *r->upstream->conf);

    if (conf == nullptr) {
        return nullptr;
    }

    ignore_client(*conf);

    for (const failure &f : failures) {
        conf->next_upstream &= ~f.bit;
    }

    return conf;
}


ngx_int_t
guard_peer(ngx_http_request_t *r, guarded_exchange *exchange)
{
    ngx_peer_connection_t *pc = &r->upstream->peer;
    auto *peer = make<guarded_peer>(r->pool);

    if (peer == nullptr) {
        return NGX_ERROR;
    }

    peer->exchange = exchange;
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


/*
 * nginx 1.29.7 and later keep connections by the address of the configuration
 * that they were made with.  Our copy is gone with the request, and that of
 * another request may then have its address: so the peer's owner sees nginx's
 * own.  It may put another one there (set_timeouts() of ngx.balancer).
 */
ngx_int_t
get_peer(ngx_peer_connection_t *pc, void *data)
{
    auto *peer = static_cast<guarded_peer *>(data);
    guarded_exchange &exchange = *peer->exchange;
    ngx_http_upstream_t *u = exchange.upstream;
    ngx_http_upstream_conf_t *copy = std::exchange(u->conf, exchange.conf);

    ngx_int_t rc = peer->get(pc, peer->data);

    if (u->conf != exchange.conf) {
        exchange.conf = u->conf;
        copy = one_peer_conf(exchange.request);

        if (copy == nullptr) {
            return NGX_ERROR;
        }
    }

    u->conf = copy;

    return rc;
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

    if (state == 0 && is_failure(pc, *peer->exchange)) {
        state = NGX_PEER_FAILED;
    }

    if (peer->free != nullptr) {
        ngx_http_upstream_t *u = peer->exchange->upstream;
        ngx_http_upstream_conf_t *copy = std::exchange(u->conf,
                                                       peer->exchange->conf);

        peer->free(pc, peer->data, state);
        u->conf = copy;
    }

    if (sent) {
        pc->tries = 0;
        pc->cached = 0;
    }
}


/*
 * Whether nginx would have gone to another peer because of this answer.  Then
 * it would have counted the answer for max_fails.
 */
bool
is_failure(const ngx_peer_connection_t *pc, const guarded_exchange &exchange)
{
    constexpr ngx_uint_t not_idempotent = NGX_HTTP_POST | NGX_HTTP_LOCK
                                          | NGX_HTTP_PATCH;

    for (const failure &f : failures) {

        if (f.status != exchange.upstream->headers_in.status_n) {
            continue;
        }

        ngx_uint_t wanted = f.bit;

        if (exchange.request->method & not_idempotent) {
            wanted |= NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT;
        }

        return f.counts && pc->tries > 1
               && (exchange.conf->next_upstream & wanted) == wanted;
    }

    return false;
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
