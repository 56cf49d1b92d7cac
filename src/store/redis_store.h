#pragma once

#include "store/admin.h"
#include "store/redis.h"
#include "store/redis_commands.h"
#include "store/redis_health.h"
#include "store/redis_kept.h"
#include "store/redis_late.h"
#include "store/redis_local.h"
#include "store/redis_sentinel.h"

#include <cstdint>

namespace idempotency {

/*
 * Records in one Redis server.  A claim is one SET that succeeds only if there
 * is no record.  All later operations are scripts that compare the token.  A
 * settlement that fails is retried for a while; a claim that may have taken
 * effect without a reply is taken back.  A server that may have lost its
 * memory gets back what this worker knows, before anything is claimed there.
 */
class redis_store final : public store,
                          public link_owner,
                          public sentinel_owner {
public:
    redis_store(const redis_settings &settings, std::span<redis_link> links);

    static std::size_t links_needed(const redis_settings &settings);

    /* Its masters are named by these. */
    void set_sentinels(sentinel_group &group) { sentinels_ = &group; }

    /* Finished records are found there first. */
    void set_local(local_copies &copies) { local_ = &copies; }

    redis_store(const redis_store &) = delete;
    redis_store &operator=(const redis_store &) = delete;

    void claim_record(const claim &what, claim_waiter &waiter) override;
    void complete(const ownership &whose, const completion &how,
                  settle_waiter *waiter) override;
    void release(const ownership &whose, settle_waiter *waiter) override;
    void mark_unknown(const ownership &whose, std::uint64_t keep,
                      settle_waiter *waiter) override;
    void renew(const ownership &whose, settle_waiter &waiter) override;
    void forget(claim_waiter &waiter) override;
    void forget(settle_waiter &waiter) override;
    void look_up(const record_id &name, admin_waiter &waiter) override;
    void list_unknown(std::uint64_t from, admin_waiter &waiter) override;
    void settle_unknown(const record_id &name, const admin_settlement &how,
                        admin_waiter &waiter) override;
    void forget(admin_waiter &waiter) override;
    std::string_view kind() const override { return "redis"; }
    std::uint64_t timeout() const override { return timeout_; }
    void start() override;
    void stop() override;

    void link_up(redis_link &link) override;
    void link_down(redis_link &link, const char *why, ngx_err_t err) override;
    void memory_lost(redis_link &link) override;
    void link_overloaded(redis_link &link) override;
    void link_recovered(redis_link &link) override;
    void server_evicts(redis_link &link, std::string_view policy) override;

    void masters_named() override;

private:
    /* redis_store.cpp */
    static void answered(command &c, const redisReply *reply, unanswered why);
    static void overdue(command &c);

    operation *make(purpose why, const ownership &whose);
    bool send_in_other_form(operation &op, const redisReply &reply);
    void refused(redis_link &link, const redisReply &reply);

    /* redis_claims.cpp */
    void claim_replied(operation &op, const redisReply &reply);
    void pair_replied(operation &op, const redisReply &set,
                      const redisReply &get);
    void claim_granted(operation &op, std::int64_t attempt);
    void claim_counts(operation &op);
    void claim_vanished(operation &op);
    void claim_found(operation &op, const redisReply &value,
                     std::int64_t ttl_left);
    void claim_unreadable(operation &op);
    void claim_refused(operation &op, const redisReply &reply);
    void claim_lost(operation &op, unanswered why);
    void claim_too_late(operation &op, claim_result result);
    void answer_claim(operation &op, const claim_answer &answer);
    operation *return_claim(operation &op, purpose why);

    /* redis_settlements.cpp */
    void settle(operation *op, settle_waiter *waiter);
    void settle_replied(operation &op, const redisReply &reply);
    void update_kept(operation &op, long long result);
    void settle_failed(operation &op);
    void answer_settle(operation &op, settle_result result);

    /* redis_put_back.cpp */
    static void on_gate_tick(ngx_event_t *event);

    void begin_put_back(redis_link &link);
    void put_back_more(redis_link &link);
    bool put_back(const kept_record &record);
    void put_back_answered(operation &op, const redisReply *reply);
    void count_put_back(const operation &op, long long result);
    static void writes_refused(redis_link &link);
    void writes_accepted(redis_link &link);
    static bool must_wait(const redis_link &link);
    void hold(operation &op);
    void arm_gate();
    void look_at_gate(redis_link &link);
    void look_at_held();
    void refuse_held(operation &op);
    void free_held();

    /* redis_durable.cpp */
    static void on_undecided(ngx_event_t *event);
    static void durable_answered(command &c, const redisReply *reply,
                                 unanswered why);

    bool wants_durable() const { return durable_.link != nullptr; }
    bool can_ask_durable() const;
    void wait_until_durable(operation &op);
    void ask_durable();
    bool is_durable(const command &c, const redisReply *reply);
    void decide(ngx_queue_t &which, bool durable);
    void free_undecided();

    std::uint64_t timeout_;
    ngx_msec_t grace_;
    std::span<redis_link> all_links_;
    std::span<redis_link> links_; /* for records */
    sentinel_group *sentinels_ = nullptr;
    local_copies *local_ = nullptr;
    redis_commands commands_;
    server_health health_;
    late_operations late_;
    kept_records kept_;

    /* Claims that wait at a gate. */
    ngx_queue_t held_ = {};
    std::size_t held_count_ = 0;
    own_event gate_tick_ = {};

    /* Claims that count when enough servers have them. */
    struct {
        durability_settings wanted;
        redis_link *link = nullptr; /* null: nothing is asked for */
        ngx_queue_t undecided = {};
        ngx_queue_t asked_for = {};
        bool is_asking = false;
        own_event event = {};
        struct : command {
            redis_store *owner;
        } question = {};
    } durable_;

    bool stopping_ = false;
};

}
