#pragma once

#include "store/admin.h"
#include "store/redis.h"
#include "store/redis_cluster.h"
#include "store/redis_commands.h"
#include "store/redis_health.h"
#include "store/redis_kept.h"
#include "store/redis_late.h"
#include "store/redis_local.h"
#include "store/redis_sentinel.h"

#include <cstdint>

namespace idempotency {

/*
 * Records in one Redis server, or in the nodes of a cluster.  A claim is one
 * SET that succeeds only if there is no record.  All later operations are
 * scripts that compare the token.  A settlement that fails is retried for a
 * while; a claim that may have taken effect without a reply is taken back.  A
 * server that may have lost its memory gets back what this worker knows,
 * before anything is claimed there.
 */
class redis_store final : public store,
                          public link_owner,
                          public sentinel_owner,
                          public cluster_owner,
                          private record_homes {
public:
    explicit redis_store(const redis_settings &settings);

    /* One of them: its server, perhaps named by Sentinels, or a cluster. */
    void set_server(redis_node &node, sentinel_group *named_by);
    void set_cluster(cluster_map &map) { cluster_ = &map; }

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
    bool lists_records() const override { return is_administered; }
    void server_lists_nothing(redis_link &link, const char *why) override;

    void masters_named() override;

    void slots_moved() override;
    void memory_in_doubt(redis_link &link) override;
    void node_added(redis_node &node) override;
    void node_gone(redis_node &node) override;
    void slots_unknown(const ngx_str_t &server, const char *why,
                       ngx_err_t err) override;
    void slots_known(const ngx_str_t &server) override;

private:
    /* redis_store.cpp */
    static void answered(command &c, const redisReply *reply, unanswered why);
    static void overdue(command &c);

    operation *make(purpose why, const ownership &whose);
    bool send_in_other_form(operation &op, const redisReply &reply);
    void refused(redis_link &link, const redisReply &reply);
    unsigned links_down();
    redis_node *first_node() const;

    template <class F>
    void each_link(F call)
    {
        for (redis_node *n = first_node(); n != nullptr; n = n->next) {
            for (redis_link &link : n->all_links) {
                call(link);
            }
        }
    }

    /* redis_redirects.cpp: in a cluster, where a record is */
    redis_link &home_of(const record_id &name);
    redis_link &home_of(const record_id &name, std::uint16_t slot) override;
    void go_home(operation &op);
    void put_off(operation &op);
    bool is_learning(const redis_link &link) const;
    bool is_redirected(operation &op, const redisReply &reply);
    bool follow(operation &op, const redirection &to);
    redis_link *link_after(const redirection &to, redis_link &from,
                           const record_id &name);
    void send_again(operation &op);
    bool is_elsewhere(const operation &op);
    void claim_at_home(operation &op);

    /* redis_claims.cpp */
    void claim_replied(operation &op, const redisReply &reply);
    void pair_replied(operation &op, const redisReply &set,
                      const redisReply &get);
    void claim_written(operation &op, std::int64_t attempt);
    void claim_granted(operation &op, std::int64_t attempt);
    void claim_counts(operation &op);
    void drop_claim(operation &op);
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
    void script_ended(operation &op, long long result);
    void writes_accepted(redis_link &link);
    bool must_wait(const redis_link &link) const;
    void hold(operation &op);
    void arm_gate();
    void look_at_gate(redis_link &link);
    void look_at_held();
    void refuse_held(operation &op);
    void free_held();

    /* redis_admin.cpp */
    static void admin_answered(command &c, const redisReply *reply,
                               unanswered why);

    admin_operation *make_admin(redis_link &link, admin_waiter &waiter);
    void send_admin(admin_operation &op);
    bool admin_redirected(admin_operation &op, const redisReply &reply);

    /* redis_admin_list.cpp */
    static void listed(admin_operation &op, const redisReply &reply);

    std::uint64_t list_goes_on(std::size_t master, std::uint64_t cursor);

    /* redis_durable.cpp */
    static void on_undecided(ngx_event_t *event);
    static void durable_answered(command &c, const redisReply *reply,
                                 unanswered why);

    bool wants_durable() const;
    bool can_ask_durable(const redis_link &link) const;
    void wait_until_durable(operation &op);
    void ask_durable(redis_node &node);
    bool is_guest(const redis_node &node) const;
    bool find_durable_key(redis_node &node, u_char *room,
                          std::string_view &key);
    bool ask_elsewhere(redis_node &node, const redisReply *reply);
    bool is_durable(redis_node &node, const redisReply *reply);
    void decide(redis_node &node, ngx_queue_t &which, bool durable);
    void free_undecided(redis_node &node);

    std::uint64_t timeout_;
    ngx_msec_t grace_;
    durability_settings durability_;
    redis_node *server_ = nullptr; /* or: */
    cluster_map *cluster_ = nullptr;
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

    bool stopping_ = false;
};

}
