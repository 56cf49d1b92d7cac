#include "store/redis_errors.h"
#include "store/redis_record.h"
#include "store/redis_store.h"

#include <algorithm>

namespace idempotency {

namespace {

/* How often to ask again for a record that went while it was looked at. */
constexpr unsigned most_vanishings = 3;

bool is_too_late(const operation &op);
claim_answer claimed_with(std::int64_t attempt);
claim_answer answer_without_record(claim_result result);
bool needs_script(const operation &op, const redis_record &record);
std::uint64_t age_of(const operation &op, const redis_record &record,
                     std::int64_t ttl_left);
claim_answer found(const operation &op, const redis_record &record,
                   std::uint64_t age);
void copy_response(claim_waiter &waiter, claim_answer &answer);

}


void
redis_store::claim_record(const claim &what, claim_waiter &waiter)
{
    if (local_ != nullptr && local_->answer(what, waiter)) {
        return;
    }

    ownership whose = {what.name, what.owner, what.lease, what.keep,
                       what.fingerprint};
    operation *op = make(purpose::claim, whose);

    bool can_be_sent = op != nullptr && op->link->usable()
                       && op->link->keeps_up() && can_ask_durable(*op->link);

    /* It is not known yet where. */
    bool can_wait = op != nullptr && is_learning(*op->link);

    if (!can_be_sent && !can_wait) {
        ngx_free(op);
        health_.claim_failed();
        waiter.answered(waiter, {});
        return;
    }

    op->claimer = &waiter;
    op->take_over = what.take_over;
    op->expiry = redis_pending_expiry(what.lease, what.keep);

    /* Redis 6 does not count its replicas before a script writes. */
    if (!op->link->knows_set_get()) {
        op->written = form::set_and_get;

    } else if (!what.again) {
        op->written = form::plain_set;
    }

    waiter.under_way = op;

    if (must_wait(*op->link)) {
        hold(*op);
        return;
    }

    /* Others may claim at another master by now: this one must not run. */
    if (!op->link->is_confirmed()) {
        health_.claim_not_confirmed(op->link->name());
        refuse_held(*op);
        return;
    }

    commands_.send(*op);
}


void
redis_store::forget(claim_waiter &waiter)
{
    waiter.under_way->claimer = nullptr;
    waiter.under_way = nullptr;
}


/* What a reply means depends on what was sent: nil is not always a yes. */
void
redis_store::claim_replied(operation &op, const redisReply &reply)
{
    bool plain = op.written == form::plain_set;

    if (op.written == form::set_and_get) {
        pair_replied(op, *op.earlier, reply);

    } else if (plain && reply.type == REDIS_REPLY_NIL) {
        claim_written(op, 1);

    } else if (plain && reply.type == REDIS_REPLY_STRING) {
        claim_found(op, reply, 0);

    } else if (!plain && reply.type == REDIS_REPLY_INTEGER
               && reply.integer > 0) {
        claim_written(op, reply.integer);

    } else if (!plain && reply.type == REDIS_REPLY_ARRAY && reply.elements == 2
               && reply.element[0]->type == REDIS_REPLY_STRING
               && reply.element[1]->type == REDIS_REPLY_INTEGER)
    {
        claim_found(op, *reply.element[0], reply.element[1]->integer);

    } else {
        claim_refused(op, reply);
    }
}


/* The reply to SET NX says who has the key, the one to GET what is there. */
void
redis_store::pair_replied(operation &op, const redisReply &set,
                          const redisReply &get)
{
    bool found = get.type == REDIS_REPLY_STRING;
    auto own = record_head(op);

    if (set.type == REDIS_REPLY_STATUS && found
        && text_of(get) == text_of(own)) {
        claim_written(op, 1);

    } else if (set.type == REDIS_REPLY_NIL && found) {
        claim_found(op, get, 0);

    } else if (set.type == REDIS_REPLY_NIL && get.type == REDIS_REPLY_NIL) {
        claim_vanished(op);

    } else if (set.type == REDIS_REPLY_NIL) {
        claim_refused(op, get);

    } else if (found && refuses_writes(error_code(set))) {
        op.take_over = false;
        claim_found(op, get, 0);

    } else {
        claim_refused(op, set);
    }
}


void
redis_store::claim_written(operation &op, std::int64_t attempt)
{
    writes_accepted(*op.link);
    claim_granted(op, attempt);
}


/*
 * The worker may have stood still while the reply was there, even since nginx
 * looked at the clock.  A run may only start while enough is left of its lease
 * to renew it in time.
 */
void
redis_store::claim_granted(operation &op, std::int64_t attempt)
{
    claim_waiter *waiter = op.claimer;

    health_.accepted(op.link->name());
    ngx_time_update();

    if (waiter == nullptr) {
        answer_claim(op, claimed_with(attempt));
        return;
    }

    if (is_too_late(op)) {
        claim_too_late(op, claim_result::unavailable);
        return;
    }

    if (!op.link->is_confirmed()) {
        health_.claim_not_confirmed(op.link->name());
        claim_too_late(op, claim_result::unreadable);
        return;
    }

    /* A server that lacks the earlier attempts stores what it is told. */
    op.whose.attempt = std::max(op.whose.attempt,
                                static_cast<std::uint32_t>(attempt));

    /* Another node has its slot by now, and may not have the claim. */
    if (is_elsewhere(op)) {
        claim_at_home(op);
        return;
    }

    /* The gate was closed after it was sent. */
    if (op.link->gate.closed) {
        claim_too_late(op, claim_result::unreadable);
        return;
    }

    if (wants_durable()) {
        wait_until_durable(op);
        return;
    }

    claim_counts(op);
}


void
redis_store::claim_counts(operation &op)
{
    kept_.claimed(op);
    answer_claim(op, claimed_with(op.whose.attempt));
}


void
redis_store::claim_too_late(operation &op, claim_result result)
{
    claim_waiter *waiter = op.claimer;

    forget(*waiter);
    health_.claim_failed();
    settle(return_claim(op, purpose::give_back), nullptr);
    waiter->answered(*waiter, answer_without_record(result));
}


/* There was a record, but it has expired or was released: ask again. */
void
redis_store::claim_vanished(operation &op)
{
    if (op.claimer == nullptr || ++op.times_vanished > most_vanishings) {
        claim_lost(op, unanswered::not_sent);
        return;
    }

    commands_.send(op);
}


/* ttl_left is the record's remaining TTL, if the script was used. */
void
redis_store::claim_found(operation &op, const redisReply &value,
                         std::int64_t ttl_left)
{
    auto record = decode_redis_record(bytes_of(value));

    if (!record) {
        claim_unreadable(op);
        return;
    }

    /* A proxy may have sent the claim twice: it is this one that has it. */
    if (record->owner == op.whose.owner
        && record->state == record_state::pending) {
        claim_granted(op, record->attempt);
        return;
    }

    if (op.claimer == nullptr) {
        free_operation(&op);
        return;
    }

    bool scripted = op.written != form::plain_set
                    && op.written != form::set_and_get;

    if (!scripted && needs_script(op, *record)) {
        op.written = form::script_by_hash;
        commands_.send(op);
        return;
    }

    claim_answer answer = found(op, *record, age_of(op, *record, ttl_left));

    if (local_ != nullptr) {
        local_->found(op, *record, answer);
    }

    answer_claim(op, answer);
}


/* A record exists, so the request must not run. */
void
redis_store::claim_unreadable(operation &op)
{
    health_.unreadable_record(op.link->name(), op.whose.name);
    health_.claim_failed();
    answer_claim(op, answer_without_record(claim_result::unreadable));
}


/* The response is part of the reply, which is freed after this call. */
void
redis_store::answer_claim(operation &op, const claim_answer &answer)
{
    claim_waiter *waiter = op.claimer;
    claim_answer copy = answer;

    if (waiter != nullptr) {
        copy_response(*waiter, copy);
        waiter->under_way = nullptr;
        free_operation(&op);
        waiter->answered(*waiter, copy);

    } else if (answer.result == claim_result::claimed) {

        /* The request has gone and will not run. */
        settle(return_claim(op, purpose::give_back), nullptr);

    } else {
        free_operation(&op);
    }
}


/*
 * Where there is something else than a record, the request must not run.  If
 * it is not certain that the claim had no effect, it is taken back later.
 */
void
redis_store::claim_refused(operation &op, const redisReply &reply)
{
    std::string_view code = error_code(reply);

    if (reply.type == REDIS_REPLY_ERROR) {
        refused(*op.link, reply);
    }

    if (code == "WRONGTYPE") {
        health_.claim_failed();
        answer_claim(op, answer_without_record(claim_result::unreadable));
        return;
    }

    claim_lost(op, means_not_executed(code) ? unanswered::not_sent
                                            : unanswered::lost);
}


/*
 * A server that hangs executes the commands it has received when it continues,
 * perhaps after commands of the next connection.  So a lost claim is taken
 * back later, and more than one attempt is made to find it.
 */
void
redis_store::claim_lost(operation &op, unanswered why)
{
    claim_waiter *waiter = op.claimer;

    /* The server has changed meanwhile: nothing is claimed there yet. */
    if (why == unanswered::not_sent && waiter != nullptr
        && op.link->gate.closed && op.link->usable())
    {
        hold(op);
        return;
    }

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        health_.claim_failed();
    }

