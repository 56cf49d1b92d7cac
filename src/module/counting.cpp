#include "module/counting.h"

#include "module/context.h"

namespace idempotency {

namespace {

template <class E>
std::size_t
index(E value)
{
    return static_cast<std::size_t>(value);
}


counters &zone_of(const context &ctx);
bool is_in_store(settle_result result);
run_end end_of(const context &ctx, settle_result result);
not_kept reason_of(const context &ctx, settle_result result);
store_operation operation_of(const context &ctx);
void count_operation(const context &ctx, store_operation what,
                     ngx_msec_t asked_at, bool failed);

}


std::string_view
outcome_of(const context &ctx)
{
    if (ctx.status != status::fresh
        || ctx.ending.at == ending_state::step::none) {
        return {};
    }

    return name_of(
        end_of(ctx, ctx.ending.result.value_or(settle_result::done)));
}


std::string_view
name_of(run_end how)
{
    static constexpr std::string_view words[] = {
        "released", "unknown", "completed", "not_kept", "late", "lost"};

    auto i = static_cast<std::size_t>(how);

    return i < std::size(words) ? words[i] : std::string_view();
}


void
count_keyless(const location_conf *conf)
{
    conf->zone->add(zone_count::requests + index(status::none));
}


void
count_status(const context &ctx, status as)
{
    counters &zone = zone_of(ctx);

    zone.add(zone_count::requests + index(as));

    if (!ctx.wait.started) {
        return;
    }

    zone.observe(zone_count::wait_time, wait_bounds,
                 ngx_current_msec - ctx.wait.since);

    if (ctx.wait.over && as == status::in_progress) {
        zone.add(zone_count::wait_timeouts);
    }
}


void
count_refusal(const context &ctx, const refusal &why)
{
    count_status(ctx, why.status);
    zone_of(ctx).add(zone_count::refusals + index(why.code));
}


/* What would have happened; none: a replay. */
void
count_dry_run(const context &ctx, error_code code)
{
    zone_of(ctx).add(zone_count::dry_run + index(code));
}


void
count_claimed(const context &ctx)
{
    count_status(ctx, status::fresh);

    if (ctx.claim.answer.attempt > 1) {
        zone_of(ctx).add(zone_count::take_overs);
    }
}


void
count_replay(const context &ctx)
{
    count_status(ctx, status::replay);
    zone_of(ctx).observe(zone_count::replay_age, age_bounds,
                         ctx.claim.answer.age);
}


void
count_damaged(const context &ctx)
{
    ctx.conf->store->counts->add(store_count::damaged);
}


/* It may be noticed more than once. */
void
count_client_gone(context &ctx)
{
    if (!ctx.run.client.counted) {
        ctx.run.client.counted = true;
        zone_of(ctx).add(zone_count::clients_gone);
    }
}


void
count_unknown(const context &ctx, unknown_reason why)
{
    zone_of(ctx).add(zone_count::unknown + index(why));
}


void
count_end(const context &ctx, settle_result result)
{
    counters &zone = zone_of(ctx);
    run_end how = end_of(ctx, result);

    zone.add(zone_count::runs + index(how));

    if (how == run_end::not_kept) {
        zone.add(zone_count::not_kept + index(reason_of(ctx, result)));
    }

    if (how == run_end::lost) {
        zone.add(zone_count::leases_lost);
    }
}


void
count_claim(const context &ctx, claim_result result)
{
    store_operation what = ctx.claim.answer.from_copy ? store_operation::local
                                                      : store_operation::claim;

    count_operation(ctx, what, ctx.claim.asked_at,
                    result == claim_result::unavailable
                        || result == claim_result::unreadable);
}


void
count_settlement(const context &ctx, settle_result result)
{
    count_operation(ctx, operation_of(ctx), ctx.claim.asked_at,
                    !is_in_store(result));
}


void
count_renewal(const context &ctx, settle_result result)
{
    count_operation(ctx, store_operation::renew, ctx.run.lease.asked_at,
                    !is_in_store(result));
}


namespace {

counters &
zone_of(const context &ctx)
{
    return *ctx.conf->zone;
}


/* A lost lease is no error of the store. */
bool
is_in_store(settle_result result)
{
    return result != settle_result::unavailable;
}


run_end
end_of(const context &ctx, settle_result result)
{
    switch (result) {

    case settle_result::unavailable: return run_end::late;

    case settle_result::lost: return run_end::lost;

    case settle_result::kept_without_response: return run_end::not_kept;

    default: break;
    }

    switch (ctx.ending.how.end) {

    case ending::released: return run_end::released;

    case ending::unknown: return run_end::unknown;

    case ending::not_kept: return run_end::not_kept;

    default: break;
    }

    unsigned status = ctx.capture.status;
    bool empty = ctx.conf->replay_empty && status >= 200 && status < 300;

    return empty || is_kept(ctx.capture) ? run_end::completed
                                         : run_end::not_kept;
}


/* No reason of the response's own: the store had no room for it. */
not_kept
reason_of(const context &ctx, settle_result result)
{
    if (result == settle_result::kept_without_response) {
        return not_kept::no;
    }

    return is_kept(ctx.capture) ? not_kept::incomplete : ctx.capture.why_not;
}


store_operation
operation_of(const context &ctx)
{
    switch (ctx.ending.how.end) {

    case ending::released: return store_operation::release;

    case ending::unknown: return store_operation::mark_unknown;

    default: return store_operation::complete;
    }
}


void
count_operation(const context &ctx, store_operation what, ngx_msec_t asked_at,
                bool failed)
{
    counters &counts = *ctx.conf->store->counts;

    counts.observe(store_count::time + index(what) * histogram_size,
                   store_bounds, ngx_current_msec - asked_at);

    if (failed) {
        counts.add(store_count::errors + index(what));
    }
}

}

}
