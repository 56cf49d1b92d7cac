#include "module/body.h"

#include "module/context.h"
#include "module/key.h"
#include "module/known_bodies.h"

namespace idempotency {

namespace {

constexpr const char *unread = "its body could not be read";
constexpr std::size_t piece_size = 64 * 1024;
constexpr std::size_t per_turn = 1024 * 1024;

/* A timer, not a posted event: a worker that quits waits for timers only. */
constexpr ngx_msec_t pause = 1;

/* How far a walk through the body has come in this turn of the event loop. */
enum class progress : std::uint8_t { done, next_turn, failed };

ngx_http_request_body_filter_pt next_request_body_filter;

bool is_too_large(const context &ctx);
void body_read(ngx_http_request_t *r);
progress use_body(context &ctx);
bool is_needed_in_memory(const context &ctx);
void look_for_keys(body_state &body, std::string_view piece);
bool borrow(context &ctx);
bool make_room(context &ctx);
void start_walk(context &ctx, body_state::sink into);
void walk_on(ngx_event_t *event);
progress walk_to_end(context &ctx);
progress walk(context &ctx);
progress take_file(context &ctx, ngx_buf_t *b, std::size_t &left);
void take(context &ctx, const u_char *bytes, std::size_t size);

}


ngx_int_t
read_body(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    body_state &body = ctx.body;

    if (!prepare_fingerprint(ctx) || !prepare_key_search(ctx)) {
        return fail(ctx, "no memory for the fingerprint or the key");
    }

    move_to(ctx, stage::reading);
    body.limit = core_location(r)->client_max_body_size;

    body.read = body_state::arrival::in_call;
    ngx_int_t rc = ngx_http_read_client_request_body(r, body_read);
    bool arrived = body.read == body_state::arrival::arrived_in_call;
    body.read = body_state::arrival::later;

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        note_refused_body(ctx, rc);
        return rc;
    }

    /* Gives back the reference that the call has taken. */
    ngx_http_finalize_request(r, NGX_DONE);

    if (!arrived) {
        return NGX_DONE;
    }

    switch (use_body(ctx)) {

    case progress::done: return NGX_OK;
    case progress::next_turn: return NGX_DONE;
    default: return fail(ctx, unread);
    }
}


void
note_refused_body(context &ctx, ngx_int_t status)
{
    ctx.body.refused_by = status != 0 ? status
                          : is_too_large(ctx)
                              ? NGX_HTTP_REQUEST_ENTITY_TOO_LARGE
                              : NGX_HTTP_BAD_REQUEST;
    move_to(ctx, stage::failed);
}


off_t
size_of_body(const context &ctx)
{
    ngx_http_request_body_t *read = ctx.request->request_body;
    off_t size = 0;

    for (ngx_chain_t *cl = read != nullptr ? read->bufs : nullptr;
         cl != nullptr; cl = cl->next)
    {
        size += ngx_buf_size(cl->buf);
    }

    return size;
}


namespace {

bool
is_too_large(const context &ctx)
{
    const ngx_http_request_t *r = ctx.request;
    const ngx_http_request_body_t *read = r->request_body;

    if (ctx.body.limit == 0 || read == nullptr) {
        return false;
    }

    if (read->chunked != nullptr) {
        return r->headers_in.content_length_n + read->chunked->size
               > ctx.body.limit;
    }

    return read->received > ctx.body.limit;
}


/* Each byte of a body passes here once, while it arrives, in memory. */
ngx_int_t
request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    auto *ctx = static_cast<context *>(
        ngx_http_get_module_ctx(r, ngx_http_idempotency_module));

    if (ctx != nullptr && ctx->at == stage::reading
        && ctx->body.hashed_as_read) {
        for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
            ngx_buf_t *b = cl->buf;
            ctx->body.hash.bytes(b->pos,
                                 static_cast<std::size_t>(b->last - b->pos));
        }
    }

    return next_request_body_filter(r, in);
}


void
body_read(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (ctx->body.read == body_state::arrival::in_call) {
        ctx->body.read = body_state::arrival::arrived_in_call;
        return;
    }

    switch (use_body(*ctx)) {

    case progress::done:
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_core_run_phases;
        ngx_http_core_run_phases(r);
        return;

    case progress::next_turn: return;

    case progress::failed: ngx_http_finalize_request(r, fail(*ctx, unread));
    }
}


progress
use_body(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    body_state &body = ctx.body;

    if (size_of_body(ctx) > max_parsed) {
        count_as_bytes(ctx);
    }

    if (is_known_body(ctx)) {
        move_to(ctx, stage::ready);
        return progress::done;
    }

    if (is_needed_in_memory(ctx)) {
        if (borrow(ctx)) {
            body.into = body_state::sink::memory;
            look_for_keys(body, body.text());

        } else if (make_room(ctx)) {
            start_walk(ctx, body_state::sink::memory);

        } else {
            return progress::failed;
        }

    } else if (body.kind == body_kind::multipart) {
        start_walk(ctx, body_state::sink::multipart);

    } else if (body.kind == body_kind::raw && !body.hashed_as_read) {
        start_walk(ctx, body_state::sink::hash);

    } else if (body.finder != nullptr) {
        start_walk(ctx, body_state::sink::none);
    }

    progress p = walk_to_end(ctx);

    if (p == progress::next_turn) {
        body.turn.init(&ctx, walk_on, r->connection->log);
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_request_empty_handler;
        ngx_add_timer(&body.turn.event, pause);
    }

    return p;
}


