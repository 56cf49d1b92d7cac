#include "module/lease.h"

#include "module/context.h"
#include "module/counting.h"

namespace idempotency {

/*
 * Most runs have ended before their lease is renewed for the first time.  So
 * those whose leases are equally long share a timer until then: the order in
 * which they begin is the order in which they are due.  While there are none,
 * the timer may still be set, but a worker that shuts down does not wait for
 * it.  There are no more queues than lengths in the configuration; they live
 * as long as the worker.
 */
struct lease_queue {
    lease_queue *next;
    ngx_msec_t interval;
    ngx_queue_t runs;
    own_event timer;
};


namespace {

constexpr ngx_msec_t retry_after_failure = 300;

lease_queue *queues;

lease_queue *queue_for(ngx_msec_t interval);
void renew_first(ngx_event_t *event);
ngx_msec_int_t time_left(lease_queue *queue);
context *next_of(lease_queue *queue);
void renew(ngx_event_t *event);
void renewed(settle_waiter &waiter, settle_result result);

}


void
start_renewal(context &ctx)
{
    lease_state &lease = ctx.run.lease;
    ngx_msec_t interval = ctx.conf->lease / 3;

    lease.renewal.init(&ctx, renew, ctx.request->connection->log);
    lease.queue = queue_for(interval);

    if (lease.queue == nullptr) {
        ngx_add_timer(&lease.renewal.event, interval);
        return;
    }

    lease.due = ngx_current_msec + interval;
    ngx_queue_insert_tail(&lease.queue->runs, &lease.place);

    ngx_event_t &timer = lease.queue->timer.event;

    timer.cancelable = 0;

    if (!timer.timer_set) {
        timer.log = ngx_cycle->log;
        ngx_add_timer(&timer, interval);
    }
}


void
stop_renewal(context &ctx)
{
    lease_state &lease = ctx.run.lease;

    if (lease.queue != nullptr) {
        ngx_queue_remove(&lease.place);
        lease.queue->timer.event.cancelable = ngx_queue_empty(
            &lease.queue->runs);
        lease.queue = nullptr;
    }

    lease.renewal.stop();
}


namespace {

/* Null: no memory. */
lease_queue *
queue_for(ngx_msec_t interval)
{
    for (lease_queue *q = queues; q != nullptr; q = q->next) {
        if (q->interval == interval) {
            return q;
        }
    }

    void *memory = ngx_alloc(sizeof(lease_queue), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *made = ::new (memory) lease_queue{};

    made->next = queues;
    made->interval = interval;
    made->timer.init(made, renew_first, ngx_cycle->log);
    ngx_queue_init(&made->runs);
    queues = made;

    return made;
}


/* From here on each has a timer of its own. */
void
renew_first(ngx_event_t *event)
{
    auto *queue = own_event::owner_of<lease_queue>(event);

    while (!ngx_queue_empty(&queue->runs) && time_left(queue) <= 0) {
        context *ctx = next_of(queue);

        ngx_queue_remove(&ctx->run.lease.place);
        ctx->run.lease.queue = nullptr;
        renew(&ctx->run.lease.renewal.event);
    }

    event->cancelable = ngx_queue_empty(&queue->runs);

    if (!event->cancelable) {
        ngx_add_timer(event, static_cast<ngx_msec_t>(time_left(queue)));
    }
}


ngx_msec_int_t
time_left(lease_queue *queue)
{
    return static_cast<ngx_msec_int_t>(next_of(queue)->run.lease.due
                                       - ngx_current_msec);
}


/* There is one. */
context *
next_of(lease_queue *queue)
{
    auto *lease = ngx_queue_data(ngx_queue_head(&queue->runs), lease_state,
                                 place);

    return own_event::owner_of<context>(&lease->renewal.event);
}


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

    if (result == settle_result::done) {
        ctx->claim.own.leased_until = ctx->run.lease.asked_at
                                      + ctx->conf->lease;
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
