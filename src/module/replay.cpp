#include "module/replay.h"

#include "contract/record.h"
#include "module/context.h"
#include "module/counting.h"
#include "module/jsonrpc.h"
#include "module/shared_response.h"

namespace idempotency {

namespace {

using slot = ngx_table_elt_t *ngx_http_headers_out_t::*;


struct known_header {
    std::string_view name;
    slot where;
};


/* Headers that filters and variables look for in a place of their own. */
constexpr known_header known_headers[] = {
    {"last-modified", &ngx_http_headers_out_t::last_modified},
    {"etag", &ngx_http_headers_out_t::etag},
    {"expires", &ngx_http_headers_out_t::expires},
    {"content-encoding", &ngx_http_headers_out_t::content_encoding},
    {"accept-ranges", &ngx_http_headers_out_t::accept_ranges},
    {"content-range", &ngx_http_headers_out_t::content_range},
    {"refresh", &ngx_http_headers_out_t::refresh},
};


/* Cache-Control and Link may be there more than once. */
#if (nginx_version >= 1023000)

ngx_int_t
add_to(ngx_http_request_t *, ngx_table_elt_t *&first, ngx_table_elt_t *h)
{
    ngx_table_elt_t **last = &first;

    while (*last != nullptr) {
        last = &(*last)->next;
    }

    *last = h;
    return NGX_OK;
}

#else

ngx_int_t
add_to(ngx_http_request_t *r, ngx_array_t &list, ngx_table_elt_t *h)
{
    if (list.elts == nullptr
        && ngx_array_init(&list, r->pool, 1, sizeof(ngx_table_elt_t *))
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    auto *entry = static_cast<ngx_table_elt_t **>(ngx_array_push(&list));

    if (entry == nullptr) {
        return NGX_ERROR;
    }

    *entry = h;
    return NGX_OK;
}

#endif


ngx_int_t
place(ngx_http_request_t *r, const response_head &head, ngx_table_elt_t *h)
{
    ngx_http_headers_out_t &out = r->headers_out;
    std::string_view name(reinterpret_cast<char *>(h->lowcase_key),
                          h->key.len);

    if (name == "cache-control") {
        return add_to(r, out.cache_control, h);
    }

    if (name == "link") {
        return add_to(r, out.link, h);
    }

    /* nginx makes a relative Location absolute, but only its own. */
    if (name == "location") {
        if (head.own_location) {
            out.location = h;
        }

        return NGX_OK;
    }

    for (const known_header &known : known_headers) {
        if (name == known.name) {
            out.*known.where = h;
            break;
        }
    }

    if (out.last_modified == h) {
        out.last_modified_time = ngx_parse_http_time(h->value.data,
                                                     h->value.len);
    }

    return NGX_OK;
}


ngx_table_elt_t *
push(ngx_list_t *list, const field &f, u_char *lowcase)
{
    auto *h = static_cast<ngx_table_elt_t *>(ngx_list_push(list));

    if (h != nullptr) {
        *h = {};
        h->key = str(f.name);
        h->value = str(f.value);
        h->lowcase_key = lowcase;
        h->hash = ngx_hash_strlow(lowcase, h->key.data, h->key.len);
    }

    return h;
}


/* Room for all names in lower case, in one piece. */
u_char *
room_for_names(ngx_http_request_t *r, response_reader reader)
{
    std::size_t size = 1;
    field f;

    while (reader.next_header(f)) {
        size += f.name.size();
    }

    while (reader.next_trailer(f)) {
        size += f.name.size();
    }

    return static_cast<u_char *>(ngx_pnalloc(r->pool, size));
}


/* nginx adds its own unless there is one, even one that is not sent. */
ngx_int_t
remove_server(ngx_http_request_t *r)
{
    ngx_table_elt_t *h = push_header(r, ngx_string("Server"), ngx_string(""));

    if (h == nullptr) {
        return NGX_ERROR;
    }

    h->hash = 0;
    r->headers_out.server = h;

    return NGX_OK;
}


ngx_int_t
set_fields(ngx_http_request_t *r, response_reader &reader)
{
    u_char *names = room_for_names(r, reader);
    field f;

    if (names == nullptr
        || (reader.head().no_server && remove_server(r) != NGX_OK))
    {
        return NGX_ERROR;
    }

    while (reader.next_header(f)) {

        if (is_never_kept(f.name)) {
            continue;
        }

        ngx_table_elt_t *h = push(&r->headers_out.headers, f, names);

        if (h == nullptr || place(r, reader.head(), h) != NGX_OK) {
            return NGX_ERROR;
        }

        names += f.name.size();
    }

    while (reader.next_trailer(f)) {

        if (is_never_kept(f.name)) {
            continue;
        }

        if (push(&r->headers_out.trailers, f, names) == nullptr) {
            return NGX_ERROR;
        }

        names += f.name.size();
        r->expect_trailers = 1;
        r->headers_out.content_length_n = -1;
    }

    return NGX_OK;
}


void
set_head(ngx_http_request_t *r, const response_head &head)
{
    ngx_http_headers_out_t &out = r->headers_out;

    out.status = head.status;
    out.status_line = str(head.status_line);
    out.content_type = str(head.content_type);
    out.content_type_len = head.content_type_length;
    out.content_type_lowcase = nullptr;
    out.charset = str(head.charset);
    out.content_length_n = head.content_length;
    out.last_modified_time = static_cast<time_t>(head.last_modified);
}


/* They are about the bytes that were there before. */
void
drop_digests(ngx_http_request_t *r)
{
    constexpr std::string_view digests[] = {"etag", "content-md5", "digest",
                                            "content-digest", "repr-digest"};

    each_field(r->headers_out.headers, [&](ngx_table_elt_t &h) {
        for (std::string_view name : digests) {
            if (same_name(view(h.key), name)) {
                h.hash = 0;
            }
        }
    });

    r->headers_out.etag = nullptr;
}


/* An older record may have the mark of its application. */
ngx_int_t
mark(context &ctx)
{
    strip_mark(ctx.request->headers_out.headers, ctx.conf);

    if (ctx.conf->replay_header.len == 0) {
        return NGX_OK;
    }

    return push_header(ctx.request, ctx.conf->replay_header,
                       ngx_string("true"))
                   != nullptr
               ? NGX_OK
               : NGX_ERROR;
}


/* After the header: the filter has decided what it will do. */
bool
is_recoded(ngx_http_request_t *r)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(r, ngx_http_idempotency_module));

