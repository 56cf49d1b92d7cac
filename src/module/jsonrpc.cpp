#include "module/jsonrpc.h"

#include "contract/jsonrpc.h"
#include "module/context.h"
#include "module/headers.h"

#include <algorithm>

namespace idempotency {

namespace {

/* Whatever is encoded is passed as it is. */
bool
read_answer(std::string_view body, std::string_view content_type,
            jsonrpc_answer &answer)
{
    json_parser *parser = worker_json_parser();

    if (parser == nullptr) {
        return false;
    }

    return is_event_stream(content_type)
               ? read_jsonrpc_event(*parser, body, answer)
               : read_jsonrpc_answer(*parser, body, answer);
}


/* The bytes with room behind them for the parser; nothing: no memory. */
std::span<u_char>
pad(ngx_pool_t *pool, std::size_t size)
{
    auto room = make_array<u_char>(pool, size + json_padding);

    return room.data() != nullptr ? room.first(size) : room;
}

}


/* An error answer says that nothing was done. */
bool
is_jsonrpc_error(context &ctx)
{
    capture_state &capture = ctx.capture;

    if (!ctx.conf->jsonrpc || !is_kept(capture) || !ctx.body.json
        || ctx.request->headers_out.content_encoding != nullptr)
    {
        return false;
    }

    auto body = pad(ctx.request->pool, static_cast<std::size_t>(capture.size));
    u_char *p = body.data();

    if (p == nullptr) {
        return false;
    }

    for (ngx_chain_t *cl = capture.body; cl != nullptr; cl = cl->next) {
        p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
    }

    jsonrpc_answer answer;

    return read_answer({reinterpret_cast<char *>(body.data()), body.size()},
                       view(ctx.request->headers_out.content_type), answer)
           && answer.error;
}


/*
 * The body of a replay with the id of the retry in place of the first one.
 * Nothing: there is nothing to replace.
 */
std::span<u_char>
with_own_id(context &ctx, std::span<const std::uint8_t> body)
{
    ngx_http_request_t *r = ctx.request;
    std::string_view id = view(ctx.jsonrpc_id);

    if (!ctx.conf->jsonrpc || id.empty()
        || r->headers_out.content_encoding != nullptr)
    {
        return {};
    }

    auto padded = pad(r->pool, body.size());

    if (padded.data() == nullptr) {
        return {};
    }

    std::copy(body.begin(), body.end(), padded.begin());

    jsonrpc_answer answer;
    std::string_view text(reinterpret_cast<char *>(padded.data()),
                          padded.size());

    if (!read_answer(text, view(r->headers_out.content_type), answer)
        || !answer.has_id)
    {
        return {};
    }

    auto out = make_array<u_char>(r->pool,
                                  body.size() - answer.id_size + id.size());

    if (out.data() == nullptr) {
        return {};
    }

    auto p = std::copy_n(padded.begin(), answer.id_at, out.begin());
    p = std::copy(id.begin(), id.end(), p);
    std::copy(padded.begin()
                  + static_cast<std::ptrdiff_t>(answer.id_at + answer.id_size),
              padded.end(), p);

    return out;
}

}
