#include "module/context.h"

namespace idempotency {

namespace {

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


bool
is_grpc_answer(ngx_http_request_t *r)
{
    return view(r->headers_out.content_type).starts_with("application/grpc")
           && !view(r->headers_out.content_type)
                   .starts_with("application/grpc-web");
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
    piece summary[] = {capture.summary};
    completion record = {record_state::completed, how.ttl,
                         response_to_keep(ctx, how), summary};

    if (record.response.empty()) {
        record.state = record_state::not_kept;
        record.response = summary;
    }

    if (record.response.data() == summary && how.end == ending::completed) {
        std::uint64_t ttl = ttl_without_response(rules_of(ctx.conf).ttl);

        record.ttl = capture.word.has_ttl ? ngx_min(ttl, capture.word.ttl)
                                          : ttl;
    }

    set_expires(ctx, record.ttl);
    ctx.conf->store->backend->complete(ctx.own, record, capture.settled);
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
 * What the application says in X-Accel-Idempotency, which is for us alone: it
 * is taken out of the header.
 */
app_word
take_app_word(ngx_http_request_t *r, const location_conf *conf,
              ngx_list_t &headers)
{
    app_word word;

    each_field(headers, [&](ngx_table_elt_t &h) {
        if (h.hash == 0 || !same_name(view(h.key), "x-accel-idempotency")) {
            return;
        }

        h.hash = 0;

        if (conf->app_control && !parse_app_word(view(h.value), word)) {
            ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                          "idempotency: the application sent an invalid "
                          "X-Accel-Idempotency: \"%V\"",
                          &h.value);
        }
    });

    return word;
}


/* The whole response is here, or all of it that will ever come. */
void
settle(context &ctx, bool whole)
{
    capture_state &capture = ctx.capture;
    outcome_rules rules = rules_of(ctx.conf);
    evidence seen = collect_evidence(ctx, whole && is_whole(ctx));

    seen.grpc = is_grpc_answer(ctx.request);
    seen.grpc_status = seen.grpc ? grpc_status(ctx.request) : -1;

    outcome how = decide(seen, capture.word, rules);
    store *backend = ctx.conf->store->backend;

    switch (how.end) {

    case ending::released:
        ctx.expires = 0;
        backend->release(ctx.own, capture.settled);
        break;

    case ending::unknown:
        set_expires(ctx, how.ttl);
        backend->hold(ctx.own, how.ttl, capture.settled);
        break;

    default: complete(ctx, how);
    }
}

}
