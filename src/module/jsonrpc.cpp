#include "module/jsonrpc.h"

#include "contract/jsonrpc.h"
#include "module/context.h"
#include "module/headers.h"

#include <algorithm>
#include <optional>

namespace idempotency {

namespace {

/* Memory for a while; no data: there is none. */
class scratch {
public:
    scratch(std::size_t size, ngx_log_t *log)
        : bytes_(static_cast<char *>(ngx_alloc(size + 1, log))), size_(size)
    {}

    ~scratch()
    {
        if (bytes_ != nullptr) {
            ngx_free(bytes_);
        }
    }

    scratch(const scratch &) = delete;
    scratch &operator=(const scratch &) = delete;

    char *data() { return bytes_; }
    std::string_view text() const { return {bytes_, size_}; }
    std::span<char> room() { return {bytes_, size_}; }

private:
    char *bytes_;
    std::size_t size_;
};


/* The answers in a body, in the order in which they stand there. */
class answers {
public:
    answers(const context &ctx, std::string_view body);

    bool next(jsonrpc_answer &answer);

private:
    std::string_view body_;
    bool done_ = false;
    std::optional<scratch> room_;
    std::optional<jsonrpc_events> events_;
};


std::string_view captured(context &ctx);
bool is_plain(ngx_http_request_t *r);
std::string_view first_id(const context &ctx, std::string_view body);
ngx_chain_t **add_buf(ngx_pool_t *pool, ngx_chain_t **last,
                      std::string_view bytes);
void call_arrived(ngx_http_request_t *r);
bool look_into_body(context &ctx);
bool copy_body(ngx_http_request_t *r, char *out);

}


bool
look_for_call(context &ctx, std::string_view body)
{
    jsonrpc_request request = read_jsonrpc_request(body);

    ctx.jsonrpc.call = request.call;
    ctx.jsonrpc.mcp = request.mcp;
    ctx.jsonrpc.not_compared = request.not_compared;

    /* It must outlast the body. */
    ngx_str_t id = str(request.id);

    ctx.jsonrpc.id.len = id.len;
    ctx.jsonrpc.id.data = ngx_pstrdup(ctx.request->pool, &id);

    return ctx.jsonrpc.id.data != nullptr;
}


void
note_encoding(context &ctx)
{
    ctx.capture.encoded = ctx.conf->jsonrpc && !is_plain(ctx.request);
}


bool
hides_its_id(const context &ctx)
{
    return ctx.capture.encoded && ctx.capture.size != 0
           && ctx.jsonrpc.id.len != 0;
}


/* Errors say that nothing was done. */
bool
is_jsonrpc_error(context &ctx)
{
    if (!ctx.conf->jsonrpc || !is_kept(ctx.capture) || !ctx.body.json
        || ctx.capture.encoded)
    {
        return false;
    }

    std::string_view body = captured(ctx);
    answers all(ctx, body);
    jsonrpc_answer answer;
    bool any = false;

    while (all.next(answer)) {
        if (!answer.error) {
            return false;
        }

        any = true;
    }

    return any;
}


ngx_chain_t *
with_own_id(context &ctx, std::span<const std::uint8_t> bytes)
{
    std::string_view body(reinterpret_cast<const char *>(bytes.data()),
                          bytes.size());
    std::string_view own = view(ctx.jsonrpc.id);

    if (!ctx.conf->jsonrpc || own.empty() || !is_plain(ctx.request)) {
        return nullptr;
    }

    std::string_view first = first_id(ctx, body);

    if (first.empty()) {
        return nullptr;
    }

    ngx_pool_t *pool = ctx.request->pool;
    ngx_chain_t *out = nullptr;
    ngx_chain_t **last = &out;
    answers all(ctx, body);
    jsonrpc_answer answer;
    std::size_t done = 0;

    while (last != nullptr && all.next(answer)) {
        if (answer.has_id
            && body.substr(answer.id_at, answer.id_size) == first) {
            last = add_buf(pool, last, body.substr(done, answer.id_at - done));
            last = add_buf(pool, last, own);
            done = answer.id_at + answer.id_size;
        }
    }

    last = add_buf(pool, last, body.substr(done));

    return last != nullptr ? out : nullptr;
}


bool
is_unread_call(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return ctx.conf->jsonrpc && !ctx.grpc && r->request_body == nullptr
           && !r->discard_body && is_json_request(r);
}


ngx_int_t
read_call(context &ctx, void (*then)(context &ctx))
{
    ctx.jsonrpc.then = then;

    ngx_int_t rc = ngx_http_read_client_request_body(ctx.request,
                                                     call_arrived);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    /* Gives back the reference that the call has taken. */
    ngx_http_finalize_request(ctx.request, NGX_DONE);

    return NGX_DONE;
}


ngx_str_t
jsonrpc_error(context &ctx, std::string_view message, const ngx_str_t &problem)
{
    ngx_str_t id = ctx.jsonrpc.id;
    ngx_str_t text = str(message);

    if (id.len == 0) {
        ngx_str_set(&id, "null");
    }

    return format(ctx.request->pool, id.len + text.len + problem.len + 128,
                  "{\"jsonrpc\":\"2.0\",\"id\":%V,\"error\":{\"code\":-32000,"
                  "\"message\":\"%V\",\"data\":%V}}",
                  &id, &text, &problem);
}


namespace {

answers::answers(const context &ctx, std::string_view body) : body_(body)
{
    if (!is_event_stream(view(ctx.request->headers_out.content_type))) {
        return;
    }

    room_.emplace(body.size(), ctx.request->connection->log);

    if (room_->data() != nullptr) {
        events_.emplace(body, room_->room());

    } else {
        done_ = true;
    }
}


bool
answers::next(jsonrpc_answer &answer)
{
    if (done_) {
        return false;
    }

    if (events_) {
        return events_->next(answer);
    }

    done_ = true;

    return read_jsonrpc_answer(body_, answer);
}


/* Nothing: no memory. */
std::string_view
captured(context &ctx)
{
    auto size = static_cast<std::size_t>(ctx.capture.size);
    auto body = make_array<char>(ctx.request->pool, size);

    if (body.data() == nullptr) {
        return {};
    }

    char *p = body.data();

    for (ngx_chain_t *cl = ctx.capture.body; cl != nullptr; cl = cl->next) {
        p = std::copy(cl->buf->pos, cl->buf->last, p);
    }

    return {body.data(), size};
}


/* Whatever is encoded is passed as it is. */
bool
is_plain(ngx_http_request_t *r)
{
    bool plain = true;

    each_field(r->headers_out.headers, [&](ngx_table_elt_t &h) {
        plain &= h.hash == 0 || !same_name(view(h.key), "content-encoding")
                 || same_name(view(h.value), "identity");
    });

    return plain;
}


/*
 * The id of the first request: that of its answers.  Errors that could not
 * tell it have null.  Nothing: there is none, or they do not agree.
 */
std::string_view
first_id(const context &ctx, std::string_view body)
{
    answers all(ctx, body);
    jsonrpc_answer answer;
    std::string_view found;

    while (all.next(answer)) {
        if (!answer.has_id) {
            continue;
        }

        std::string_view id = body.substr(answer.id_at, answer.id_size);

        if (found.empty() || found == "null") {
            found = id;

        } else if (id != "null" && id != found) {
            return {};
        }
    }

    return found;
}


/* Where the next buffer goes; null: no memory. */
ngx_chain_t **
add_buf(ngx_pool_t *pool, ngx_chain_t **last, std::string_view bytes)
{
    if (last == nullptr || bytes.empty()) {
        return last;
    }

    ngx_chain_t *cl = ngx_alloc_chain_link(pool);
    auto *b = static_cast<ngx_buf_t *>(ngx_calloc_buf(pool));

    if (cl == nullptr || b == nullptr) {
        return nullptr;
    }

    /* Others may get the same bytes: no filter may write there. */
    ngx_str_t text = str(bytes);

    b->pos = b->start = text.data;
    b->last = b->end = text.data + text.len;
    b->memory = 1;
    cl->buf = b;
    cl->next = nullptr;
    *last = cl;

    return &cl->next;
}


void
call_arrived(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (!look_into_body(*ctx)) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ctx->jsonrpc.then(*ctx);
}


/* False: no memory, or the body cannot be read. */
bool
look_into_body(context &ctx)
{
    off_t size = size_of_body(ctx);

    if (size > max_parsed) {
        return true;
    }

    scratch body(static_cast<std::size_t>(size), ctx.request->connection->log);

    return body.data() != nullptr && copy_body(ctx.request, body.data())
           && look_for_call(ctx, body.text());
}


bool
copy_body(ngx_http_request_t *r, char *out)
{
    ngx_http_request_body_t *read = r->request_body;

    for (ngx_chain_t *cl = read != nullptr ? read->bufs : nullptr;
         cl != nullptr; cl = cl->next)
    {
        ngx_buf_t *b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            out = std::copy(b->pos, b->last, out);
            continue;
        }

        auto size = static_cast<std::size_t>(b->file_last - b->file_pos);

        if (b->in_file
            && ngx_read_file(b->file, reinterpret_cast<u_char *>(out), size,
                             b->file_pos)
                   != static_cast<ssize_t>(size))
        {
            return false;
        }

        out += size;
    }

    return true;
}

}

}
