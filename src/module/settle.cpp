#include "module/context.h"

namespace idempotency {

namespace {

/* By ending. */
constexpr const char *ending_names[] = {"released", "unknown", "completed",
                                        "not kept"};


bool
is_app_word(const ngx_table_elt_t &h)
{
    return h.hash != 0 && same_name(view(h.key), "x-accel-idempotency");
}


/* -1: none was given. */
int
grpc_status(ngx_http_request_t *r)
{
    int status = -1;

    auto look = [&](ngx_table_elt_t &h) {
        if (h.hash != 0 && same_name(view(h.key), "grpc-status")) {
            ngx_int_t n = ngx_atoi(h.value.data, h.value.len);
            status = n == NGX_ERROR ? -1 : static_cast<int>(n);
        }
    };

    each_field(r->headers_out.headers, look);
    each_field(r->headers_out.trailers, look);

    return status;
}


/* Nothing: it is too large, not to be kept, or there is no memory for it. */
std::span<piece>
response_to_keep(context &ctx, const outcome &how)
{
    const capture_state &capture = ctx.capture;

    if (how.end != ending::completed) {
        return {};
    }

    if (ctx.conf->replay_empty && capture.status >= 200
        && capture.status < 300) {
        return no_content(ctx);
    }

    return capture.overflow ? std::span<piece>() : assemble(ctx);
}


void
complete(context &ctx, const outcome &how)
{
    capture_state &capture = ctx.capture;
    std::uint64_t summary_ttl = ttl_without_response(rules_of(ctx.conf).ttl);
    pieces summary = {&capture.summary, 1};

    if (capture.word.has_ttl) {
        summary_ttl = ngx_min(summary_ttl, capture.word.ttl);
    }

    completion record = {record_state::completed, how.ttl,
                         response_to_keep(ctx, how), summary, summary_ttl};

    if (record.response.empty()) {
        record = {record_state::not_kept, summary_ttl, summary, summary,
                  summary_ttl};
    }

    set_expires(ctx, record.ttl);
    capture.completing = true;
    ctx.conf->store->backend->complete(ctx.own, record, &capture.settled);
}

}


/* A response that was promised longer than it came is not whole. */
bool
is_whole(const context &ctx)
{
    const capture_state &capture = ctx.capture;

    return capture.content_length < 0 || capture.size == capture.content_length
           || ctx.request->method == NGX_HTTP_HEAD || capture.status == 304
           || capture.status == 204;
}


/*
 * What the application says in X-Accel-Idempotency.  It is looked for in the
 * upstream's own header, as nginx may have made another one of it.
 */
app_word
read_app_word(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_http_upstream_t *u = r->upstream;
    bool asked = u != nullptr && u != ctx.run.upstream_before
                 && u->headers_in.headers.part.elts != nullptr;
    app_word word;

    if (!ctx.conf->app_control) {
        return word;
    }

    each_field(asked ? u->headers_in.headers : r->headers_out.headers,
               [&](ngx_table_elt_t &h) {
                   if (is_app_word(h) && !parse_app_word(view(h.value), word))
                   {
                       ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                                     "idempotency: the application sent an "
                                     "invalid X-Accel-Idempotency: \"%V\"",
                                     &h.value);
                   }
               });

    return word;
}


/* It is for us alone. */
void
strip_app_word(ngx_http_request_t *r)
{
    each_field(r->headers_out.headers, [](ngx_table_elt_t &h) {
        if (is_app_word(h)) {
            h.hash = 0;
        }
    });
}


void
log_ending(const context &ctx, const evidence &seen, const outcome &how)
{
    ngx_log_t *log = ctx.request->connection->log;

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, log, 0,
                   "idempotency: ends as %s, status %ud, sent %d, whole %d",
                   ending_names[static_cast<std::size_t>(how.end)],
                   seen.status, seen.sent, seen.complete);

    if (how.end != ending::unknown) {
        return;
    }

    bool answered = seen.complete && !seen.unanswered;

    ngx_log_error(NGX_LOG_WARN, log, 0,
                  "idempotency: the outcome of a request is unknown: %s",
                  !answered    ? "no complete answer came"
                  : seen.again ? "that of an earlier attempt was"
                               : "its answer does not tell");
}


/* The whole response is here, or all of it that will ever come. */
void
settle(context &ctx, bool whole)
{
    capture_state &capture = ctx.capture;
    outcome_rules rules = rules_of(ctx.conf);
    bool all = whole && is_whole(ctx);
    evidence seen = collect_evidence(ctx, all);

    /* What is not all of a response is none that could be shown again. */
    if (!all) {
        capture.overflow = true;
    }

    /* A page that dresses an answer has no say in what it means. */
    if (capture.own_answer) {
        seen.grpc = is_grpc_type(view(ctx.request->headers_out.content_type));
        seen.grpc_status = seen.grpc ? grpc_status(ctx.request) : -1;
        seen.rpc_error = is_jsonrpc_error(ctx);
    }

    outcome how = decide(seen, capture.word, rules);
    store *backend = ctx.conf->store->backend;

    log_ending(ctx, seen, how);

    ctx.at = stage::settling;
    ctx.asked = ngx_current_msec;
    ctx.run.renewal.stop();

    switch (how.end) {

    case ending::released:
        ctx.expires = 0;
        backend->release(ctx.own, &capture.settled);
        break;

    case ending::unknown:
        set_expires(ctx, how.ttl);
        backend->mark_unknown(ctx.own, how.ttl, &capture.settled);
        break;

    default: complete(ctx, how);
    }
}

}
