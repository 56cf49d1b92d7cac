#include "module/context.h"

namespace idempotency {

/*
 * A run whose record became another's while it stood still.  It has ended
 * well, but all who ask for the key are told of the successor, and so is its
 * own client: two answers to one key would be two truths.  If nobody owns the
 * record any more (a store that has lost its memory), it is claimed once more
 * for the outcome that is at hand.
 */

namespace {

std::uint8_t *
room_for_response(claim_waiter &waiter, std::size_t size)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    return static_cast<std::uint8_t *>(ngx_pnalloc(ctx->request->pool, size));
}


void
successor_answered(claim_waiter &waiter, const claim_answer &answer)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    if (answer.result == claim_result::claimed) {
        ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                      "idempotency: the record of a running request was gone "
                      "from the store, its outcome is stored anew");

        ctx->own.owner = ctx->capture.second;
        settle(*ctx, true);
        return;
    }

    if (answer.result == claim_result::found) {
        ctx->answer = answer;
        ctx->capture.superseded = true;
    }

    ctx->capture.settled.settled(ctx->capture.settled, settle_result::lost);
}


ngx_int_t
tell(context &ctx, status as, error_code code)
{
    ctx.status = as;

    return send_problem_below(ctx, code);
}

}


/* False: there is nothing to ask for, or it was asked before. */
bool
ask_successor(context &ctx)
{
    const location_conf *conf = ctx.conf;

    if (ctx.capture.how != capture_state::held || !ctx.capture.completing
        || ctx.capture.asked || !make_token(ctx.capture.second))
    {
        return false;
    }

    claim what = {ctx.own.name,
                  ctx.fingerprint,
                  ctx.capture.second,
                  conf->lease,
                  ttl_without_response(rules_of(conf).ttl),
                  false,
                  false};

    ctx.capture.asked = true;
    ctx.claimer = {&ctx, successor_answered, room_for_response};
    conf->store->backend->claim_record(what, ctx.claimer);

    return true;
}


/* In place of the response that is held. */
ngx_int_t
send_successor(context &ctx)
{
    ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                  "idempotency: a request that outlived its lease is answered "
                  "as its successor");

    ngx_http_clean_header(ctx.request);
    set_expires(ctx, ctx.answer.remaining);

    switch (judge(ctx.answer.state, ctx.answer.same_fingerprint)) {

    case verdict::replay: return send_replay(ctx);

    case verdict::wait:
        return tell(ctx, status::in_progress, error_code::in_progress);

    case verdict::not_kept:
        return tell(ctx, status::not_kept, error_code::response_not_kept);

    case verdict::reused:
        return tell(ctx, status::reused, error_code::key_reused);

    default: return tell(ctx, status::unknown, error_code::outcome_unknown);
    }
}

}
