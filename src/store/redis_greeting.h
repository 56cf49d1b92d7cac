#pragma once

#include "store/redis_reply.h"
#include "store/redis_settings.h"

namespace idempotency {

/*
 * The first commands of a connection, all in one go: who we are, and what kind
 * of server this is.  Begins anew with each connection.
 */
class redis_greeting {
public:
    /* False: it could not be sent. */
    bool send(ngx_connection_t *c, const link_settings &settings);

    /* Null, or why the server is of no use. */
    const char *take(const redisReply &reply);
    bool is_complete() const { return answered_ == count_; }

    /* What the server said before it closed; null: nothing. */
    const char *first_error() const;
    void forget_error() { first_error_ = {}; }

    /* Milliseconds of Unix time by the server's clock, about. */
    std::uint64_t server_time() const;

    /* How it makes room for new keys; empty: it does not say. */
    std::string_view eviction_policy() const { return policy_.data(); }

private:
    enum class step : std::uint8_t { auth, select, name, time, role, memory };

    bool add(ngx_connection_t *c, step what,
             std::initializer_list<std::string_view> command);
    void take_time(const redisReply &reply);
    void take_memory(std::string_view info);

    std::array<step, 6> steps_ = {};
    unsigned count_ = 0;
    unsigned answered_ = 0;

    error_text first_error_;
    error_text refusal_;
    std::array<char, 32> policy_ = {};

    /* The server's clock, and ours at that moment; 0: not told. */
    std::uint64_t server_time_ = 0;
    ngx_msec_t server_time_read_at_ = 0;
};

}
