#include "store/redis_record.h"
#include "store/redis_store.h"

#include <algorithm>

namespace idempotency {

namespace {

claim_answer claimed_with(std::int64_t attempt);
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
    ownership whose = {what.name, what.owner, what.lease};
    operation *op = make(purpose::claim, whose);

    if (op == nullptr || !op->link->usable()) {
        ngx_free(op);
        health_.claim_failed();
        waiter.answered(waiter, {});
        return;
    }

    op->claimer = &waiter;
    op->fingerprint = what.fingerprint;
    op->take_over = what.take_over;
    op->expiry = what.keep == forever ? redis_longest
                                      : redis_expiry(what.lease + what.keep);

    if (!what.again && !op->link->needs_claim_script) {
        op->written = form::plain_set;
    }

    waiter.under_way = op;
    commands_.send(*op);
}


void
redis_store::forget(claim_waiter &waiter)
{
    waiter.under_way->claimer = nullptr;
    waiter.under_way = nullptr;
}


void
redis_store::claim_replied(operation &op, const redisReply &reply)
{
    switch (reply.type) {

    case REDIS_REPLY_NIL:
        health_.accepted(op.link->name());
        answer_claim(op, claimed_with(1));
        return;

    case REDIS_REPLY_INTEGER:
        health_.accepted(op.link->name());
        answer_claim(op, claimed_with(reply.integer));
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

    if (op.claimer == nullptr) {
        free_operation(&op);
        return;
    }

    if (op.written == form::plain_set && needs_script(op, *record)) {
        op.written = form::script_by_hash;
        commands_.send(op);
        return;
    }

    answer_claim(op, found(op, *record, age_of(op, *record, ttl_left)));
}


/* A record exists, so the request must not run. */
void
redis_store::claim_unreadable(operation &op)
{
    claim_answer answer;

    answer.result = claim_result::unreadable;
    health_.unreadable_record(op.link->name());
    health_.claim_failed();
    answer_claim(op, answer);
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
 * A command that Redis refuses with a named error had no effect.  A plain
 * "ERR", or another type of reply, may come from a proxy in between: the claim
 * may still reach Redis.
 */
void
redis_store::claim_refused(operation &op, const redisReply &reply)
{
    bool is_redis_error = reply.type == REDIS_REPLY_ERROR
                          && !is_error(reply, "ERR");

    if (reply.type == REDIS_REPLY_ERROR) {
        refused(*op.link, reply);
    }

    claim_lost(op, is_redis_error ? unanswered::not_sent : unanswered::lost);
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

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        health_.claim_failed();
    }

    if (why == unanswered::lost) {
        operation *later = return_claim(op, purpose::take_back);

        if (later != nullptr) {
            late_.put_off(*later);
        }

    } else {
        free_operation(&op);
    }

    if (waiter != nullptr) {
        waiter->answered(*waiter, {});
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

claim_answer
claimed_with(std::int64_t attempt)
{
    claim_answer answer;

    answer.result = claim_result::claimed;
    answer.same_fingerprint = true;
    answer.attempt = static_cast<std::uint32_t>(attempt);

    return answer;
}


/* Only the script can see whether a lease has expired, and take over. */
bool
needs_script(const operation &op, const redis_record &record)
{
    return record.state == record_state::pending
           || (record.state == record_state::unknown && op.take_over
               && record.fingerprint == op.fingerprint);
}


std::uint64_t
age_of(const operation &op, const redis_record &record, std::int64_t ttl_left)
{
    if (op.written == form::plain_set) {
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
    answer.same_fingerprint = record.fingerprint == op.fingerprint;
    answer.attempt = record.attempt;
    answer.age = age;
    answer.remaining = record.expiry == redis_longest
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
