#pragma once

#include "store/redis_reply.h"
#include "store/redis_route.h"

#include <cstdint>

namespace idempotency {

/*
 * Whose memory this is: the process, and the history of its data.  One of them
 * changes when a server restarts or fails over.
 */
struct server_identity {
    std::array<char, 41> process = {};
    std::array<char, 41> history = {};

    bool operator==(const server_identity &) const = default;

    bool is_known() const { return process[0] != '\0' || history[0] != '\0'; }
};


/*
 * The first commands on a new connection, sent at once: they log in, ask what
 * kind of server this is, and try out what the module needs of it.
 */
class redis_greeting {
public:
    /* False: it could not be sent. */
    bool send(ngx_connection_t *c, const link_settings &settings,
              const redis_route &route, bool lists);

    /* Null, or why the server cannot be used. */
    const char *take(const redisReply &reply);
    bool is_complete() const { return answered_ == count_; }

    /* An error that may explain why the server closes; null: none. */
    const char *first_error() const;
    void forget_error() { first_error_ = {}; }

    /* The server's clock: approximate Unix time in milliseconds. */
    std::uint64_t server_time() const;

    /* Also learns the time from a later TIME command. */
    void take_time(const redisReply &reply);

    /*
     * SET with NX and GET did what the module relies on: Redis 7 and newer.
     * Older servers reject it, and others might do something else.
     */
    bool knows_set_get() const { return knows_set_get_; }
    void forget_set_get() { knows_set_get_ = false; }

    /* The server had no slots yet, so it could not be tried out. */
    bool is_untried() const { return is_untried_; }

    const server_identity &identity() const { return identity_; }

    /* It refuses writes, at least for now. */
    bool writes_refused() const { return writes_refused_; }
    void forget_refusal() { writes_refused_ = false; }

    /* It was a replica once, or does not say so. */
    bool was_promoted() const;

    /* The same, of a server with this history. */
    bool was_replica_of(const server_identity &master) const;

    /* The server's maxmemory-policy; empty: not known. */
    std::string_view eviction_policy() const { return policy_.data(); }

    /* Why it cannot list its keys for administrators; null: it can. */
    const char *list_refusal() const;

    /* It is known to have no append-only file. */
    bool has_no_aof() const { return aof_[0] == '0'; }

private:
    enum class step : std::uint8_t {
        auth,
        select,
        name,
        time,
        role,
        memory,
        process,
        replication,
        persistence,
        scripts,     /* may this user run the scripts? */
        set_get,     /* is SET with NX and GET as it should be? */
        scripts_end, /* did it leave the key as it was? */
        list,        /* may this user SCAN? */
        durable,     /* can it be asked what is durable? */
    };

    bool add(ngx_connection_t *c, step what,
             std::initializer_list<std::string_view> command);
    bool log_in(ngx_connection_t *c, const link_settings &settings);
    bool try_out(ngx_connection_t *c, const link_settings &settings,
                 const redis_route &route);
    bool try_durable(ngx_connection_t *c, const link_settings &settings);
    const char *take_error(step what, const redisReply &reply);

    std::array<step, 14> steps_ = {};
    unsigned count_ = 0;
    unsigned answered_ = 0;

    error_text first_error_;
    error_text refusal_;
    error_text list_refusal_;
    std::array<char, 32> policy_ = {};
    std::array<char, 2> aof_ = {};
    server_identity identity_;
    std::array<char, 41> past_ = {}; /* the history that it has copied */
    bool in_cluster_ = false;
    bool is_untried_ = false;
    bool knows_set_get_ = false;
    bool writes_refused_ = false;

    /* The server's clock, and ours at that moment; 0: not known. */
    std::uint64_t server_time_ = 0;
    ngx_msec_t server_time_read_at_ = 0;
};

}
