#include "module/problem.h"

#include "contract/record.h"
#include "module/capture.h"
#include "module/context.h"
#include "module/counting.h"
#include "module/error_body.h"
#include "module/jsonrpc.h"

namespace idempotency {

namespace {

/* Refusals are a client's affair, and there may be many. */
ngx_uint_t
below(ngx_uint_t level)
{
    return level < NGX_LOG_INFO ? NGX_LOG_INFO : NGX_LOG_DEBUG;
}


bool
push_retry_after(ngx_http_request_t *r, ngx_msec_t time)
{
    ngx_msec_t seconds = ngx_max((time + 999) / 1000, 1);
    ngx_str_t value = format(r->pool, NGX_INT_T_LEN, "%M", seconds);

    return value.data != nullptr
           && push_header(r, ngx_string("Retry-After"), value) != nullptr;
}


bool
push_link(ngx_http_request_t *r, const ngx_str_t &url)
{
    ngx_str_t value = format(r->pool, url.len + 32,
                             "<%V>; rel=\"describedby\"", &url);

    return value.data != nullptr
           && push_header(r, ngx_string("Link"), value) != nullptr;
}


bool
push_headers(context &ctx, error_code code)
{
    ngx_http_request_t *r = ctx.request;

    if ((code == error_code::in_progress
         || code == error_code::store_unavailable)
        && !push_retry_after(r, ctx.conf->retry_after))
    {
        return false;
    }

    return ctx.conf->docs.len == 0 || push_link(r, ctx.conf->docs);
}


/* Percent signs for whatever may not stand in a URI, quotes included. */
ngx_str_t
escape_location(ngx_pool_t *pool, std::string_view location)
{
    auto *start = static_cast<u_char *>(
        ngx_pnalloc(pool, location.size() * 3 + 1));

    if (start == nullptr) {
        return {0, nullptr};
    }

    u_char *p = start;

    for (char c : location) {
        if (c > 0x20 && c < 0x7f && c != '"' && c != '\\') {
            *p++ = static_cast<u_char>(c);

        } else {
            p = ngx_sprintf(p, "%%%02Xd", static_cast<u_char>(c));
        }
    }

    return {static_cast<std::size_t>(p - start), start};
}


/* Members that tell what became of the request whose response is gone. */
ngx_str_t
describe_original(context &ctx)
{
    ngx_pool_t *pool = ctx.request->pool;
    response_reader original;
    ngx_str_t none = ngx_string("");

    if (ctx.error != error_code::response_not_kept
        || !original.open(ctx.claim.answer.response))
    {
        return none;
    }

    unsigned status = original.head().status;
    field f;

    if (!original.next_header(f)) {
        return format(pool, 64, ",\"original_status\":%ud", status);
    }

    ngx_str_t location = escape_location(pool, f.value);

    return format(pool, location.len + 128,
                  ",\"original_status\":%ud,\"original_location\":\"%V\"",
                  status, &location);
}


/* nginx has no words for these. */
ngx_str_t
status_line(ngx_uint_t status)
{
    switch (status) {

    case 422: return ngx_string("422 Unprocessable Content");

    case 425: return ngx_string("425 Too Early");

    default: return ngx_null_string;
    }
}


using sender = ngx_int_t(ngx_http_request_t *r, ngx_chain_t *body);


ngx_int_t
send_from_top(ngx_http_request_t *r, ngx_chain_t *body)
{
    ngx_int_t rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, body);
}


/*
 * The operator's own words for this refusal.  Protocols that have their own
 * form of errors keep it.
 */
const error_body *
own_body(const context &ctx)
{
    return ctx.grpc || ctx.jsonrpc.call ? nullptr
                                        : find_error_body(ctx.conf, ctx.error);
}


ngx_str_t problem_json(context &ctx, const problem &p, ngx_uint_t status);
ngx_int_t send_text(ngx_http_request_t *r, std::string_view type,
                    const ngx_str_t &text, sender send);


ngx_int_t
send_body(context &ctx, const problem &p, ngx_uint_t status, sender send)
{
    ngx_http_request_t *r = ctx.request;
    const error_body *own = own_body(ctx);

    r->headers_out.status = status;
    r->headers_out.status_line = status_line(status);

    if (own != nullptr) {
        return send_text(r, view(own->type), render(r, *own), send);
    }

    ngx_str_t text = problem_json(ctx, p, status);

    if (ctx.jsonrpc.call && text.data != nullptr) {
        text = jsonrpc_error(ctx, p.title, text);
    }

    if (text.data == nullptr) {
        return NGX_ERROR;
    }

    return send_text(
        r, ctx.jsonrpc.call ? "application/json" : "application/problem+json",
        format(r->pool, text.len + 1, "%V\n", &text), send);
}


ngx_str_t
problem_json(context &ctx, const problem &p, ngx_uint_t status)
{
    ngx_str_t type = ctx.conf->docs;
    ngx_str_t title = str(p.title);
    ngx_str_t detail = detail_of(ctx);
    ngx_str_t name = str(p.name);
    ngx_str_t original = describe_original(ctx);

    if (original.data == nullptr || detail.data == nullptr) {
        return ngx_null_string;
    }

    if (type.len == 0) {
        ngx_str_set(&type, "about:blank");
    }

    std::size_t size = type.len + title.len + detail.len + name.len
                       + original.len + 128;

    return format(ctx.request->pool, size,
                  "{\"type\":\"%V\",\"title\":\"%V\",\"status\":%ui,"
                  "\"detail\":\"%V\",\"code\":\"%V\"%V}",
                  &type, &title, status, &detail, &name, &original);
}


ngx_int_t
send_text(ngx_http_request_t *r, std::string_view type, const ngx_str_t &text,
          sender send)
{
    auto *b = static_cast<ngx_buf_t *>(ngx_calloc_buf(r->pool));

    if (text.data == nullptr || b == nullptr) {
        return NGX_ERROR;
    }

    r->headers_out.content_length_n = static_cast<off_t>(text.len);
    r->headers_out.content_type = str(type);
    r->headers_out.content_type_len = std::min(type.find(';'), type.size());
    r->headers_out.content_type_lowcase = nullptr;

    b->pos = b->start = text.data;
    b->last = b->end = text.data + text.len;
    b->memory = text.len != 0;
    b->last_buf = 1;
    b->last_in_chain = 1;

    ngx_chain_t out = {b, nullptr};

    return send(r, &out);
}


/* A gRPC client looks for its status, not for HTTP's. */
ngx_int_t
send_grpc(context &ctx, const problem &p, sender send)
{
    ngx_http_request_t *r = ctx.request;
    ngx_str_t status = format(r->pool, NGX_INT_T_LEN, "%ud", p.grpc_status);
    ngx_str_t detail = detail_of(ctx);

    if (status.data == nullptr || detail.data == nullptr
        || push_header(r, ngx_string("grpc-status"), status) == nullptr
        || push_header(r, ngx_string("grpc-message"), detail) == nullptr
        || push_header(r, ngx_string("idempotency-error"), str(p.name))
               == nullptr)
    {
        return NGX_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;
    ngx_http_clear_content_length(r);
    ngx_str_set(&r->headers_out.content_type, "application/grpc");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = nullptr;
    r->header_only = 1;

    return send(r, nullptr);
}


/*
 * Then the operator's page answers, with our headers.  A body for this very
 * refusal says more than a page for all that has its status.
 */
bool
has_page(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return !ctx.grpc && !r->error_page && own_body(ctx) == nullptr
           && has_error_page(core_location(r), status_of(ctx.conf, ctx.error));
}


void
answer_refused(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    const problem &p = describe(ctx.error);
    ngx_uint_t status = status_of(ctx.conf, ctx.error);

    if (has_page(ctx)) {
        ngx_http_finalize_request(r, static_cast<ngx_int_t>(status));
        return;
    }

    /* An error page that has led here must not give the answer its status. */
    r->err_status = 0;

    ngx_int_t rc = ctx.grpc ? send_grpc(ctx, p, send_from_top)
                            : send_body(ctx, p, status, send_from_top);

    ngx_http_finalize_request(r, rc);
}

}


/* In a dry run a refusal is only logged. */
ngx_int_t
refuse(context &ctx, refusal why)
{
    if (ctx.conf->dry_run) {
        ngx_str_t name = str(name_of(why.code));

        id_text id(ctx);

        ngx_log_error(ctx.conf->log_level, ctx.request->connection->log, 0,
                      "idempotency: dry run: this request would be refused "
                      "with \"%V\", record %V",
                      &name, &id.text);

        ctx.error = why.code;
        count_dry_run(ctx, why.code);
        return pass(ctx, why.status);
    }

    ctx.status = why.status;
    return send_problem(ctx, why.code);
}


ngx_int_t
send_problem(context &ctx, error_code code)
{
    ngx_http_request_t *r = ctx.request;
    const problem &p = describe(code);
    ngx_str_t name = str(p.name);

    bool again = ctx.at == stage::refused;

    move_to(ctx, stage::refused);
    ctx.error = code;

    if (!again) {
        count_refusal(ctx, {ctx.status, code});
        id_text id(ctx);

        ngx_log_error(below(ctx.conf->log_level), r->connection->log, 0,
                      "idempotency: request refused with \"%V\", record %V",
                      &name, &id.text);

        if (!push_headers(ctx, code)) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (!again && is_unread_call(ctx)) {
        return read_call(ctx, answer_refused);
    }

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    if (has_page(ctx)) {
        return static_cast<ngx_int_t>(status_of(ctx.conf, code));
    }

    answer_refused(ctx);

    return NGX_DONE;
}


ngx_int_t
send_problem_below(context &ctx, error_code code)
{
    const problem &p = describe(code);

    ctx.error = code;

    if (!push_headers(ctx, code)) {
        return NGX_ERROR;
    }

    return ctx.grpc ? send_grpc(ctx, p, send_below)
                    : send_body(ctx, p, status_of(ctx.conf, code), send_below);
}

}
