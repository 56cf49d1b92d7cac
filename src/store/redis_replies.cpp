#include "store/redis_record.h"
#include "store/redis_store.h"

#include <algorithm>

namespace idempotency {

namespace {

/*
 * How often a claim that may have been executed late is looked for, and how
 * often by a worker that is about to leave.
 */
constexpr unsigned certain = 8;
constexpr unsigned enough = 3;

}


void
redis_store::answered(command &c, const redisReply *reply, unanswered why)
{
    auto &op = static_cast<operation &>(c);
    redis_store &self = *op.owner;

    if (self.stopping_) {
        self.free_operation(&op);
        return;
    }

    if (op.sent_late) {
        op.sent_late = false;
        self.late_sent_--;
        self.late_sent_bytes_ -= op.sent_bytes;
    }

    if (reply != nullptr && self.send_otherwise(op, *reply)) {
        return;
    }

    if (op.what == script_id::claim) {
        if (reply != nullptr) {
            self.claim_replied(op, *reply);

        } else {
            self.claim_lost(op, why);
        }

        return;
    }

    if (reply != nullptr) {
        self.settle_replied(op, *reply);

    } else {
        self.settle_failed(op);
    }
}


/* The server does not know the command in this form, but in another. */
bool
redis_store::send_otherwise(operation &op, const redisReply &reply)
{
    if (is_error(reply, "NOSCRIPT") && !op.whole) {
        op.whole = true;

    } else if (op.plain && is_error(reply, "ERR syntax error")) {
        op.link->needs_claim_script = true;
        op.plain = false;

    } else {
        return false;
    }

    /* What was not executed for nobody need not be. */
    if (op.what == script_id::claim && op.claimer == nullptr) {
        free_operation(&op);
        return true;
    }

    send(op);
    return true;
}


void
redis_store::claim_replied(operation &op, const redisReply &reply)
{
    claim_answer claimed = {
        claim_result::claimed, record_state::pending, true, 1, 0, 0, {}};

    switch (reply.type) {

    case REDIS_REPLY_NIL:
        accepted();
        answer_claim(op, claimed);
        return;

    case REDIS_REPLY_INTEGER:
        accepted();
        claimed.attempt = static_cast<std::uint32_t>(reply.integer);
        answer_claim(op, claimed);
        return;

    case REDIS_REPLY_STRING: claim_found(op, reply, 0); return;

    case REDIS_REPLY_ARRAY:
        if (reply.elements == 2 && reply.element[0]->type == REDIS_REPLY_STRING
            && reply.element[1]->type == REDIS_REPLY_INTEGER)
        {
            claim_found(op, *reply.element[0], reply.element[1]->integer);
            return;
        }
        break;
    }

    claim_refused(op, reply);
}


/*
 * An error of Redis has a name and no effect.  What has no name may come from
 * something in between, and the claim be on its way yet.
 */
void
redis_store::claim_refused(operation &op, const redisReply &reply)
{
    if (reply.type == REDIS_REPLY_ERROR) {
        refused(*op.link, reply);
    }

    claim_lost(op, reply.type != REDIS_REPLY_ERROR || is_error(reply, "ERR")
                       ? unanswered::lost
                       : unanswered::not_sent);
}


/* It has answered, but too late for who waits. */
void
redis_store::slow(command &c)
{
    auto &op = static_cast<operation &>(c);
    claim_waiter *claimer = op.claimer;
    settle_waiter *settler = op.settler;

    if (claimer != nullptr) {
        op.owner->claims_failed_++;
        op.owner->forget(*claimer);
        claimer->answered(*claimer, {});
    }

    if (settler != nullptr) {
        op.owner->forget(*settler);
        settler->settled(*settler, settle_result::unavailable);
    }
}


/* There is a record: nobody may run in its place. */
void
redis_store::claim_unreadable(operation &op)
{
    static time_t next;
    claim_answer answer;

    if (ngx_time() >= next) {
        next = ngx_time() + 60;

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: redis \"%V\" has a record of a format "
                      "that this version does not know",
                      &op.link->name());
    }

    answer.result = claim_result::unreadable;
    claims_failed_++;
    answer_claim(op, answer);
}


