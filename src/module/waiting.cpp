#include "module/waiting.h"

#include "module/context.h"
#include "module/shared_response.h"
#include "module/wait_groups.h"

namespace idempotency {

namespace {

constexpr ngx_msec_t longest_step = 200;
void start_waiting(context &ctx);
void woken(ngx_event_t *event);
void give_up(ngx_event_t *event);
bool is_known_pending(const context &ctx);
bool is_asker(const context &ctx);
wait_group *take_out(context &ctx);
context *waiter_of(ngx_queue_t *link);
void tell(context &ctx, const claim_answer &answer, shared_response *copy);
void wake(context &ctx);
void wake_first(wait_group *group);
void poll_store(ngx_event_t *event);
void poll_or_end(wait_group *group);

}


bool
join(context &ctx)
{
    if (ctx.conf->wait == 0 || ctx.conf->dry_run || ctx.wait.started) {
        return false;
    }

    wait_group *group = find_group(ctx);

    if (group == nullptr) {
        group = make_group(ctx, poll_store);

        if (group != nullptr) {
            group->asker = &ctx;
            ctx.wait.group = group;
        }

        return false;
    }

    if (!watch_client(ctx.request)) {
        return false;
    }

    start_waiting(ctx);
    ctx.claim.answer = group->last;
    ctx.wait.group = group;
    move_to(ctx, stage::parked);
    ngx_queue_insert_tail(&group->waiters, &ctx.wait.link.queue);

    return true;
}


/*
 * A request that has asked the store in vain goes back to the head of the
 * queue, and the next question comes later than the last.
 */
bool
park(context &ctx)
{
    if (!is_asker(ctx) || ctx.wait.over || !watch_client(ctx.request)) {
        return false;
    }

    wait_group *group = ctx.wait.group;

    if (!ctx.wait.started) {
        start_waiting(ctx);

    } else {
        group->step = ngx_min(group->step * 2, longest_step);
    }

    group->last = ctx.claim.answer;
    group->met = true;
    group->met_at = ngx_current_msec;
    group->asker = nullptr;
    move_to(ctx, stage::parked);
    ngx_queue_insert_head(&group->waiters, &ctx.wait.link.queue);

    poll_or_end(group);

    return true;
}


bool
was_pending(context &ctx)
{
    if (is_asker(ctx) && ctx.wait.group->met) {
        ctx.claim.answer = ctx.wait.group->last;
        return true;
    }

    if (ctx.wait.last_met) {
        ctx.claim.answer = *ctx.wait.last_met;
        return true;
    }

    return false;
}


void
note_claimed(context &ctx)
{
    if (is_asker(ctx)) {
        ctx.wait.group->met = false;
    }
}


void
share_answer(context &ctx)
{
    if (!is_asker(ctx)) {
        return;
    }

    const claim_answer &answer = ctx.claim.answer;
    wait_group *group = take_out(ctx);
    shared_response *copy = nullptr;

    if (!ngx_queue_empty(&group->waiters) && !answer.response.empty()) {
        copy = copy_response(answer.response);
    }

    while (!ngx_queue_empty(&group->waiters)) {
        context *other = waiter_of(ngx_queue_head(&group->waiters));

        take_out(*other);
        other->wait.deadline.stop();
        tell(*other, answer, copy);
    }

    drop_response(copy);
    poll_or_end(group);
}


/*
 * If the request was to ask the store, or has run, the next one does not have
 * to wait for the timer.
 */
void
leave(context &ctx)
{
    if (ctx.wait.started) {
        ctx.wait.deadline.stop();
    }

    if (ctx.wait.group == nullptr) {

        /* It was told the answer, and dies before it could act on it. */
        if (ctx.wait.started) {
            ctx.wait.wake.stop();
        }

        return;
    }

    bool next = is_asker(ctx);

    if (!next) {
        next = ctx.wait.wake.event.posted;
        ctx.wait.wake.stop();
    }

    wait_group *group = take_out(ctx);

    if (next) {
        wake_first(group);
    }

    poll_or_end(group);
}


void
wake_one(context &ctx)
{
    leave(ctx);

    each_group(ctx.claim.own.name, wake_first);
}


namespace {

void
start_waiting(context &ctx)
{
    ngx_log_t *log = ctx.request->connection->log;

    ctx.wait.started = true;
    ctx.wait.since = ngx_current_msec;
    ctx.wait.link.waiter = &ctx;
    ctx.wait.wake.init(&ctx, woken, log);
    ctx.wait.deadline.init(&ctx, give_up, log);
    ngx_add_timer(&ctx.wait.deadline.event, ctx.conf->wait);
}


/* The first in the queue asks again, or has been told what it waited for. */
void
woken(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    if (ctx->at == stage::parked) {
        wait_group *group = take_out(*ctx);

        group->asker = ctx;
        ctx->wait.group = group;
        move_to(*ctx, stage::ready);
    }

    resume(*ctx);
}


void
give_up(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    ctx->wait.over = true;

    if (ctx->at != stage::parked) {
        return;
    }

    bool next = ctx->wait.wake.event.posted;

    ctx->wait.wake.stop();
    move_to(*ctx, is_known_pending(*ctx) ? stage::answered : stage::ready);

    if (ctx->wait.group->met) {
        ctx->wait.last_met = ctx->wait.group->last;
    }

    wait_group *group = take_out(*ctx);

    if (next) {
        wake_first(group);
    }

    poll_or_end(group);
    resume(*ctx);
}


/*
 * Whether the record is known to be pending: it runs in this worker, or the
 * store has said so since this request came, and not too long ago.
 */
bool
is_known_pending(const context &ctx)
{
    const wait_group *group = ctx.wait.group;
    auto since_met = static_cast<ngx_msec_int_t>(ngx_current_msec
                                                 - group->met_at);
    auto waited = static_cast<ngx_msec_int_t>(ngx_current_msec
                                              - ctx.wait.since);

    if (group->asker != nullptr && group->asker->at == stage::running) {
        return true;
    }

    return group->met && since_met <= waited
           && since_met <= static_cast<ngx_msec_int_t>(3 * longest_step);
}


bool
is_asker(const context &ctx)
{
    return ctx.wait.group != nullptr && ctx.wait.group->asker == &ctx;
}


/* Out of the queue, or no longer the one that asks. */
wait_group *
take_out(context &ctx)
{
    wait_group *group = ctx.wait.group;

    if (is_asker(ctx)) {
        group->asker = nullptr;

    } else {
        ngx_queue_remove(&ctx.wait.link.queue);
    }

    ctx.wait.group = nullptr;

    return group;
}


context *
waiter_of(ngx_queue_t *link)
{
    auto *place = ngx_queue_data(link, wait_link, queue);

    return place->waiter;
}


void
tell(context &ctx, const claim_answer &answer, shared_response *copy)
{
    ctx.claim.answer = answer;
    move_to(ctx, stage::answered);

    if (!answer.response.empty()) {
        ctx.claim.answer.response = {};

        if (copy != nullptr) {
            ctx.claim.answer.response = use_response(ctx.request, copy);
        }

        if (ctx.claim.answer.response.empty()) {
            ctx.claim.answer.result = claim_result::unreadable;
        }
    }

    wake(ctx);
}


void
wake(context &ctx)
{
    if (!ctx.wait.wake.event.posted) {
        ngx_post_event(&ctx.wait.wake.event, &ngx_posted_events);
    }
}


void
wake_first(wait_group *group)
{
    if (group->asker == nullptr && !ngx_queue_empty(&group->waiters)) {
        wake(*waiter_of(ngx_queue_head(&group->waiters)));
    }
}


void
poll_store(ngx_event_t *event)
{
    wake_first(own_event::owner_of<wait_group>(event));
}


/* While anyone waits and nobody asks, the store is asked now and then. */
void
poll_or_end(wait_group *group)
{
    if (group->asker != nullptr) {
        return;
    }

    if (ngx_queue_empty(&group->waiters)) {
        end_group(group);
        return;
    }

    if (!group->poll.event.timer_set) {
        ngx_add_timer(
            &group->poll.event,
            group->step + static_cast<ngx_msec_t>(ngx_random()) % group->step);
    }
}

}

}
