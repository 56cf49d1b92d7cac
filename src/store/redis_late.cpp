#include "store/redis_store.h"

namespace idempotency {

namespace {

/* Outcomes that wait for a server that is down, in one worker. */
constexpr std::size_t late_limit = 16 * 1024;
constexpr std::size_t returns_limit = 64 * 1024;
constexpr std::size_t late_memory = 32 * 1024 * 1024;

constexpr ngx_msec_t late_tick = 50;
constexpr ngx_msec_t first_again = 100;
constexpr ngx_msec_t longest_again = 3000;
constexpr ngx_msec_t longest_late = 10 * 60 * 1000;
constexpr unsigned late_at_once = 64;
constexpr std::size_t late_bytes_at_once = 512 * 1024;


bool
is_due(ngx_msec_t when)
{
    return static_cast<ngx_msec_int_t>(when - ngx_current_msec) <= 0;
}

}


/* From here on the operation needs nothing of its request. */
bool
redis_store::own_response(operation &op)
{
    std::size_t size = size_of(op.response);

    if (op.own_response.data() != nullptr || size == 0) {
        return true;
    }

    auto *copy = static_cast<std::uint8_t *>(ngx_alloc(size, ngx_cycle->log));

    if (copy == nullptr) {
        return false;
    }

    std::uint8_t *p = copy;

    for (bytes part : op.response) {
        ngx_memcpy(p, part.data(), part.size());
        op.link->part_moved(part, p);
        p += part.size();
    }

    op.own_response = {copy, size};
    op.response = {&op.own_response, 1};

    return true;
}


/* Where there is no room for the response, that it ran is kept. */
bool
redis_store::use_summary(operation &op)
{
    if (op.summary == nullptr) {
        return false;
    }

    if (op.is_late) {
        late_bytes_ -= op.own_response.size();
        late_bytes_ += op.summary_size;
    }

    ngx_free(const_cast<std::uint8_t *>(op.own_response.data()));
    op.own_response = {op.summary, op.summary_size};
    op.response = {&op.own_response, 1};
    op.summary = nullptr;
    op.shortened = true;
    op.state = record_state::not_kept;
    op.expiry = op.summary_expiry;

    return true;
}


bool
redis_store::keep_late(operation &op)
{
    bool room = op.is_late
                || late_bytes_ + size_of(op.response) <= late_memory;

    return (room && own_response(op)) || use_summary(op);
}


/*
 * Later again.  An outcome is worth storing as long as its token may own the
 * record, which is longer than its lease; a worker that leaves does not wait
 * longer than that, though.
 */
void
redis_store::put_off(operation &op)
{
    if (!op.is_late) {
        op.is_late = true;
        op.again = first_again;
        op.since = ngx_current_msec;
        late_bytes_ += op.own_response.size();
        outcomes_late_ += !op.give_back;

    } else {
        op.again = ngx_min(op.again * 2, longest_again);
    }

    op.next = ngx_current_msec + op.again;

    std::size_t &count = op.give_back ? returns_ : late_count_;

    if (count == (op.give_back ? returns_limit : late_limit)) {
        drop_late(op);
        return;
    }

    count++;
    ngx_queue_insert_tail(&late_, &op.link_late.queue);

    if (!tick_.event.timer_set) {
        ngx_add_timer(&tick_.event, late_tick);
    }
}


/* One line for many: the rest is in the sum at the end. */
void
redis_store::drop_late(operation &op)
{
    if (op.give_back && returns_ == returns_limit && ngx_time() >= next_drop_)
    {
        next_drop_ = ngx_time() + 60;

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: redis \"%V\" leaves too many claims "
                      "unanswered, some are not taken back and may lock their "
                      "keys",
                      &op.link->name());
    }

    if (!op.give_back && outcomes_lost_++ == 0) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: redis \"%V\" did not take an outcome in "
                      "time, retries of its request are told that it is "
                      "unknown",
                      &op.link->name());
    }

    end_late(op);
    free_operation(&op);
}


void
redis_store::end_late(operation &op)
{
    if (!op.is_late) {
        return;
    }

    late_bytes_ -= op.own_response.size();

    if (!op.give_back && --outcomes_late_ == 0) {
        say_settled(op.link->name());
    }
}


void
redis_store::on_tick(ngx_event_t *event)
{
    own_event::owner_of<redis_store>(event)->send_late(false);
}


bool
redis_store::is_over(const operation &op) const
{
    auto lease = static_cast<ngx_msec_t>(op.whose.lease);

    if (ngx_exiting) {
        return is_due(op.since + lease);
    }

    /* Until Redis has answered, nothing is certain. */
    return !op.give_back && is_due(op.since + ngx_max(lease, longest_late));
}


bool
redis_store::may_send_late(const operation &op) const
{
    return late_sent_ == 0
           || (late_sent_ < late_at_once
               && late_sent_bytes_ + op.own_response.size()
                      <= late_bytes_at_once);
}


/*
 * Sends what is due, all if the server has just come back; not too much at
 * once, as others wait for an answer too.
 */
void
redis_store::send_late(bool all)
{
    ngx_queue_t *q = ngx_queue_head(&late_);

    while (q != ngx_queue_sentinel(&late_)) {
        operation &op = late_at(q);

        q = ngx_queue_next(q);

        if (all) {
            op.next = ngx_current_msec;
        }

        bool over = is_over(op);
        bool due = op.link->usable() && is_due(op.next) && may_send_late(op);

        if (!over && !due) {
            continue;
        }

        ngx_queue_remove(&op.link_late.queue);
        (op.give_back ? returns_ : late_count_)--;

        if (over) {
            drop_late(op);

        } else {
            op.whole = false;
            op.sent_late = true;
            op.sent_bytes = op.own_response.size();
            late_sent_++;
            late_sent_bytes_ += op.sent_bytes;
            send(op);
        }
    }

    if (!ngx_queue_empty(&late_) && !tick_.event.timer_set) {
        ngx_add_timer(&tick_.event, late_tick);
    }
}

}