/* left: of the record's expiry, if a script has looked. */
void
redis_store::claim_found(operation &op, const redisReply &value,
                         std::int64_t left)
{
    auto record = decode_redis_record(bytes_of(value));

    if (!record) {
        claim_unreadable(op);
        return;
    }

    if (op.claimer == nullptr) {
        free_operation(&op);
        return;
    }

    claim_answer answer;

    answer.result = claim_result::found;
    answer.state = record->state;
    answer.same_fingerprint = record->fingerprint == op.fingerprint;
    answer.attempt = record->attempt;

    /* Whether the owner lives, only Redis can tell. */
    if (op.plain
        && (record->state == record_state::pending
            || (record->state == record_state::unknown && op.take_over
                && answer.same_fingerprint)))
    {
        op.plain = false;
        send(op);
        return;
    }

    std::uint64_t age;

    if (!op.plain) {
        age = record->expiry
              - std::min(static_cast<std::uint64_t>(ngx_max(left, 0)),
                         record->expiry);

    } else {
        std::uint64_t now = op.link->server_time();

        age = now - std::min(now, record->mark);
    }

    if (record->state == record_state::pending && age >= record->mark) {
        answer.state = record_state::unknown;
    }

    answer.age = age;
    answer.remaining = record->expiry == redis_longest
                           ? forever
                           : record->expiry - std::min(age, record->expiry);
    answer.response = record->response;

    answer_claim(op, answer);
}


void
redis_store::become_release(operation &op)
{
    op.what = script_id::release;
    op.give_back = true;
    op.whole = false;
}


/* The response lies in the reply, which goes when this returns. */
void
redis_store::answer_claim(operation &op, const claim_answer &answer)
{
    claim_waiter *waiter = op.claimer;
    claim_answer told = answer;

    if (waiter == nullptr) {

        /* Its request is gone, so the claim is given back. */
        if (answer.result == claim_result::claimed) {
            become_release(op);
            settle(&op, nullptr);
            return;
        }

        free_operation(&op);
        return;
    }

    if (!told.response.empty()) {
        std::uint8_t *room = waiter->room(*waiter, told.response.size());

        if (room == nullptr) {
            told.result = claim_result::unreadable;
            told.response = {};

        } else {
            ngx_memcpy(room, told.response.data(), told.response.size());
            told.response = {room, told.response.size()};
        }
    }

    waiter->under_way = nullptr;
    free_operation(&op);
    waiter->answered(*waiter, told);
}


void
redis_store::claim_lost(operation &op, unanswered why)
{
    claim_waiter *waiter = op.claimer;

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        op.claimer = nullptr;
        claims_failed_++;
    }

    if (why == unanswered::lost) {
        take_back(op);

    } else {
        free_operation(&op);
    }

    if (waiter != nullptr) {
        waiter->answered(*waiter, {});
    }
}


/*
 * A server that stands still executes what it has received when it goes on,
 * perhaps after what comes by the next connection.  So one look is not
 * enough, unless the claim was there.
 */
void
redis_store::take_back(operation &op)
{
    become_release(op);
    op.take_back = true;
    put_off(op);
}


void
redis_store::settle_replied(operation &op, const redisReply &reply)
{
    if (reply.type != REDIS_REPLY_INTEGER) {

        if (reply.type == REDIS_REPLY_ERROR) {
            refused(*op.link, reply);
        }

        /* A response has no room: that it ran may have. */
        if (is_error(reply, "OOM") && use_summary(op) && op.link->usable()) {
            send(op);
            return;
        }

        settle_failed(op);
        return;
    }

    accepted();

    if (op.take_back && reply.integer == 0
        && ++op.misses < (ngx_exiting ? enough : certain))
    {
        put_off(op);
        return;
    }

    if (op.is_late && !op.give_back && reply.integer == 1) {
        outcomes_stored_++;
    }

    answer_settle(op, reply.integer == 0 ? settle_result::lost
                      : op.shortened     ? settle_result::kept_without_response
                                         : settle_result::done);
}


void
redis_store::answer_settle(operation &op, settle_result result)
{
    settle_waiter *waiter = op.settler;

    end_late(op);
    free_operation(&op);

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        waiter->settled(*waiter, result);
    }
}


/* Who waits is told; the outcome itself is tried again. */
void
redis_store::settle_failed(operation &op)
{
    settle_waiter *waiter = op.settler;

    op.settler = nullptr;

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
    }

    if (op.what == script_id::renew) {
        free_operation(&op);

    } else if (keep_late(op)) {
        put_off(op);

    } else {
        drop_late(op);
    }

    if (waiter != nullptr) {
        waiter->settled(*waiter, settle_result::unavailable);
    }
}

}
