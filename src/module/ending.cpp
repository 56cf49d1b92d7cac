#include "module/ending.h"

#include "contract/record.h"
#include "module/context.h"
#include "module/counting.h"
#include "module/headers.h"
#include "module/jsonrpc.h"
#include "module/keeping.h"
#include "module/replay.h"
#include "module/run_log.h"

namespace idempotency {

namespace {

using step = ending_state::step;

/* By ending. */
constexpr const char *ending_names[] = {"released", "unknown", "completed",
                                        "not kept"};

evidence evidence_of_response(context &ctx, bool whole);
void look_for_grpc_status(ngx_http_request_t *r, evidence &seen);
void decide_outcome(context &ctx, const evidence &seen);
void log_ending(const context &ctx, const evidence &seen);
void store_outcome(context &ctx);
void complete(context &ctx);
completion record_of(context &ctx);
std::span<piece> response_to_keep(context &ctx);
void outcome_settled(settle_waiter &waiter, settle_result result);
bool ask_owner(context &ctx);
void owner_answered(claim_waiter &waiter, const claim_answer &answer);
void end(context &ctx, settle_result result);

}


void
settle(context &ctx, bool whole, void (*then)(context &ctx))
{
    ngx_list_t &trailers = ctx.request->headers_out.trailers;

    move_to(ctx, stage::settling);
    stop_renewal(ctx);

    decide_outcome(ctx, evidence_of_response(ctx, whole));

    strip_app_word(trailers);
    strip_mark(trailers, ctx.conf);

    ctx.ending.at = step::storing;
    ctx.ending.settled = {&ctx, outcome_settled};
    ctx.ending.then = then;

    start_store_time(ctx);
    store_outcome(ctx);
}


void
abandon_run(context &ctx)
{
    store *backend = ctx.conf->store->backend;

    move_to(ctx, stage::settling);
    decide_outcome(ctx, evidence_without_response(ctx));
    ctx.ending.at = step::storing;

    const outcome &how = ctx.ending.how;
    const ownership &own = ctx.claim.own;

    switch (how.end) {

    case ending::released: backend->release(own, nullptr); break;

    case ending::unknown: backend->mark_unknown(own, how.ttl, nullptr); break;

    default:
        backend->complete(
            own, {record_state::not_kept, how.ttl, {}, {}, how.ttl}, nullptr);
    }

    if (how.end != ending::released) {
        set_expires(ctx, how.ttl);
    }

    /* What is held is not sent any more. */
    if (is_held_back(ctx.capture)) {
        ctx.capture.how = capture_state::mode::none;
    }

    end(ctx, settle_result::done);
}


void
end_run_with_response(ngx_http_request_t *r)
{
    context *ctx = find_context(r);

    if (ctx != nullptr && ctx->at == stage::running) {
        abandon_run(*ctx);
    }
}


/* Two answers to one key would be two truths. */
ngx_int_t
send_successor(context &ctx)
{
    const claim_answer &answer = ctx.claim.answer;

    ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                  "idempotency: lease lost and another request took over; the "
                  "client gets the result of that request");

    ngx_http_clean_header(ctx.request);
    set_expires(ctx, answer.remaining);

    verdict v = judge(answer.state, answer.same_fingerprint);
    response_reader reader;

    if (v == verdict::replay
        && (!open_response(ctx, reader) || !is_own_place(ctx, reader)))
    {
        ctx.claim.answer.response = {};
        v = verdict::not_kept;
    }

    if (v == verdict::replay) {
        return send_replay(ctx, reader);
    }

    refusal why = refusal_for(v);

    ctx.status = why.status;

    return send_problem_below(ctx, why.code);
}


namespace {

evidence
evidence_of_response(context &ctx, bool whole)
{
    bool all = whole && is_whole(ctx);
    evidence seen = collect_evidence(ctx, all);

    /* A part of a response is none that could be shown again. */
    if (!all) {
        not_to_keep(ctx, not_kept::incomplete);
    }

    /* A page that dresses an answer has no say in what it means. */
    if (ctx.capture.own_answer) {
        look_for_grpc_status(ctx.request, seen);
        seen.rpc_error = is_jsonrpc_error(ctx);
    }

    return seen;
}


/*
 * Every response of gRPC has a status.  gRPC-Web has it in the header of a
 * response without messages; otherwise it is in the body, which is not read.
 */
void
look_for_grpc_status(ngx_http_request_t *r, evidence &seen)
{
    std::string_view type = view(r->headers_out.content_type);

    seen.grpc = is_grpc_type(type);

    if (!seen.grpc && !is_grpc_web_type(type)) {
        return;
    }

    auto look = [&](ngx_table_elt_t &h) {
        if (h.hash != 0 && same_name(view(h.key), "grpc-status")) {
            ngx_int_t n = ngx_atoi(h.value.data, h.value.len);
            seen.grpc_status = n == NGX_ERROR ? -1 : static_cast<int>(n);
            seen.grpc = true;
        }
    };

    each_field(r->headers_out.headers, look);
    each_field(r->headers_out.trailers, look);
}


void
decide_outcome(context &ctx, const evidence &seen)
{
    ctx.ending.how = decide(seen, ctx.run.evidence.word, rules_of(ctx.conf));

    log_ending(ctx, seen);
}


void
log_ending(const context &ctx, const evidence &seen)
{
    run_log log(ctx);
    ending how = ctx.ending.how.end;

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, log.get(), 0,
                   "idempotency: outcome %s, status %ud, bytes sent %d, "
                   "response complete %d",
                   ending_names[static_cast<std::size_t>(how)], seen.status,
                   seen.sent, seen.complete);

