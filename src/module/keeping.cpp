#include "module/keeping.h"

#include "contract/record.h"
#include "module/context.h"
#include "module/jsonrpc.h"

namespace idempotency {

namespace {

constexpr std::size_t first_piece = 4 * 1024;
constexpr std::size_t largest_piece = 64 * 1024;

/* By not_kept. */
constexpr const char *reasons[] = {
    "",
    "it is larger than \"idempotency_max_response\"",
    "it is in a file",
    "its status or its headers are not valid, or more than a record can hold",
    "it is incomplete",
    "a subrequest wrote a part of it",
    "the application asked to discard it",
    ("its content handler sent the request on more than once, or to a "
     "location that answered before access control had ended"),
    ("it has a Content-Encoding, so a retry could not get its own JSON-RPC "
     "id; use \"proxy_set_header Accept-Encoding ''\""),
    "there was no memory for it",
};

static_assert(std::size(reasons)
              == static_cast<std::size_t>(not_kept::no_memory) + 1);

struct fields_size {
    std::size_t bytes = 0;
    std::size_t count = 0;
};


bool encode_header(context &ctx);
bool encode_summary(context &ctx);
bool keep_bytes(context &ctx, const u_char *bytes, std::size_t size);
bool grow(context &ctx, std::size_t size);
std::size_t next_size(const capture_state &capture);
std::span<std::uint8_t> encode_trailers(context &ctx, std::size_t &count);
response_head describe(ngx_http_request_t *r);
fields_size measure_fields(const location_conf *conf, ngx_list_t &list);
void encode_fields(const location_conf *conf, ngx_list_t &list,
                   std::uint8_t *out);
bool is_kept_field(const location_conf *conf, const ngx_table_elt_t &h);

}


bool
keep_header(context &ctx)
{
    if (!has_known_place(ctx)) {
        not_to_keep(ctx, not_kept::elsewhere);
    }

    note_encoding(ctx);

    return encode_summary(ctx) && encode_header(ctx);
}


/*
 * As the filters that write the header have it.  While that is held, handlers
 * do not see it in r->header_only and go on to write.
 */
bool
is_bodiless(ngx_http_request_t *r)
{
    const ngx_http_headers_out_t &out = r->headers_out;

    return r->header_only || r->method == NGX_HTTP_HEAD
           || (out.status_line.len == 0
               && (out.status == NGX_HTTP_NO_CONTENT
                   || out.status == NGX_HTTP_NOT_MODIFIED));
}


bool
fits(context &ctx, const portion &p)
{
    capture_state &capture = ctx.capture;

    if (capture.bodiless) {
        return is_kept(capture);
    }

    capture.size += p.size;

    if (capture.size > static_cast<off_t>(ctx.conf->max_response)) {
        not_to_keep(ctx, not_kept::too_large);

    } else if (capture.size != 0 && has_no_body(capture.status)) {
        not_to_keep(ctx, not_kept::not_encodable);

    } else if (!p.in_memory) {
        not_to_keep(ctx, not_kept::in_file);
    }

    return is_kept(capture);
}


bool
keep_body(context &ctx, ngx_chain_t *in)
{
    if (ctx.capture.bodiless) {
        return true;
    }

    for (ngx_chain_t *cl = in; cl != nullptr; cl = cl->next) {
        ngx_buf_t *b = cl->buf;

        if (ngx_buf_in_memory(b)
            && !keep_bytes(ctx, b->pos,
                           static_cast<std::size_t>(b->last - b->pos)))
        {
            return false;
        }
    }

    return true;
}


std::span<piece>
assemble(context &ctx)
{
    capture_state &capture = ctx.capture;
    std::size_t trailer_count;
    auto trailers = encode_trailers(ctx, trailer_count);
    std::size_t bufs = 0;

    for (ngx_chain_t *cl = capture.body; cl != nullptr; cl = cl->next) {
        bufs++;
    }

    auto parts = make_array<piece>(ctx.request->pool, bufs + 2);

    if (parts.data() == nullptr || trailers.data() == nullptr) {
        return {};
    }

    set_body(capture.head.data(), static_cast<std::uint64_t>(capture.size),
             trailer_count);

    std::size_t n = 0;
    parts[n++] = capture.head;

    for (ngx_chain_t *cl = capture.body; cl != nullptr; cl = cl->next) {
        ngx_buf_t *b = cl->buf;
        parts[n++] = {b->pos, static_cast<std::size_t>(b->last - b->pos)};
    }

    parts[n++] = trailers;

    return parts;
}


std::span<piece>
no_content(context &ctx)
{
    response_head head;
    head.status = NGX_HTTP_NO_CONTENT;
    head.place = view(ctx.run.place.place);

    auto part = make_array<piece>(ctx.request->pool, 1);
    auto bytes = make_array<std::uint8_t>(ctx.request->pool,
                                          encoded_size(head));

    if (part.data() == nullptr || bytes.data() == nullptr) {
        return {};
    }

    encode(bytes.data(), head, 0);
    part[0] = bytes;

    return part;
}


bool
is_whole(const context &ctx)
{
    const capture_state &capture = ctx.capture;

    if (capture.cut_off) {
        return false;
    }

    return capture.content_length < 0 || capture.size == capture.content_length
           || capture.bodiless || ctx.request->method == NGX_HTTP_HEAD
           || capture.status == 304 || capture.status == 204;
}


void
not_to_keep(context &ctx, not_kept why)
{
    if (is_kept(ctx.capture)) {
        ctx.capture.why_not = why;
    }
}


void
log_not_kept(const context &ctx)
{
    not_kept why = is_kept(ctx.capture) ? not_kept::no_memory
                                        : ctx.capture.why_not;

    ngx_log_error(NGX_LOG_INFO, ctx.request->connection->log, 0,
                  "idempotency: the response is not kept: %s; retries get 409 "
                  "response_not_kept",
                  reasons[static_cast<std::size_t>(why)]);
}


namespace {

/*
 * Status and Location: what a client is told of a response that is gone.  That
 * is told where the gate stands, so only if that location has admitted it.
 */
bool
encode_summary(context &ctx)
{
    if (!is_at_home(ctx)) {
        ctx.capture.summary = {};
        return true;
    }

    ngx_http_request_t *r = ctx.request;
    ngx_table_elt_t *target = nullptr;
    response_head head;

    head.status = static_cast<std::uint16_t>(r->headers_out.status);

    each_field(r->headers_out.headers, [&](ngx_table_elt_t &h) {
        if (h.hash != 0 && same_name(view(h.key), "location")) {
            target = &h;
        }
    });

    field f = {};
    std::size_t size = encoded_size(head);

    if (target != nullptr) {
        f = {view(target->key), view(target->value)};
        size += encoded_size(f);
    }

    auto summary = make_array<std::uint8_t>(r->pool, size);

    if (summary.data() == nullptr) {
        return false;
    }

    std::uint8_t *p = encode(summary.data(), head, target != nullptr);

    if (target != nullptr) {
        encode(p, f);
    }

    ctx.capture.summary = summary;

    return true;
}


bool
encode_header(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    response_head head = describe(r);

    head.place = view(ctx.run.place.place);

    fields_size size = measure_fields(ctx.conf, r->headers_out.headers);

    /* A response that cannot be put down is passed on and not kept. */
    if (!encodable(head) || !sendable(head) || size.count > max_fields) {
        not_to_keep(ctx, not_kept::not_encodable);
        return true;
    }

    ctx.capture.head = make_array<std::uint8_t>(r->pool, encoded_size(head)
                                                             + size.bytes);

    if (ctx.capture.head.data() == nullptr) {
        return false;
    }

    encode_fields(ctx.conf, r->headers_out.headers,
                  encode(ctx.capture.head.data(), head, size.count));

    return true;
}


response_head
describe(ngx_http_request_t *r)
{
    const ngx_http_headers_out_t &out = r->headers_out;
    response_head head;

    head.status = static_cast<std::uint16_t>(out.status);
    head.content_length = out.content_length_n;
    head.own_location = out.location != nullptr && out.location->hash != 0;

    /* By a filter above us, which a replay does not pass. */
    head.no_server = out.server != nullptr && out.server->hash == 0;

    if (out.last_modified == nullptr) {
        head.last_modified = out.last_modified_time;
    }

    head.status_line = view(out.status_line);
    head.content_type = view(out.content_type);
    head.charset = view(out.charset);
    head.content_type_length = static_cast<std::uint16_t>(
        ngx_min(out.content_type_len, out.content_type.len));

    return head;
}


fields_size
measure_fields(const location_conf *conf, ngx_list_t &list)
{
    fields_size size;

    each_field(list, [&](ngx_table_elt_t &h) {
        if (is_kept_field(conf, h)) {
            size.bytes += encoded_size(field{view(h.key), view(h.value)});
            size.count++;
        }
    });

    return size;
}


void
encode_fields(const location_conf *conf, ngx_list_t &list, std::uint8_t *out)
{
    each_field(list, [&](ngx_table_elt_t &h) {
        if (is_kept_field(conf, h)) {
            out = encode(out, field{view(h.key), view(h.value)});
        }
    });
}


bool
is_kept_field(const location_conf *conf, const ngx_table_elt_t &h)
{
    std::string_view name = view(h.key);
    field f = {name, view(h.value)};

    if (h.hash == 0 || !encodable(f) || !sendable(f) || is_never_kept(name)) {
        return false;
    }

    for (const ngx_str_t &hidden : elements<ngx_str_t>(conf->hidden)) {
        if (same_name(name, view(hidden))) {
            return false;
        }
    }

    return true;
}


bool
keep_bytes(context &ctx, const u_char *bytes, std::size_t size)
{
    capture_state &capture = ctx.capture;

    while (size != 0) {

        if ((capture.tail == nullptr
             || capture.tail->last == capture.tail->end)
            && !grow(ctx, next_size(capture)))
        {
            return false;
        }

        ngx_buf_t *b = capture.tail;
        std::size_t n = ngx_min(size,
                                static_cast<std::size_t>(b->end - b->last));

        b->last = ngx_cpymem(b->last, bytes, n);
        bytes += n;
        size -= n;
    }

    return true;
}


/* The promised length at once, or else twice the last. */
std::size_t
next_size(const capture_state &capture)
{
    if (capture.tail != nullptr) {
        auto last = static_cast<std::size_t>(capture.tail->end
                                             - capture.tail->start);
        return ngx_min(last * 2, largest_piece);
    }

    return capture.content_length > 0
               ? static_cast<std::size_t>(capture.content_length)
               : first_piece;
}


/* A buffer of this size at the end of the body. */
bool
grow(context &ctx, std::size_t size)
{
    capture_state &capture = ctx.capture;
    ngx_chain_t *cl = ngx_alloc_chain_link(ctx.request->pool);
    ngx_buf_t *b = ngx_create_temp_buf(ctx.request->pool, size);

    if (cl == nullptr || b == nullptr) {
        return false;
    }

    cl->buf = b;
    cl->next = nullptr;
    *capture.last = cl;
    capture.last = &cl->next;
    capture.tail = b;

    return true;
}


/* Nothing: no memory, or too many of them. */
std::span<std::uint8_t>
encode_trailers(context &ctx, std::size_t &count)
{
    ngx_list_t &trailers = ctx.request->headers_out.trailers;
    fields_size size = measure_fields(ctx.conf, trailers);

    count = size.count;

    if (count > max_fields) {
        return {};
    }

    auto bytes = make_array<std::uint8_t>(ctx.request->pool, size.bytes);

    if (bytes.data() != nullptr) {
        encode_fields(ctx.conf, trailers, bytes.data());
    }

    return bytes;
}

}
}
