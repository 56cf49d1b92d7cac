#include "module/known_bodies.h"

#include "module/context.h"

#include <openssl/rand.h>

namespace idempotency {

namespace {

/* A smaller body is parsed in less time than it takes to look it up. */
constexpr off_t smallest = 1024;

/* nginx needs some of it to manage the rest. */
constexpr std::size_t memory_size = sizeof(known_fingerprints) + 256 * 1024;

known_fingerprints *known; /* null: none are remembered */
tagger *tags;

ngx_int_t init_memory(ngx_shm_zone_t *shm, void *data);
bool is_worth_it(const context &ctx);
bool tag_body(context &ctx);

}


bool
is_known_body(context &ctx)
{
    body_state &body = ctx.body;

    body.tagged = is_worth_it(ctx) && tag_body(ctx);

    if (!body.tagged || !known->find(body.tag, body.fingerprint)) {
        return false;
    }

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                   "idempotency: same bytes as before, fingerprint known");

    return true;
}


void
remember_body(const context &ctx)
{
    if (ctx.body.tagged) {
        known->add(ctx.body.tag, ctx.body.fingerprint);
    }
}


ngx_int_t
add_known_bodies(ngx_conf_t *cf, main_conf *main)
{
    ngx_str_t name = ngx_string("idempotency_fingerprints");

    main->known_bodies = ngx_shared_memory_add(cf, &name, memory_size,
                                               &ngx_http_idempotency_module);

    if (main->known_bodies == nullptr) {
        return NGX_ERROR;
    }

    main->known_bodies->init = init_memory;
    main->known_bodies->data = main;

    return NGX_OK;
}


void
start_known_bodies(const main_conf &main)
{
    if (main.known_bodies == nullptr) {
        return;
    }

    auto *pool = reinterpret_cast<ngx_slab_pool_t *>(
        main.known_bodies->shm.addr);

    tags = ::new (std::nothrow) tagger;
    known = tags != nullptr ? static_cast<known_fingerprints *>(pool->data)
                            : nullptr;
}


void
stop_known_bodies()
{
    delete tags;
    tags = nullptr;
    known = nullptr;
}


namespace {

/* On reload it stays as it is: what a fingerprint is made from is the same. */
ngx_int_t
init_memory(ngx_shm_zone_t *shm, void *data)
{
    auto *pool = reinterpret_cast<ngx_slab_pool_t *>(shm->shm.addr);

    if (data != nullptr) {
        return NGX_OK;
    }

    /* New memory is zero, and the system gives only the pages in use. */
    auto *fresh = static_cast<known_fingerprints *>(
        ngx_slab_alloc(pool, sizeof(known_fingerprints)));

    if (fresh == nullptr
        || RAND_bytes(fresh->key.data(), static_cast<int>(fresh->key.size()))
               != 1)
    {
        ngx_log_error(NGX_LOG_EMERG, shm->shm.log, 0,
                      "idempotency: no memory or no random bytes for the "
                      "table of fingerprints");
        return NGX_ERROR;
    }

    pool->data = fresh;

    return NGX_OK;
}


/*
 * Only what a fingerprint is made from without settings of the location, which
 * a reload may change.
 */
bool
is_worth_it(const context &ctx)
{
    const body_state &body = ctx.body;
    const location_conf *conf = ctx.conf;

    if (known == nullptr || !ctx.named || size_of_body(ctx) < smallest) {
        return false;
    }

    return body.kind == body_kind::form
           || (body.kind == body_kind::json && !conf->jsonrpc
               && conf->include == nullptr && conf->exclude == nullptr);
}


/*
 * The record's name is part of it: nobody learns, by the time that an answer
 * takes, whether somebody else has sent the same body.
 */
bool
tag_body(context &ctx)
{
    ngx_http_request_body_t *read = ctx.request->request_body;

    tags->start(known->key);
    tags->field({reinterpret_cast<const char *>(ctx.claim.own.name.data()),
                 ctx.claim.own.name.size()});
    add_request(*tags, {view(ctx.method), view(ctx.path), view(ctx.arguments)},
                ctx.admitted, ctx.body.kind);

    for (ngx_chain_t *cl = read->bufs; cl != nullptr; cl = cl->next) {
        ngx_buf_t *b = cl->buf;

        if (!ngx_buf_in_memory(b) && b->in_file) {
            return false;
        }

        tags->bytes(b->pos, static_cast<std::size_t>(b->last - b->pos));
    }

    return tags->finish(ctx.body.tag);
}

}

}