    return main->charset != nullptr
           && r->ctx[main->charset->ctx_index] != nullptr;
}


ngx_int_t
copy_bytes(ngx_pool_t *pool, ngx_chain_t *body)
{
    for (/* void */; body != nullptr; body = body->next) {
        ngx_buf_t *b = body->buf;
        auto size = static_cast<std::size_t>(b->last - b->pos);

        if (size == 0) {
            continue;
        }

        auto *own = static_cast<u_char *>(ngx_pnalloc(pool, size));

        if (own == nullptr) {
            return NGX_ERROR;
        }

        ngx_memcpy(own, b->pos, size);
        b->pos = b->start = own;
        b->last = b->end = own + size;
    }

    return NGX_OK;
}


/*
 * Others may get the same bytes, so no filter may write there.  The one for
 * charsets does, whatever the flags of a buffer say.
 */
ngx_int_t
send_shared(ngx_http_request_t *r, ngx_chain_t *body)
{
    ngx_int_t rc = pass_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (is_recoded(r) && copy_bytes(r->pool, body) != NGX_OK) {
        return NGX_ERROR;
    }

    return pass_body(r, body);
}


ngx_int_t
send(context &ctx, std::span<const std::uint8_t> body)
{
    ngx_http_request_t *r = ctx.request;
    auto *b = static_cast<ngx_buf_t *>(ngx_calloc_buf(r->pool));

    if (b == nullptr) {
        return NGX_ERROR;
    }

    if (!body.empty()) {
        b->pos = b->start = const_cast<u_char *>(body.data());
        b->last = b->end = b->start + body.size();
        b->memory = 1;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    ngx_chain_t out = {b, nullptr};

    return send_shared(r, &out);
}


off_t end_chain(ngx_chain_t *body);


ngx_int_t
send_response(context &ctx, response_reader &reader)
{
    ngx_http_request_t *r = ctx.request;
    unsigned status = reader.head().status;

    if (ctx.conf->replay_empty && status >= 200 && status < 300) {
        r->headers_out.status = NGX_HTTP_NO_CONTENT;

        return mark(ctx) == NGX_OK ? send(ctx, {}) : NGX_ERROR;
    }

    set_head(r, reader.head());

    if (set_fields(r, reader) != NGX_OK || mark(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_chain_t *body = with_own_id(ctx, reader.body());

    if (body == nullptr) {
        return send(ctx, reader.body());
    }

    off_t size = end_chain(body);

    if (r->headers_out.content_length_n >= 0) {
        r->headers_out.content_length_n = size;
    }

    drop_digests(r);

    return send_shared(r, body);
}


/* Marks the end of a body; returns its size. */
off_t
end_chain(ngx_chain_t *body)
{
    off_t size = 0;

    for (/* void */; body != nullptr; body = body->next) {
        size += ngx_buf_size(body->buf);

        if (body->next == nullptr) {
            body->buf->last_buf = 1;
            body->buf->last_in_chain = 1;
        }
    }

    return size;
}

}


bool
open_response(context &ctx, response_reader &reader)
{
    ngx_http_request_t *r = ctx.request;
    auto &response = ctx.claim.answer.response;
    response_to what = view(ctx.method) == "HEAD" ? response_to::head
                                                  : response_to::others;

    response = share_response(r, ctx.claim.own.name, response);

    if (reader.open(response, what)) {
        return true;
    }

    id_text id(ctx);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency: record %V: the stored response is damaged, or "
                  "of another version of the module; it is not replayed, "
                  "retries get 409 response_not_kept",
                  &id.text);
    count_damaged(ctx);
    response = {};

    return false;
}


ngx_int_t
replay(context &ctx, response_reader &reader)
{
    ctx.status = status::replay;
    count_replay(ctx);
    move_to(ctx, stage::replayed);

    ngx_http_finalize_request(ctx.request, send_response(ctx, reader));

    return NGX_DONE;
}


void
strip_mark(ngx_list_t &fields, const location_conf *conf)
{
    std::string_view name = view(conf->replay_header);

    if (name.empty()) {
        return;
    }

    each_field(fields, [&](ngx_table_elt_t &h) {
        if (same_name(view(h.key), name)) {
            h.hash = 0;
        }
    });
}


/* From a filter, in place of another response. */
ngx_int_t
send_replay(context &ctx, response_reader &reader)
{
    ctx.status = status::replay;

    return send_response(ctx, reader);
}

}