    if (how != ending::unknown) {
        return;
    }

    bool answered = seen.complete && !seen.unanswered;

    count_unknown(ctx, !answered    ? unknown_reason::no_response
                       : seen.again ? unknown_reason::earlier_attempt
                                    : unknown_reason::status);
    id_text id(ctx);

    ngx_log_error(
        ctx.conf->log_level, log.get(), 0,
        "idempotency: outcome of record %V is unknown: %s; check in the "
        "application whether it executed the request",
        &id.text,
        !answered ? "the request was sent, but no complete response arrived"
        : seen.unfinished
            ? "the handler failed while a subrequest was still running"
        : seen.again
            ? "this attempt was not executed, but the outcome of an earlier "
              "attempt is unknown"
            : "the response status does not tell whether it was executed");
}


void
store_outcome(context &ctx)
{
    store *backend = ctx.conf->store->backend;
    const ownership &own = ctx.claim.own;
    const outcome &how = ctx.ending.how;

    switch (how.end) {

    case ending::released:
        ctx.expires = 0;
        backend->release(own, &ctx.ending.settled);
        break;

    case ending::unknown:
        set_expires(ctx, how.ttl);
        backend->mark_unknown(own, how.ttl, &ctx.ending.settled);
        break;

    default: complete(ctx);
    }
}


void
complete(context &ctx)
{
    completion record = record_of(ctx);

    set_expires(ctx, record.ttl);
    ctx.conf->store->backend->complete(ctx.claim.own, record,
                                       &ctx.ending.settled);
}


completion
record_of(context &ctx)
{
    const app_word &word = ctx.run.evidence.word;
    std::uint64_t summary_ttl = ttl_without_response(rules_of(ctx.conf).ttl);
    pieces summary;

    if (!ctx.capture.summary.empty()) {
        summary = {&ctx.capture.summary, 1};
    }

    pieces response = response_to_keep(ctx);

    if (word.has_ttl) {
        summary_ttl = ngx_min(summary_ttl, word.ttl);
    }

    if (response.empty()) {
        log_not_kept(ctx);

        return {record_state::not_kept, summary_ttl, summary, summary,
                summary_ttl};
    }

    return {record_state::completed, ctx.ending.how.ttl, response, summary,
            summary_ttl};
}


/* Nothing: the response is not to be kept, or there is no memory for it. */
std::span<piece>
response_to_keep(context &ctx)
{
    const capture_state &capture = ctx.capture;

    if (ctx.ending.how.end != ending::completed) {
        not_to_keep(ctx, not_kept::discarded);
        return {};
    }

    /* Not even its status is to be shown. */
    if (ctx.run.place.lost) {
        return {};
    }

    if (ctx.conf->replay_empty && capture.status >= 200
        && capture.status < 300) {
        return no_content(ctx);
    }

    if (hides_its_id(ctx)) {
        not_to_keep(ctx, not_kept::encoded);
    }

    return is_kept(capture) ? assemble(ctx) : std::span<piece>();
}


void
outcome_settled(settle_waiter &waiter, settle_result result)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    count_settlement(*ctx, result);

    if (result == settle_result::lost && ask_owner(*ctx)) {
        return;
    }

    end(*ctx, result);
}


/*
 * The record became another's while this run stood still.  The run has ended
 * well, but everybody who asks for the key is told of the successor, and so is
 * its own client.  If nobody owns the record any more (a store that has lost
 * its memory), it is claimed once more for the outcome that is at hand.
 *
 * False: there is nothing to ask for, or it was asked before.
 */
bool
ask_owner(context &ctx)
{
    ending how = ctx.ending.how.end;
    bool kept = how == ending::completed || how == ending::not_kept;

    if (!is_held_back(ctx.capture) || !kept || ctx.ending.at != step::storing)
    {
        return false;
    }

    ctx.ending.at = step::asking_owner;

    return claim_lost_record(ctx, ctx.ending.second, owner_answered);
}


void
owner_answered(claim_waiter &waiter, const claim_answer &answer)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    if (answer.result == claim_result::claimed) {
        run_log log(*ctx);

        ngx_log_error(NGX_LOG_WARN, log.get(), 0,
                      "idempotency: record of the running request was lost by "
                      "the store; stored its outcome again (a retry may have "
                      "run meanwhile)");

        ctx->claim.own.owner = ctx->ending.second;
        ctx->ending.at = step::storing_anew;
        store_outcome(*ctx);
        return;
    }

    if (answer.result == claim_result::found) {
        ctx->claim.answer = answer;
        ctx->ending.at = step::superseded;
    }

    end(*ctx, settle_result::lost);
}


/* The outcome is with the store, or never will be. */
void
end(context &ctx, settle_result result)
{
    move_to(ctx, stage::settled);
    stop_renewal(ctx);
    ctx.ending.result = result;
    count_end(ctx, result);

    if (result == settle_result::lost) {
        run_log log(ctx);

        ngx_log_error(
            NGX_LOG_WARN, log.get(), 0,
            "idempotency: lease lost before the run ended, its outcome "
            "was not stored; the record has expired or belongs to "
            "another request");
    }

    /* Nothing is promised that may not come true. */
    if (result == settle_result::unavailable) {
        ctx.expires = 0;
    }

    wake_one(ctx);

    if (ctx.ending.then != nullptr) {
        ctx.ending.then(ctx);
    }
}

}

}
