#include "module/claim.h"

#include "contract/record.h"
#include "module/context.h"
#include "module/counting.h"
#include "module/replay.h"
#include "module/shared_response.h"

#include <openssl/rand.h>

#include <algorithm>

namespace idempotency {

namespace {

struct claim_terms {
    bool take_over; /* an unknown outcome may be run again */
    bool again;     /* it met a pending record just now */
};


ngx_int_t meet_record(context &ctx);
ngx_int_t store_failed(context &ctx);
bool make_token(token &out);
bool takes_over(const location_conf *conf);
void send_claim(context &ctx, const token &owner, claim_terms terms);
void claim_answered(claim_waiter &waiter, const claim_answer &answer);
std::uint8_t *room_for_response(claim_waiter &waiter, std::size_t size);

}


ngx_int_t
claim_key(context &ctx)
{
    if (!make_token(ctx.claim.own.owner)) {
        ngx_log_error(
            NGX_LOG_ERR, ctx.request->connection->log, 0,
            "idempotency: RAND_bytes() failed, no token for the claim; "
            "the request is refused with 500");
        return NGX_ERROR;
    }

    move_to(ctx, stage::claiming);
    start_store_time(ctx);

    ctx.claim.own.lease = ctx.conf->lease;
    ctx.claim.own.keep = ttl_without_response(rules_of(ctx.conf).ttl);
    ctx.claim.own.fingerprint = ctx.body.fingerprint;
    ctx.claim.waiter = {&ctx, claim_answered, room_for_response};

    ctx.claim.in_call = true;
    send_claim(ctx, ctx.claim.own.owner,
               {takes_over(ctx.conf), ctx.wait.started});
    ctx.claim.in_call = false;

    return NGX_OK;
}


ngx_int_t
act_on_answer(context &ctx)
{
    const claim_answer &answer = ctx.claim.answer;

    /* It runs, as was said before: a store that fails does not change that. */
    if (answer.result == claim_result::unavailable && was_pending(ctx)) {
        ngx_log_debug0(
            NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
            "idempotency: store failed, the request continues to wait");
    }

    bool pending = answer.result == claim_result::found
                   && answer.state == record_state::pending
                   && answer.same_fingerprint;

    if (!pending && answer.result != claim_result::claimed) {
        share_answer(ctx);
        leave(ctx);
    }

    switch (answer.result) {

    case claim_result::claimed:
        ctx.claim.own.attempt = answer.attempt;
        ctx.claim.own.leased_until = ctx.claim.asked_at + ctx.conf->lease;
        note_claimed(ctx);
        ctx.status = status::fresh;
        count_claimed(ctx);
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                       "idempotency: claimed, attempt %uD", answer.attempt);
        return start_run(ctx);

    case claim_result::found: return meet_record(ctx);

    case claim_result::unreadable:
        return refuse(ctx,
                      {status::store_error, error_code::store_unavailable});

    default: return store_failed(ctx);
    }
}


bool
claim_lost_record(context &ctx, token &owner,
                  void (*answered)(claim_waiter &, const claim_answer &))
{
    if (!make_token(owner)) {
        return false;
    }

    ctx.claim.waiter = {&ctx, answered, room_for_response};
    send_claim(ctx, owner, {false, false});

    return true;
}


refusal
refusal_for(verdict v)
{
    switch (v) {

    case verdict::wait: return {status::in_progress, error_code::in_progress};

    case verdict::reused: return {status::reused, error_code::key_reused};

    case verdict::not_kept:
        return {status::not_kept, error_code::response_not_kept};

    default: return {status::unknown, error_code::outcome_unknown};
    }
}


void
start_store_time(context &ctx)
{
    ctx.claim.asked_at = ngx_current_msec;
}


void
stop_store_time(context &ctx)
{
    ctx.claim.store_time += ngx_current_msec - ctx.claim.asked_at;
}


namespace {

ngx_int_t
meet_record(context &ctx)
{
    const claim_answer &found = ctx.claim.answer;

    if (found.remaining != 0) {
        set_expires(ctx, found.remaining);
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                   "idempotency: record found, state %d, same fingerprint %d",
                   static_cast<int>(found.state), found.same_fingerprint);

    verdict v = judge(found.state, found.same_fingerprint);
    response_reader reader;

    if (v == verdict::replay && !open_response(ctx, reader)) {
        v = verdict::not_kept;
    }

    if (v == verdict::wait) {
        if (park(ctx)) {
            return NGX_DONE;
        }

        leave(ctx);
    }

    if (v != verdict::replay) {
        return refuse(ctx, refusal_for(v));
    }

    if (ctx.conf->dry_run) {
        id_text id(ctx);

        ngx_log_error(ctx.conf->log_level, ctx.request->connection->log, 0,
                      "idempotency: dry run: this request would get the "
                      "stored response, which is %uL s old, record %V",
                      found.age / 1000, &id.text);
        count_dry_run(ctx, error_code::none);
        return pass(ctx, status::replay);
    }

    return replay_in_place(ctx, reader);
}


ngx_int_t
store_failed(context &ctx)
{
    if (!ctx.conf->pass_store_failure) {
        return refuse(ctx,
                      {status::store_error, error_code::store_unavailable});
    }

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                   "idempotency: not protected: the store failed");

    return pass(ctx, status::store_error);
}


/*
 * Tokens are cut from a supply: OpenSSL asks the system for the process id
 * each time, and this is once per request.
 */
bool
make_token(token &out)
{
    static std::array<std::uint8_t, 256 * sizeof(token)> supply;
    static std::size_t used = supply.size();

    if (used == supply.size()) {

        if (RAND_bytes(supply.data(), static_cast<int>(supply.size())) != 1) {
            return false;
        }

        used = 0;
    }

    std::copy_n(supply.begin() + static_cast<std::ptrdiff_t>(used), out.size(),
                out.begin());
    used += out.size();

    return true;
}


/* Whether an unknown outcome may be run again. */
bool
takes_over(const location_conf *conf)
{
    return conf->release_unknown != 0 && !conf->dry_run;
}


void
send_claim(context &ctx, const token &owner, claim_terms terms)
{
    const location_conf *conf = ctx.conf;

    claim what = {ctx.claim.own.name, ctx.body.fingerprint, owner,
                  conf->lease,        ctx.claim.own.keep,   terms.take_over,
                  terms.again};

    conf->store->backend->claim_record(what, ctx.claim.waiter);
}


void
claim_answered(claim_waiter &waiter, const claim_answer &answer)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    ctx->claim.answer = answer;
    move_to(*ctx, stage::answered);
    stop_store_time(*ctx);
    count_claim(*ctx, answer.result);

    if (!ctx->claim.in_call) {
        resume(*ctx);
    }
}


std::uint8_t *
room_for_response(claim_waiter &waiter, std::size_t size)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    return room_to_share(ctx->request, size);
}

}

}
