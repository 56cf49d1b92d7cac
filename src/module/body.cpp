#include "contract/fingerprint.h"
#include "contract/form.h"
#include "contract/jsonrpc.h"
#include "module/context.h"

namespace idempotency {

namespace {

constexpr std::size_t piece_size = 64 * 1024;
constexpr std::size_t per_turn = 1024 * 1024;

/* A timer, not a posted event: a worker that quits waits for timers only. */
constexpr ngx_msec_t next_turn = 1;

ngx_http_request_body_filter_pt next_request_body_filter;


/* What is encoded is not what its type says until somebody decodes it. */
bool
is_encoded(ngx_http_request_t *r)
{
    ngx_str_t name = ngx_string("content-encoding");
    ngx_str_t value;

    return find_header(r, name, value) != 0
           && !same_name(view(value), "identity");
}


media_type
media_of(ngx_http_request_t *r, std::span<char> boundary)
{
    if (r->headers_in.content_type == nullptr || is_encoded(r)) {
        return {};
    }

    return parse_media_type(view(r->headers_in.content_type->value), boundary);
}


/* How the body takes part, as far as its type tells. */
body_kind
kind_of(const location_conf *conf, media type)
{
    if (conf->fingerprint == static_cast<ngx_uint_t>(fingerprint_mode::off)) {
        return body_kind::none;
    }

    if (conf->fingerprint == static_cast<ngx_uint_t>(fingerprint_mode::raw)) {
        return body_kind::raw;
    }

    switch (type) {

    case media::json: return body_kind::json;
    case media::form: return body_kind::form;
    case media::multipart: return body_kind::multipart;
    default: return body_kind::raw;
    }
}


void
start_hash(context &ctx, body_kind kind)
{
    start_fingerprint(ctx.hash,
                      {view(ctx.method), view(ctx.path), view(ctx.arguments)},
                      kind);
}


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


void
take(context &ctx, const u_char *bytes, std::size_t size)
{
    body_state &body = ctx.body;

    switch (body.into) {

    case body_state::memory:
        ngx_memcpy(body.bytes + body.size, bytes, size);
        body.size += size;
        break;

    case body_state::multipart:
        body.parts->feed({reinterpret_cast<const char *>(bytes), size});
        break;

    default: ctx.hash.bytes(bytes, size);
    }
}


/* NGX_OK: the buffer is taken; NGX_AGAIN: enough for this turn. */
ngx_int_t
take_file(context &ctx, ngx_buf_t *b, std::size_t &left)
{
    auto *bytes = static_cast<u_char *>(
        ngx_alloc(piece_size, ctx.request->connection->log));

    if (bytes == nullptr) {
        return NGX_ERROR;
    }

    ngx_int_t rc = NGX_OK;

    while (b->file_pos + ctx.body.offset < b->file_last) {

        if (left == 0) {
            rc = NGX_AGAIN;
            break;
        }

        off_t at = b->file_pos + ctx.body.offset;
        std::size_t size = ngx_min(
            static_cast<off_t>(ngx_min(piece_size, left)), b->file_last - at);
        ssize_t n = ngx_read_file(b->file, bytes, size, at);

        if (n <= 0) {
            rc = NGX_ERROR;
            break;
        }

        take(ctx, bytes, static_cast<std::size_t>(n));
        ctx.body.offset += n;
        left -= static_cast<std::size_t>(n);
    }

    ngx_free(bytes);
    return rc;
}


/* The body as it was read, a bounded part of it a turn. */
ngx_int_t
walk(context &ctx)
{
    std::size_t left = per_turn;

    for (/* void */; ctx.body.rest != nullptr;
         ctx.body.rest = ctx.body.rest->next) {
        ngx_buf_t *b = ctx.body.rest->buf;

        if (ngx_buf_in_memory(b)) {
            take(ctx, b->pos, static_cast<std::size_t>(b->last - b->pos));
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        ngx_int_t rc = take_file(ctx, b, left);

        if (rc != NGX_OK) {
            return rc;
        }

        ctx.body.offset = 0;
    }

    return NGX_OK;
}


void
start_walk(context &ctx, body_state::sink into)
{
    ngx_http_request_body_t *read = ctx.request->request_body;

    ctx.body.into = into;
    ctx.body.rest = read != nullptr ? read->bufs : nullptr;
    ctx.body.offset = 0;
}


json_rules
rules_for_json(const location_conf *conf)
{
    return {elements<const json_pointer>(conf->include),
            elements<const json_pointer>(conf->exclude), conf->jsonrpc != 0};
}


/* NGX_DECLINED: it is not what its type says. */
ngx_int_t
hash_meaning(context &ctx, std::string_view text)
{
    if (ctx.body.kind == body_kind::form) {

        switch (canonical_form(text, ctx.hash)) {

        case form_result::ok: return NGX_OK;
        case form_result::not_form: return NGX_DECLINED;
        default: return NGX_ERROR;
        }
    }

    json_parser *parser = worker_json_parser();

    if (parser == nullptr) {
        return NGX_ERROR;
    }

    switch (canonical_json(*parser, text, rules_for_json(ctx.conf), ctx.hash))
    {

    case json_result::ok: return NGX_OK;
    case json_result::not_json: return NGX_DECLINED;
    default: return NGX_ERROR;
    }
}


/* The retry's own id, for the replay that it may get. */
ngx_int_t
keep_jsonrpc_id(context &ctx, std::string_view text)
{
    json_parser *parser = worker_json_parser();
    std::string_view id;

    if (parser == nullptr) {
        return NGX_ERROR;
    }

    if (!jsonrpc_id(*parser, text, id)) {
        return NGX_OK;
    }

    ngx_str_t found = str(id);
    ctx.jsonrpc_id.data = ngx_pstrdup(ctx.request->pool, &found);
    ctx.jsonrpc_id.len = found.len;

    return ctx.jsonrpc_id.data != nullptr ? NGX_OK : NGX_ERROR;
}


ngx_int_t
use_memory(context &ctx)
{
    body_state &body = ctx.body;
    std::string_view text = body.text();

    if (body.json && ctx.conf->jsonrpc && keep_jsonrpc_id(ctx, text) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (body.kind == body_kind::json || body.kind == body_kind::form) {
        start_hash(ctx, body.kind);

        ngx_int_t rc = hash_meaning(ctx, text);

        if (rc == NGX_ERROR) {
            return rc;
        }

        if (rc == NGX_DECLINED) {
            start_hash(ctx, body_kind::raw);
            ctx.hash.bytes(text.data(), text.size());
        }

    } else if (body.kind == body_kind::raw && !body.hash_as_read) {
        ctx.hash.bytes(text.data(), text.size());
    }

    return finish_fingerprint(ctx);
}


/* NGX_AGAIN: the body must be walked once more. */
ngx_int_t
end_walk(context &ctx)
{
    switch (ctx.body.into) {

    case body_state::memory: return use_memory(ctx);

    case body_state::multipart:
        start_hash(ctx, body_kind::multipart);

        switch (ctx.body.parts->finish(ctx.hash)) {

        case multipart_result::ok: return finish_fingerprint(ctx);

        case multipart_result::not_multipart:
            start_hash(ctx, body_kind::raw);
            start_walk(ctx, body_state::hash);
            return NGX_AGAIN;

        default: return NGX_ERROR;
        }

    default: return finish_fingerprint(ctx);
    }
}


ngx_int_t
go_through(context &ctx)
{
    for (;;) {
        ngx_int_t rc = walk(ctx);

        if (rc != NGX_OK) {
            return rc;
        }

        rc = end_walk(ctx);

        if (rc != NGX_AGAIN) {
            return rc;
        }
    }
}


void
go_on(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);
    ngx_int_t rc = go_through(*ctx);

    if (rc == NGX_AGAIN) {
        ngx_add_timer(event, next_turn);
        return;
    }

    if (rc == NGX_OK) {
        resume(*ctx);
        return;
    }

    ngx_http_request_t *r = ctx->request;
    ngx_connection_t *c = r->connection;

    ngx_http_set_log_request(c->log, r);
    ngx_http_finalize_request(r, fail(*ctx));
    ngx_http_run_posted_requests(c);
}


/* All of the body in one piece, with room behind it for the JSON parser. */
bool
make_room(context &ctx)
{
    ngx_http_request_body_t *read = ctx.request->request_body;
    off_t size = 0;

    for (ngx_chain_t *cl = read != nullptr ? read->bufs : nullptr;
         cl != nullptr; cl = cl->next)
    {
        size += ngx_buf_size(cl->buf);
    }

    ctx.body.bytes = static_cast<u_char *>(
        ngx_alloc(static_cast<std::size_t>(size) + json_padding,
                  ctx.request->connection->log));

    return ctx.body.bytes != nullptr;
}


/* NGX_OK: the fingerprint is there; NGX_AGAIN: it will be. */
ngx_int_t
use_body(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    body_state &body = ctx.body;
    bool wanted = body.kind == body_kind::json || body.kind == body_kind::form
                  || (body.json && (ctx.conf->jsonrpc || ctx.key.len == 0));

    if (wanted) {
        if (!make_room(ctx)) {
            return NGX_ERROR;
        }

        start_walk(ctx, body_state::memory);

    } else if (body.kind == body_kind::multipart) {
        start_walk(ctx, body_state::multipart);

    } else if (body.kind == body_kind::raw && !body.hash_as_read) {
        start_walk(ctx, body_state::hash);
    }

    ngx_int_t rc = go_through(ctx);

    if (rc == NGX_AGAIN) {
        body.turn.init(&ctx, go_on, r->connection->log);
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_request_empty_handler;
        ngx_add_timer(&body.turn.event, next_turn);
    }

    return rc;
}


void
body_read(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (ctx->body.called) {
        ctx->body.there = true;
        return;
    }

    ngx_int_t rc = use_body(*ctx);

    if (rc == NGX_OK) {
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_core_run_phases;
        ngx_http_core_run_phases(r);

    } else if (rc == NGX_ERROR) {
        ngx_http_finalize_request(r, fail(*ctx));
    }
}


bool
start_body(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    body_state &body = ctx.body;
    std::array<char, max_boundary> room;
    media_type type = media_of(r, room);

    body.kind = kind_of(ctx.conf, type.kind);
    body.json = type.kind == media::json;
    start_hash(ctx, body.kind);

    /* mirror and Lua may have read it: then no filter of ours sees it. */
    body.hash_as_read = r->request_body == nullptr
                        && body.kind == body_kind::raw;

    if (body.kind != body_kind::multipart) {
        return true;
    }

    body.parts = make<multipart_hasher>(r->pool);

    if (body.parts == nullptr) {
        return false;
    }

    body.parts->start(type.boundary);
    return true;
}


/* Each byte of a body passes here once, while it arrives, in memory. */
ngx_int_t
request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    auto *ctx = static_cast<context *>(
        ngx_http_get_module_ctx(r, ngx_http_idempotency_module));

    if (ctx != nullptr && ctx->at == stage::reading && ctx->body.hash_as_read)
    {
        for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
            ngx_buf_t *b = cl->buf;
            ctx->hash.bytes(b->pos,
                            static_cast<std::size_t>(b->last - b->pos));
        }
    }

    return next_request_body_filter(r, in);
}


json_parser *parser;

}


json_parser *
worker_json_parser()
{
    if (parser == nullptr) {
        parser = ::new (std::nothrow) json_parser;
    }

    return parser;
}


void
free_json_parser()
{
    delete parser;
    parser = nullptr;
}


/*
 * NGX_AGAIN: body and fingerprint are there, go on; anything else is for the
 * phase handler to return.
 */
ngx_int_t
read_body(context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    if (!start_body(ctx)) {
        return fail(ctx);
    }

    ctx.at = stage::reading;

    ctx.body.called = true;
    ngx_int_t rc = ngx_http_read_client_request_body(r, body_read);
    ctx.body.called = false;

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        ctx.at = stage::passed;
        return rc;
    }

    /* Gives back the reference that reading has taken. */
    ngx_http_finalize_request(r, NGX_DONE);

    if (!ctx.body.there) {
        return NGX_DONE;
    }

    rc = use_body(ctx);

    if (rc == NGX_ERROR) {
        return fail(ctx);
    }

    return rc == NGX_OK ? NGX_AGAIN : NGX_DONE;
}


void
init_request_body_filter()
{
    next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = request_body_filter;
}

}
