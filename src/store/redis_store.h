#pragma once

#include "store/redis.h"
#include "store/redis_link.h"
#include "store/store.h"

namespace idempotency {

enum class script_id : std::uint8_t {
    claim,
    complete,
    mark_unknown,
    release,
    renew
};


class redis_store;


/*
 * One of the five on its way.  It outlives the request that wants it: then
 * nobody waits for it, and what it needs of the request is its own.
 */
struct operation : command {
    redis_store *owner;
    redis_link *link;
    script_id what;
    bool plain;     /* a claim by SET, not by script */
    bool whole;     /* the script itself goes along */
    bool give_back; /* the release of a claim that nobody runs, */
    bool take_back; /* ... and that may yet take effect */

    claim_waiter *claimer;
    settle_waiter *settler;

    ownership whose;
    digest fingerprint;
    std::uint64_t expiry;
    bool take_over;

    record_state state;
    pieces response;
    bytes own_response; /* the same, when it is ours */
    std::uint64_t summary_expiry;
    std::size_t summary_size;
    std::uint8_t *summary;
    bool shortened; /* it stands in for the response */

    struct late_link {
        ngx_queue_t queue;
        operation *late;
    } link_late;
    ngx_msec_t next;
    ngx_msec_t again;
    ngx_msec_t since;
    unsigned misses;
    bool is_late;
    bool sent_late;         /* ... and is on its way now, */
    std::size_t sent_bytes; /* ... with so much of a response */
};


inline operation &
late_at(ngx_queue_t *q)
{
    auto *link = ngx_queue_data(q, operation::late_link, queue);

    return *link->late;
}


/*
 * Records in one Redis server.  A claim is one SET that succeeds only if
 * there is nothing; everything after it is a script that compares the token.
 * A settlement that fails is kept and tried again until its lease is over; a
 * claim that may have taken effect is taken back.
 */
class redis_store final : public store, public link_owner {
public:
    redis_store(const redis_settings &settings, redis_link *links)
        : settings_(settings), links_(links)
    {}

    void claim_record(const claim &what, claim_waiter &waiter) override;
    void complete(const ownership &whose, const completion &how,
                  settle_waiter *waiter) override;
    void release(const ownership &whose, settle_waiter *waiter) override;
    void mark_unknown(const ownership &whose, std::uint64_t keep,
                      settle_waiter *waiter) override;
    void renew(const ownership &whose, settle_waiter &waiter) override;
    void forget(claim_waiter &waiter) override;
    void forget(settle_waiter &waiter) override;
    void start() override;
    void stop() override;

    void link_up(redis_link &link) override;
    void link_down(redis_link &link, const char *why, ngx_err_t err) override;
    void server_evicts(redis_link &link, std::string_view policy) override;

private:
    static void answered(command &c, const redisReply *reply, unanswered why);
    static void slow(command &c);
    static void on_tick(ngx_event_t *event);

    static void name_scripts();

    operation *make_operation(script_id what, const ownership &whose);
    void free_operation(operation *op);
    void settle(operation *op, settle_waiter *waiter);

    void send(operation &op);
    void send_claim(operation &op);
    void send_script(operation &op, unsigned arguments);
    void send_response(operation &op);

    bool send_otherwise(operation &op, const redisReply &reply);
    void claim_replied(operation &op, const redisReply &reply);
    void claim_found(operation &op, const redisReply &value,
                     std::int64_t left);
    void answer_claim(operation &op, const claim_answer &answer);
    void claim_lost(operation &op, unanswered why);
    void claim_unreadable(operation &op);
    void claim_refused(operation &op, const redisReply &reply);
    void become_release(operation &op);
    void take_back(operation &op);

    void settle_replied(operation &op, const redisReply &reply);
    void answer_settle(operation &op, settle_result result);
    void settle_failed(operation &op);
    bool own_response(operation &op);
    bool use_summary(operation &op);
    bool keep_late(operation &op);

    void put_off(operation &op);
    void send_late(bool all);
    void drop_late(operation &op);
    void end_late(operation &op);
    bool is_over(const operation &op) const;
    bool may_send_late(const operation &op) const;

    void refused(redis_link &link, const redisReply &reply);
    void accepted();
    void say_down(const ngx_str_t &name, const char *why, ngx_err_t err);
    void say_up(const ngx_str_t &name);
    void say_settled(const ngx_str_t &name);
    void say_wrong_key(redis_link &link);

    redis_settings settings_;
    redis_link *links_;

    ngx_queue_t late_ = {};
    std::size_t late_count_ = 0; /* outcomes */
    std::size_t returns_ = 0;    /* claims to be given back */
    time_t next_drop_ = 0;
    std::size_t late_bytes_ = 0;
    unsigned late_sent_ = 0; /* on their way now: */
    std::size_t late_sent_bytes_ = 0;
    own_event tick_ = {};

    unsigned links_down_ = 0;
    ngx_msec_t refused_at_ = 0;
    bool refusing_ = false; /* it answers, but does not take what we store */
    bool stopping_ = false;
    bool said_evicts_ = false;
    ngx_msec_t bad_since_ = 0;
    ngx_uint_t claims_failed_ = 0;
    ngx_uint_t outcomes_late_ = 0; /* yet to be stored */
    ngx_uint_t outcomes_stored_ = 0;
    ngx_uint_t outcomes_lost_ = 0;
};


inline std::string_view
text_of(bytes b)
{
    return {reinterpret_cast<const char *>(b.data()), b.size()};
}


inline bytes
bytes_of(const redisReply &reply)
{
    return {reinterpret_cast<const std::uint8_t *>(reply.str),
            static_cast<std::size_t>(reply.len)};
}


inline bool
is_error(const redisReply &reply, std::string_view prefix)
{
    return reply.type == REDIS_REPLY_ERROR
           && text_of(bytes_of(reply)).starts_with(prefix);
}


inline std::size_t
size_of(pieces all)
{
    std::size_t size = 0;

    for (bytes part : all) {
        size += part.size();
    }

    return size;
}

}
