#include "module/framing.h"

#include "contract/json_end.h"
#include "contract/media_type.h"
#include "module/context.h"

namespace idempotency {

namespace {

bool ends_with_connection(const context &ctx);
bool is_readable_json(const context &ctx);
void warn_once(const context &ctx);

}


bool
is_cut_off(const context &ctx)
{
    if (!ends_with_connection(ctx)) {
        return false;
    }

    if (!is_readable_json(ctx)) {
        warn_once(ctx);
        return false;
    }

    json_end document;

    for (ngx_chain_t *cl = ctx.capture.body; cl != nullptr; cl = cl->next) {
        document.feed(
            {reinterpret_cast<char *>(cl->buf->pos),
             static_cast<std::size_t>(cl->buf->last - cl->buf->pos)});
    }

    return document.is_cut_off();
}


/*
 * nginx waits for the end of the connection if it does not know how much is to
 * come.  With FastCGI this need not mean anything, see has_end().
 */
bool
has_no_framing(const ngx_http_upstream_t *u)
{
    off_t left = u->buffering ? u->pipe->length : u->length;

    return left == -1 && view(u->schema) != "fastcgi://";
}


namespace {

bool
ends_with_connection(const context &ctx)
{
    const capture_state &capture = ctx.capture;
    const ngx_http_request_t *r = ctx.request;

    return capture.own_answer && capture.content_length < 0
           && capture.status != NGX_HTTP_NO_CONTENT
           && capture.status != NGX_HTTP_NOT_MODIFIED
           && capture.status != NGX_HTTP_SWITCHING_PROTOCOLS
           && r->method != NGX_HTTP_HEAD && !r->cached && has_upstream(ctx)
           && r->upstream != nullptr && has_no_framing(r->upstream);
}


bool
is_readable_json(const context &ctx)
{
    const ngx_http_headers_out_t &out = ctx.request->headers_out;
    std::array<char, max_boundary> unused;

    /* Many an application sends its usual type with nothing, and means it. */
    return is_kept(ctx.capture) && ctx.capture.size > 0
           && out.content_encoding == nullptr
           && parse_media_type(view(out.content_type), unused).kind
                  == media::json;
}


void
warn_once(const context &ctx)
{
    if (ctx.conf->warned_of_framing) {
        return;
    }

    ctx.conf->warned_of_framing = true;

    ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                  "idempotency: response ended with the connection in "
                  "location \"%V\": had it been cut off, that would not be "
                  "noticed; set \"proxy_http_version 1.1\", and let the "
                  "application send Content-Length or chunks (logged once for "
                  "each location and worker)",
                  &core_location(ctx.request)->name);
}

}

}