/*
 * What is parsed must lie in one piece.  Keys are found in pieces, in a body
 * of any size.
 */
bool
is_needed_in_memory(const context &ctx)
{
    const body_state &body = ctx.body;

    return !body.too_large
           && (body.kind == body_kind::json || body.kind == body_kind::form
               || (body.json && ctx.conf->jsonrpc));
}


void
look_for_keys(body_state &body, std::string_view piece)
{
    if (body.finder != nullptr && !body.walked) {
        body.finder->feed(piece);
    }
}


/*
 * Most bodies that are parsed came along with their header, and lie in one
 * piece already.  What is behind it in the same buffer may be read.
 */
bool
borrow(context &ctx)
{
    ngx_http_request_body_t *read = ctx.request->request_body;
    ngx_chain_t *first = read != nullptr ? read->bufs : nullptr;

    if (first == nullptr || first->next != nullptr
        || !ngx_buf_in_memory(first->buf)
        || first->buf->end - first->buf->last
               < static_cast<std::ptrdiff_t>(json_padding))
    {
        return false;
    }

    ngx_buf_t *b = first->buf;

    ctx.body.bytes = b->pos;
    ctx.body.size = static_cast<std::size_t>(b->last - b->pos);
    ctx.body.borrowed = true;

    return true;
}


bool
make_room(context &ctx)
{
    auto size = static_cast<std::size_t>(size_of_body(ctx));

    ctx.body.bytes = static_cast<u_char *>(
        ngx_alloc(size + json_padding, ctx.request->connection->log));

    return ctx.body.bytes != nullptr;
}


void
start_walk(context &ctx, body_state::sink into)
{
    ngx_http_request_body_t *read = ctx.request->request_body;

    ctx.body.into = into;
    ctx.body.rest = read != nullptr ? read->bufs : nullptr;
    ctx.body.offset = 0;
}


void
walk_on(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    switch (walk_to_end(*ctx)) {

    case progress::done: resume(*ctx); return;

    case progress::next_turn: ngx_add_timer(event, pause); return;

    case progress::failed: break;
    }

    ngx_http_request_t *r = ctx->request;
    ngx_connection_t *c = r->connection;

    ngx_http_set_log_request(c->log, r);
    ngx_http_finalize_request(r, fail(*ctx, unread));
    ngx_http_run_posted_requests(c);
}


progress
walk_to_end(context &ctx)
{
    for (;;) {
        progress p = walk(ctx);

        if (p != progress::done) {
            return p;
        }

        switch (finish_fingerprint(ctx)) {

        case fingerprint_result::done:
            move_to(ctx, stage::ready);
            return progress::done;

        case fingerprint_result::walk_again:
            ctx.body.walked = true;
            start_walk(ctx, body_state::sink::hash);
            continue;

        case fingerprint_result::failed: return progress::failed;
        }
    }
}


/* Takes a bounded part of the body a turn. */
progress
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

        progress p = take_file(ctx, b, left);

        if (p != progress::done) {
            return p;
        }

        ctx.body.offset = 0;
    }

    return progress::done;
}


progress
take_file(context &ctx, ngx_buf_t *b, std::size_t &left)
{
    auto *bytes = static_cast<u_char *>(
        ngx_alloc(piece_size, ctx.request->connection->log));

    if (bytes == nullptr) {
        return progress::failed;
    }

    progress p = progress::done;

    while (b->file_pos + ctx.body.offset < b->file_last) {

        if (left == 0) {
            p = progress::next_turn;
            break;
        }

        off_t at = b->file_pos + ctx.body.offset;
        std::size_t size = ngx_min(
            static_cast<off_t>(ngx_min(piece_size, left)), b->file_last - at);
        ssize_t n = ngx_read_file(b->file, bytes, size, at);

        if (n <= 0) {
            p = progress::failed;
            break;
        }

        take(ctx, bytes, static_cast<std::size_t>(n));
        ctx.body.offset += n;
        left -= static_cast<std::size_t>(n);
    }

    ngx_free(bytes);
    return p;
}


void
take(context &ctx, const u_char *bytes, std::size_t size)
{
    body_state &body = ctx.body;
    std::string_view piece(reinterpret_cast<const char *>(bytes), size);

    look_for_keys(body, piece);

    switch (body.into) {

    case body_state::sink::memory:
        ngx_memcpy(body.bytes + body.size, bytes, size);
        body.size += size;
        break;

    case body_state::sink::multipart: body.parts->feed(piece); break;
    case body_state::sink::hash: body.hash.bytes(bytes, size); break;
    case body_state::sink::none: break;
    }
}

}


void
init_request_body_filter()
{
    next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = request_body_filter;
}

}
