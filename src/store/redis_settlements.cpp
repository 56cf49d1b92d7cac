#include "store/redis_errors.h"
#include "store/redis_record.h"
#include "store/redis_store.h"

namespace idempotency {

namespace {

/*
 * How often to look for a claim that may still take effect before it counts as
 * never executed, normally and in a worker that is shutting down.
 */
constexpr unsigned looks = 8;
constexpr unsigned looks_when_exiting = 3;

}


void
redis_store::complete(const ownership &whose, const completion &how,
                      settle_waiter *waiter)
{
    operation *op = make(purpose::complete, whose);

    if (op != nullptr) {
        op->state = how.state;
        op->expiry = redis_expiry(how.ttl);
        op->response = how.response;
        op->copy_summary(how.summary, how.summary_ttl);
    }

    settle(op, waiter);
}


void
redis_store::release(const ownership &whose, settle_waiter *waiter)
{
    /* A renewal that comes after it would put the record back. */
    operation *later = whose.renewal_lost ? make(purpose::take_back, whose)
                                          : nullptr;

    if (later != nullptr) {
        put_off(*later);
    }

    settle(make(purpose::release, whose), waiter);
}


void
redis_store::mark_unknown(const ownership &whose, std::uint64_t keep,
                          settle_waiter *waiter)
{
    operation *op = make(purpose::mark_unknown, whose);

    if (op != nullptr) {
        op->expiry = redis_expiry(keep);
    }

    settle(op, waiter);
}


void
redis_store::renew(const ownership &whose, settle_waiter &waiter)
{
    operation *op = make(purpose::renew, whose);

    if (op != nullptr) {
        op->expiry = redis_pending_expiry(whose.lease, whose.keep);
    }

    settle(op, &waiter);
}


/* The request, and with it the memory of the response, is about to go. */
void
redis_store::forget(settle_waiter &waiter)
{
    operation &op = *waiter.under_way;

    op.settler = nullptr;
    waiter.under_way = nullptr;

    if (!op.own_the_response()) {
        op.link->give_up("not enough memory for a response");
    }
}


void
redis_store::settle(operation *op, settle_waiter *waiter)
{
    if (op == nullptr) {
        if (waiter != nullptr) {
            waiter->settled(*waiter, settle_result::unavailable);
        }

        return;
    }

    op->settler = waiter;

    /* The worker may have stood still since nginx looked at the clock. */
    ngx_time_update();

    if (kept_record *record = kept_.find(op->whose.owner)) {
        op->replaces = record->in_doubt;
    }

    /*
     * Another may have taken over: if it has to be put back, then as it was,
     * with an expired lease.  When all put back what they have, it gives way
     * anyway.
     */
    if (op->why == purpose::renew && !op->replaces && !op->is_leased()) {
        op->elapsed = op->whose.lease;
    }

    if (waiter != nullptr) {
        waiter->under_way = op;
    }

    /* A claim that nobody needs can be undone later. */
    bool room = op->returns_claim() ? op->link->has_time()
                                    : !op->link->is_full();

    if (op->link->usable() && room) {
        commands_.send(*op);

    } else {
        settle_failed(*op);
    }
}


void
redis_store::settle_replied(operation &op, const redisReply &reply)
{
    if (reply.type != REDIS_REPLY_INTEGER) {

        if (reply.type == REDIS_REPLY_ERROR) {
            refused(*op.link, reply);
        }

        /* Redis is full, but may have room for the summary. */
        if (has_code(reply, "OOM") && late_.use_summary(op)
            && op.link->usable()) {
            commands_.send(op);
            return;
        }

        settle_failed(op);
        return;
    }

    health_.accepted(op.link->name());
    script_ended(op, reply.integer);
    update_kept(op, reply.integer);

    /* One that was put back may have to give way to a later attempt. */
    if (local_ != nullptr && op.why == purpose::complete && !is_elsewhere(op)
        && (reply.integer == 1 || reply.integer == 4))
    {
        local_->completed(op);
    }

    if (op.why == purpose::take_back && reply.integer == 0
        && ++op.times_not_found < (ngx_exiting ? looks_when_exiting : looks))
    {
        put_off(op);
        return;
    }

    if ((reply.integer == 2 || reply.integer == 3) && !op.replaces) {
        health_.put_back(op.link->name());
    }

    /* Who has claimed it may have run. */
    if (reply.integer == 3 && !op.replaces && op.why == purpose::complete) {
        health_.foreign_owner(op.link->name());
    }

    bool was_late = op.late.state != lateness::on_time;

    late_.answered(op, reply.integer != 0);

    /* So could a renewal on the connection that was lost. */
    if (op.why == purpose::release && was_late) {
        op.why = purpose::take_back;
        put_off(op);
        return;
    }

    answer_settle(op, reply.integer == 0 ? settle_result::lost
                      : op.is_summary    ? settle_result::kept_without_response
                                         : settle_result::done);
}


/* Redis has answered: what is known of the record now? */
void
redis_store::update_kept(operation &op, long long result)
{
    op.leave_gate();

    if (op.replaces) {
        count_put_back(op, result);
    }

    kept_record *record = kept_.find(op.whose.owner);

    if (op.why == purpose::renew) {
        if (record != nullptr) {
            kept_.confirm(*record);
        }

    } else if (result != 0) {
        kept_.settled(op);

    } else {
        kept_.forget(op.whose.owner);
    }

    if (is_elsewhere(op)) {
        kept_.doubt(op.whose.owner);
        put_back_more(home_of(op.whose.name, op.slot));
        arm_gate();
    }
}


void
redis_store::answer_settle(operation &op, settle_result result)
{
    settle_waiter *waiter = op.settler;

    free_operation(&op);

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        waiter->settled(*waiter, result);
    }
}


/* The waiter is answered now; storing the outcome is retried later. */
void
redis_store::settle_failed(operation &op)
{
    settle_waiter *waiter = op.settler;

    op.settler = nullptr;

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
    }

    if (op.why == purpose::renew) {
        free_operation(&op);

    } else {
        kept_.forget(op.whose.owner);
        put_off(op);
    }

    if (waiter != nullptr) {
        waiter->settled(*waiter, settle_result::unavailable);
    }
}

}