    op.may_be_claimed = op.may_be_claimed || why == unanswered::lost;
    drop_claim(op);

    if (waiter != nullptr) {
        waiter->answered(*waiter, {});
    }
}


/* Nobody waits for it any more. */
void
redis_store::drop_claim(operation &op)
{
    if (!op.may_be_claimed) {
        free_operation(&op);
        return;
    }

    operation *later = return_claim(op, purpose::take_back);

    if (later != nullptr) {
        put_off(*later);
    }
}


/*
 * The claim has ended, undoing it is a second operation.  The claim is freed
 * first, so that there is memory for the second.
 */
operation *
redis_store::return_claim(operation &op, purpose why)
{
    ownership whose = op.whose;

    free_operation(&op);

    return make(why, whose);
}


namespace {

bool
is_too_late(const operation &op)
{
    return (ngx_current_msec - op.asked_at) * 2 >= op.whose.lease;
}


claim_answer
claimed_with(std::int64_t attempt)
{
    claim_answer answer;

    answer.result = claim_result::claimed;
    answer.same_fingerprint = true;
    answer.attempt = static_cast<std::uint32_t>(attempt);

    return answer;
}


claim_answer
answer_without_record(claim_result result)
{
    claim_answer answer;

    answer.result = result;

    return answer;
}


/* Only the script can see whether a lease has expired, and take over. */
bool
needs_script(const operation &op, const redis_record &record)
{
    return record.state == record_state::pending
           || (record.state == record_state::unknown && op.take_over
               && record.fingerprint == op.whose.fingerprint);
}


/*
 * A pending record: since it was renewed, by what is left of its expiry.  The
 * others: since the run ended.
 */
std::uint64_t
age_of(const operation &op, const redis_record &record, std::int64_t ttl_left)
{
    if (record.state != record_state::pending) {
        std::uint64_t now = op.link->server_time();

        return now - std::min(now, record.mark);
    }

    auto left = static_cast<std::uint64_t>(
        std::max<std::int64_t>(ttl_left, 0));

    return record.expiry - std::min(left, record.expiry);
}


claim_answer
found(const operation &op, const redis_record &record, std::uint64_t age)
{
    bool expired = record.state == record_state::pending && age >= record.mark;
    claim_answer answer;

    answer.result = claim_result::found;
    answer.state = expired ? record_state::unknown : record.state;
    answer.same_fingerprint = record.fingerprint == op.whose.fingerprint;
    answer.attempt = record.attempt;
    answer.age = age;
    answer.remaining = record.expiry >= redis_longest
                           ? forever
                           : record.expiry - std::min(age, record.expiry);
    answer.response = record.response;

    return answer;
}


void
copy_response(claim_waiter &waiter, claim_answer &answer)
{
    if (answer.response.empty()) {
        return;
    }

    std::uint8_t *room = waiter.room(waiter, answer.response.size());

    if (room == nullptr) {
        answer.result = claim_result::unreadable;
        answer.response = {};
        return;
    }

    ngx_memcpy(room, answer.response.data(), answer.response.size());
    answer.response = {room, answer.response.size()};
}

}

}
