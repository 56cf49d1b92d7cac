#include "store/redis_errors.h"
#include "store/redis_record.h"
#include "store/redis_store.h"

namespace idempotency {

namespace {

constexpr ngx_msec_t tick = 20;

/* How much is put back at once, on one link. */
constexpr unsigned most_at_once = 128;
constexpr std::size_t most_bytes_at_once = 512 * 1024;

/* More claims than this do not wait. */
constexpr std::size_t most_held = 16 * 1024;

/*
 * A server that refuses writes refuses claims as well.  After so long only
 * what it has is asked for again.
 */
constexpr ngx_msec_t longest_refusal = 10000;
constexpr ngx_msec_t after_refusal = 100;

operation &operation_at(ngx_queue_t *q);

}


/* The link has closed its gate: no claim is on its way. */
void
redis_store::memory_lost(redis_link &link)
{
    link.gate.opens_at = ngx_current_msec + grace_;
    link.gate.put_back = 0;
    link.gate.still_there = 0;
    link.gate.told = false;
    link.gate.refuses = link.was_refused();
    kept_.doubt(link);
    late_.memory_lost(link);
    arm_gate();
}


/* Called when the link is up, even if the last attempt was interrupted. */
void
redis_store::begin_put_back(redis_link &link)
{
    kept_.is_back(link);

    if (!link.gate.closed && !kept_.any_in_doubt(link)) {
        return;
    }

    /* Others may have been away as long as this worker was. */
    if (link.gate.closed) {
        link.gate.opens_at = ngx_current_msec + grace_;
    }

    kept_.send_again(link);
    link.gate.under_way = 0;
    link.gate.bytes_under_way = 0;
    link.gate.next_try = ngx_current_msec;
    put_back_more(link);
    arm_gate();
}


void
redis_store::put_back_more(redis_link &link)
{
    link_gate &gate = link.gate;

    /* What waited for the connection would be counted on the next one. */
    while (link.is_ready() && !link.is_full() && gate.under_way < most_at_once
           && gate.bytes_under_way < most_bytes_at_once)
    {
        kept_record *record = kept_.next_in_doubt(link);

        if (record == nullptr) {
            return;
        }

        if (!put_back(*record)) {
            record->is_sent = false;
            return;
        }
    }
}


/* False: no memory. */
bool
redis_store::put_back(const kept_record &record)
{
    operation *op = make(record.why, record.whose);

    if (op == nullptr) {
        return false;
    }

    std::uint64_t age = record.runs() ? 0 : ngx_current_msec - record.since;
    bool expired = record.expiry != 0 && age >= record.expiry;

    /* After it has expired, another may have claimed by right. */
    op->puts_back = true;
    op->replaces = !expired;
    op->state = record.state;
    op->expiry = record.expiry;
    op->mark = record.mark;
    op->elapsed = expired ? record.expiry - 1 : age;

    /* The record may go before the reply comes. */
    bytes response = record.response();

    op->response = {&response, 1};

    if (!op->own_the_response()) {
        free_operation(op);
        return false;
    }

    if (response.empty()) {
        op->response = {};
    }

    op->link->gate.under_way++;
    op->link->gate.bytes_under_way += response.size();
    commands_.send(*op);

    return true;
}


/* Null: the link was lost, and what it had is sent again on the next one. */
void
redis_store::put_back_answered(operation &op, const redisReply *reply)
{
    redis_link &link = *op.link;
    link_gate &gate = link.gate;

    if (reply == nullptr) {
        if (kept_record *lost = kept_.find(op.whose.owner)) {
            lost->is_sent = false;
        }

        free_operation(&op);
        return;
    }

    bool answered = reply->type == REDIS_REPLY_INTEGER;

    /* Where there is something else, there is no room for it. */
    bool done = answered || has_code(*reply, "WRONGTYPE");

    gate.under_way--;
    gate.bytes_under_way -= op.own_response.size();

    if (answered) {
        script_ended(op, reply->integer);
        count_put_back(op, reply->integer);

    } else {
        refused(link, *reply);
        gate.next_try = ngx_current_msec + after_refusal;
    }

    kept_record *record = kept_.find(op.whose.owner);

    /* It may have ended meanwhile, and then that is put back as well. */
    if (record != nullptr && record->why == op.why) {
        if (done && !is_elsewhere(op)) {
            kept_.confirm(*record);

        } else {
            record->is_sent = false;
        }
    }

    free_operation(&op);

    if (is_due(gate.next_try)) {
        put_back_more(link);
    }
}


void
redis_store::count_put_back(const operation &op, long long result)
{
    bool wants_record = op.replaces && op.why != purpose::release
                        && !op.returns_claim();

    if (wants_record && (result == 0 || result == 3)) {
        health_.foreign_owner(op.link->name());
    }

    if (result == 2 || result == 3) {
        op.link->gate.put_back++;

    } else {
        op.link->gate.still_there++;
    }
}


/*
 * What other hosts have to put back was refused as well, and is sent again
 * after a while.
 */
void
redis_store::writes_refused(redis_link &link)
{
    bool lately = link.gate.opens_at != 0
                  && !is_due(link.gate.opens_at + longest_refusal);

    link.gate.refuses = link.gate.refuses || lately;
}


/*
 * A script is refused when it writes, not before.  If Redis is full, it may
 * still remove a key and change its expiry.
 */
void
redis_store::script_ended(operation &op, long long result)
{
    bool stores = op.why == purpose::complete
                  || op.why == purpose::mark_unknown;

    if (result == 2 || result == 3 || (result == 1 && stores)) {
        writes_accepted(*op.link);
    }
}


void
redis_store::writes_accepted(redis_link &link)
{
    link.forget_refusal();

    if (!link.gate.refuses) {
        return;
    }

    /* The worker may have stood still since nginx looked at the clock. */
    ngx_time_update();
    link.gate.refuses = false;
    link.gate.closed = true;
    link.gate.opens_at = ngx_current_msec + grace_;
    arm_gate();
}


/* Until it is connected, a link cannot know who confirms its server. */
bool
redis_store::must_wait(const redis_link &link) const
{
    return is_learning(link) || link.gate.closed
           || (!link.is_ready() && !link.is_confirmed());
}


/* The claim waits until the gate opens, or until its time is over. */
void
redis_store::hold(operation &op)
{
    if (held_count_ == most_held) {
        refuse_held(op);
        return;
    }

    held_count_++;
    ngx_queue_insert_tail(&held_, &op.command::queue);
    arm_gate();
}


void
redis_store::arm_gate()
{
    gate_tick_.event.cancelable = held_count_ == 0;

    if (!gate_tick_.event.timer_set) {
        ngx_add_timer(&gate_tick_.event, tick);
    }
}


void
redis_store::on_gate_tick(ngx_event_t *event)
{
    auto *self = own_event::owner_of<redis_store>(event);
    bool goes_on = false;

    self->each_link([&](redis_link &link) {
        self->look_at_gate(link);
        goes_on = goes_on || link.gate.closed
                  || self->kept_.any_in_doubt(link);
    });

    self->look_at_held();

    if (goes_on || self->held_count_ != 0) {
        self->arm_gate();
    }
}


void
redis_store::look_at_gate(redis_link &link)
{
    link_gate &gate = link.gate;

    if (!link.usable()) {
        return;
    }

    /* A server that refuses writes for long is not forgotten. */
    if (is_due(gate.next_try)) {
        put_back_more(link);
    }

    if (!gate.closed) {
        return;
    }

    bool in_doubt = kept_.any_in_doubt(link) || gate.outcomes_in_doubt != 0;

    if (!is_due(gate.opens_at)
        || (in_doubt && !is_due(gate.opens_at + longest_refusal)))
    {
        return;
    }

    gate.closed = false;

    if (!gate.told || gate.put_back != 0 || gate.still_there != 0) {
        health_.memory_checked(link.name(), gate.put_back, gate.still_there,
                               link.has_no_aof());
    }

    gate.told = true;
    gate.put_back = 0;
    gate.still_there = 0;
}


void
redis_store::look_at_held()
{
    ngx_queue_t all;

    ngx_queue_init(&all);

    if (!ngx_queue_empty(&held_)) {
        ngx_queue_add(&all, &held_);
        ngx_queue_init(&held_);
    }

    while (!ngx_queue_empty(&all)) {
        operation &op = operation_at(ngx_queue_head(&all));
        bool late = is_due(op.asked_at + static_cast<ngx_msec_t>(timeout_));

        ngx_queue_remove(&op.command::queue);
        held_count_--;

        if (op.claimer == nullptr) {
            drop_claim(op);

        } else if (late || (!op.link->usable() && !is_learning(*op.link))) {
            refuse_held(op);

        } else if (must_wait(*op.link)) {
            held_count_++;
            ngx_queue_insert_tail(&held_, &op.command::queue);

        } else if (!op.link->is_confirmed()) {
            health_.claim_not_confirmed(op.link->name());
            refuse_held(op);

        } else {
            commands_.send(op);
        }
    }
}


/* What may be running must not run, whatever the store's failure means. */
void
redis_store::refuse_held(operation &op)
{
    claim_waiter &waiter = *op.claimer;
    claim_answer answer;

    answer.result = claim_result::unreadable;
    health_.claim_failed();
    forget(waiter);
    drop_claim(op);
    waiter.answered(waiter, answer);
}


void
redis_store::free_held()
{
    gate_tick_.stop();

    while (!ngx_queue_empty(&held_)) {
        operation &op = operation_at(ngx_queue_head(&held_));

        ngx_queue_remove(&op.command::queue);
        free_operation(&op);
    }

    held_count_ = 0;
}


namespace {

operation &
operation_at(ngx_queue_t *q)
{
    return static_cast<operation &>(command_at(q));
}

}

}
