#include "module/streaming.h"

#include "module/context.h"
#include "module/framing.h"
#include "module/keeping.h"
#include "module/portion.h"
#include "module/writers.h"

namespace idempotency {

ngx_int_t
reject_streamed(context &ctx)
{
    settle(ctx, false, nullptr);

    return pass_header(ctx.request);
}


ngx_int_t
start_streaming(context &ctx)
{
    ctx.capture.how = capture_state::mode::streamed;

    ngx_int_t rc = pass_header(ctx.request);

    if (rc == NGX_ERROR && ctx.request->connection->error
        && !ctx.conf->dry_run) {
        client_left(ctx);
        rc = NGX_OK;
    }

    /* NGX_AGAIN: the header waits in a queue of its connection. */
    if (ctx.request->header_only && (rc == NGX_OK || rc == NGX_AGAIN)) {
        settle(ctx, true, nullptr);
    }

    return rc;
}


ngx_int_t
stream(context &ctx, ngx_chain_t *in)
{
    portion p = measure(in);

    if (in != nullptr) {
        look_for_writers(ctx);
    }

    if (fits(ctx, p) && !keep_body(ctx, in)) {
        not_to_keep(ctx, not_kept::no_memory);
    }

    outlast_slow_client(ctx);

    if (p.last) {
        ctx.capture.cut_off = is_cut_off(ctx);
        settle(ctx, !is_truncated(ctx.request, p), nullptr);
    }

    return pass_on(ctx, in);
}


ngx_int_t
pass_on(context &ctx, ngx_chain_t *in)
{
    ngx_http_request_t *r = ctx.request;

    /* A filter below may still have to send the header. */
    if (r->header_only) {
        consume(in);
        return ctx.run.client.gone ? NGX_OK : pass_body(r, nullptr);
    }

    if (ctx.run.client.gone) {
        drop_unsent(ctx, in);
        return ctx.at == stage::running ? NGX_OK : NGX_ERROR;
    }

    ngx_int_t rc = pass_body(r, in);

    note_passed(ctx, in);

    if (ctx.at == stage::running && is_kept(ctx.capture)
        && !note_subrequests_below(ctx))
    {
        not_to_keep(ctx, not_kept::no_memory);
    }

    if (rc != NGX_ERROR || !r->connection->error || ctx.conf->dry_run
        || ctx.at != stage::running)
    {
        return rc;
    }

    client_left(ctx);
    consume(in);

    return NGX_OK;
}


}
