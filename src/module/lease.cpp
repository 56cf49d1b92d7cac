#include "module/lease.h"

#include "module/context.h"
#include "module/counting.h"

namespace idempotency {

namespace {

constexpr ngx_msec_t retry_after_failure = 300;

void renew(ngx_event_t *event);
void renewed(settle_waiter &waiter, settle_result result);

}


void
start_renewal(context &ctx)
{
    ctx.run.lease.renewal.init(&ctx, renew, ctx.request->connection->log);
    ngx_add_timer(&ctx.run.lease.renewal.event, ctx.conf->lease / 3);
}


void
stop_renewal(context &ctx)
{
    ctx.run.lease.renewal.stop();
}


namespace {

void
renew(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);
    lease_state &lease = ctx->run.lease;

    lease.renewed = {ctx, renewed};
    lease.asked_at = ngx_current_msec;
    ctx->conf->store->backend->renew(ctx->claim.own, lease.renewed);
}


void
renewed(settle_waiter &waiter, settle_result result)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    if (ctx->at != stage::running) {
        return;
    }

    count_renewal(*ctx, result);

    /* Renewal goes on: the successor may end first, and release the key. */
    if (result == settle_result::lost && !ctx->run.lease.lost) {
        ctx->run.lease.lost = true;
        ngx_log_error(
            NGX_LOG_WARN, ctx->request->connection->log, 0,
            "idempotency: lease lost while the request is running: it was "
            "not renewed in time; if this happens often, set a "
            "longer \"idempotency_lease\"");
    }

    if (result == settle_result::unavailable) {
        ctx->claim.own.renewal_lost = true;
    }

    /* What failed is tried again well before the lease is over. */
    ngx_msec_t third = ctx->conf->lease / 3;
    ngx_msec_t taken = ngx_current_msec - ctx->run.lease.asked_at;

    ngx_add_timer(&ctx->run.lease.renewal.event,
                  result == settle_result::unavailable
                      ? ngx_min(third, retry_after_failure)
                      : third - ngx_min(taken, third - 1));
}

}

}
