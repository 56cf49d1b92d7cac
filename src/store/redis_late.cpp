#include "store/redis_late.h"

namespace idempotency {

namespace {

constexpr std::size_t outcomes_limit = 16 * 1024;
constexpr std::size_t returns_limit = 64 * 1024;
constexpr std::size_t bytes_limit = 32 * 1024 * 1024;

constexpr ngx_msec_t tick = 50;
constexpr ngx_msec_t first_delay = 100;
constexpr ngx_msec_t longest_delay = 3000;
constexpr ngx_msec_t longest_late = 10 * 60 * 1000;

/* Limits retries in flight, so that they do not delay new requests. */
constexpr unsigned retried_at_once = 64;
constexpr std::size_t retried_bytes_at_once = 512 * 1024;


bool is_over(const operation &op);
operation &operation_at(ngx_queue_t *q);

}


late_operations::late_operations(const redis_commands &commands,
                                 server_health &health)
    : commands_(commands),
      health_(health), outcomes_{outcomes_limit, 0}, returns_{returns_limit, 0}
{}


void
late_operations::start()
{
    ngx_queue_init(&waiting_);
    tick_.init(this, on_tick, ngx_cycle->log);
}


void
late_operations::stop()
{
    tick_.stop();

    while (!ngx_queue_empty(&waiting_)) {
        operation &op = operation_at(ngx_queue_head(&waiting_));

        remove(op);
        free_operation(&op);
    }
}


void
late_operations::put_off(operation &op)
{
    late_entry &entry = op.late;

    if (!keep(op)) {
        drop(op);
        return;
    }

    /* It failed while it was to be put back: nobody else does that now. */
    if (op.replaces && op.link->gate.closed && !op.returns_claim()) {
        op.enter_gate();
    }

    if (entry.state == lateness::on_time) {
        entry.since = ngx_current_msec;
        entry.delay = first_delay;
        bytes_ += op.own_response.size();

        if (!op.returns_claim()) {
            health_.outcome_late();
        }

    } else {
        end_retry(op);
        entry.delay = op.holds_gate ? first_delay
                                    : ngx_min(entry.delay * 2, longest_delay);
    }

    entry.state = lateness::waiting;
    entry.next_try = ngx_current_msec + entry.delay;

    if (!insert(op)) {
        if (op.returns_claim()) {
            health_.claim_not_returned(op.link->name());
        }

        drop(op);
    }
}


void
late_operations::try_all()
{
    each([](operation &op) { op.late.next_try = ngx_current_msec; });
    try_due();
}


void
late_operations::memory_lost(redis_link &link)
{
    each([&](operation &op) {
        if (op.link == &link && !op.returns_claim()) {
            op.replaces = true;
            op.enter_gate();
        }
    });
}


bool
late_operations::use_summary(operation &op)
{
    std::size_t before = op.own_response.size();

    if (!op.use_summary()) {
        return false;
    }

    if (op.late.state != lateness::on_time) {
        bytes_ -= before;
        bytes_ += op.own_response.size();
    }

    return true;
}


void
late_operations::answered(operation &op, bool stored)
{
    if (op.late.state == lateness::on_time) {
        return;
    }

    if (stored && !op.returns_claim()) {
        health_.outcome_stored_late();

    } else if (!op.returns_claim()) {
        health_.outcome_superseded();
    }

    leave(op);
}


/* Makes the operation independent of its request; false: no room. */
bool
late_operations::keep(operation &op)
{
    std::size_t size = size_of(op.response);
    bool room = op.late.state != lateness::on_time || size == 0
                || bytes_ + size <= bytes_limit;

    return (room && op.own_the_response()) || use_summary(op);
}


/* False: there are too many. */
bool
late_operations::insert(operation &op)
{
    allowance &all = allowance_of(op);

    if (all.count == all.limit) {
        return false;
    }

    all.count++;
    ngx_queue_insert_tail(&waiting_, &op.late.queue);
    arm();

    return true;
}


void
late_operations::remove(operation &op)
{
    ngx_queue_remove(&op.late.queue);
    allowance_of(op).count--;
}


late_operations::allowance &
late_operations::allowance_of(const operation &op)
{
    return op.returns_claim() ? returns_ : outcomes_;
}


void
late_operations::arm()
{
    if (!ngx_queue_empty(&waiting_) && !tick_.event.timer_set) {
        ngx_add_timer(&tick_.event, tick);
    }
}


void
late_operations::on_tick(ngx_event_t *event)
{
    own_event::owner_of<late_operations>(event)->try_due();
}


void
late_operations::try_due()
{
    ngx_queue_t *q = ngx_queue_head(&waiting_);

    while (q != ngx_queue_sentinel(&waiting_)) {
        operation &op = operation_at(q);

        q = ngx_queue_next(q);

        if (is_over(op)) {
            remove(op);
            drop(op);

        } else if (op.link->usable() && is_due(op.late.next_try)
                   && may_retry_now(op) && op.link->has_time())
        {
            remove(op);
            retry(op);
        }
    }

    arm();
}


bool
late_operations::may_retry_now(const operation &op) const
{
    return retried_ == 0
           || (retried_ < retried_at_once
               && retried_bytes_ + op.own_response.size()
                      <= retried_bytes_at_once);
}


void
late_operations::retry(operation &op)
{
    op.late.state = lateness::retried;
    op.late.sent_bytes = op.own_response.size();
    retried_++;
    retried_bytes_ += op.late.sent_bytes;

    op.written = form::script_by_hash;
    op.asked_at = ngx_current_msec;
    op.hops = 0;
    commands_.send(op);
}


void
late_operations::end_retry(operation &op)
{
    if (op.late.state == lateness::retried) {
        retried_--;
        retried_bytes_ -= op.late.sent_bytes;
    }
}


void
late_operations::drop(operation &op)
{
    if (!op.returns_claim()) {
        health_.outcome_lost(op.link->name());
    }

    leave(op);
    free_operation(&op);
}


void
late_operations::leave(operation &op)
{
    if (op.late.state == lateness::on_time) {
        return;
    }

    end_retry(op);
    op.late.state = lateness::on_time;
    bytes_ -= op.own_response.size();

    if (!op.returns_claim()) {
        health_.outcome_over(op.link->name());
    }
}


namespace {

/*
 * Whether it is too late to retry.  A token can own its record even after the
 * lease has expired, so outcomes are retried for longer than that; a worker
 * that is shutting down waits for the lease only.  A claim stays uncertain
 * until Redis has answered, so undoing it is never too late.
 */
bool
is_over(const operation &op)
{
    auto lease = static_cast<ngx_msec_t>(op.whose.lease);

    if (ngx_exiting) {
        return is_due(op.late.since + lease);
    }

    return !op.returns_claim()
           && is_due(op.late.since + ngx_max(lease, longest_late));
}


operation &
operation_at(ngx_queue_t *q)
{
    late_entry *entry = ngx_queue_data(q, late_entry, queue);

    return *entry->op;
}

}

}
