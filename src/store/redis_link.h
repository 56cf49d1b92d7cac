#pragma once

#include "ngx.h"
#include "store/redis_command.h"
#include "store/redis_gate.h"
#include "store/redis_greeting.h"
#include "store/redis_load.h"
#include "store/redis_output.h"
#include "store/redis_route.h"

namespace idempotency {

class redis_link;
struct redis_node;


/* What is known of the memory of a server before it is connected to. */
enum class memory_doubt : std::uint8_t {
    none,
    if_promoted, /* it may have been a replica */
    always,
};


/* The owner of links: a store, or whoever only asks. */
class link_owner {
public:
    virtual void link_up(redis_link &link) = 0;
    virtual void link_down(redis_link &link, const char *why,
                           ngx_err_t err) = 0;

    /*
     * The server is not the one it was, or has restarted: it may have lost
     * records.  Nothing was sent to it yet.
     */
    virtual void memory_lost(redis_link &) {}

    /* The server is slower than the load, or no longer. */
    virtual void link_overloaded(redis_link &) {}
    virtual void link_recovered(redis_link &) {}

    /* The server may remove keys that have not expired. */
    virtual void server_evicts(redis_link &, std::string_view) {}

    /* Whether administrators list its records; and the server does not. */
    virtual bool lists_records() const { return false; }
    virtual void server_lists_nothing(redis_link &, const char *) {}

protected:
    ~link_owner() = default;
};


/*
 * One connection to one server, which lasts as long as the worker and
 * reconnects by itself.  It uses nginx's events, timers and TLS, and the reply
 * parser of hiredis.  A route says where the server is.  Commands of one
 * iteration of the event loop are sent together, and replies are matched to
 * commands in order.  When the server neither reads nor writes for longer than
 * the timeout, the connection is closed and all commands in flight fail:
 * replies are never skipped.
 *
 * After such a timeout, or a failed attempt to connect, the link is down: it
 * accepts no commands until an attempt succeeds.
 */
class redis_link final : private route_user {
public:
    redis_link(const link_settings &settings, redis_route &route,
               link_owner &owner)
        : settings_(settings), route_(route), owner_(owner),
          load_(settings.timeout)
    {}

    redis_link(const redis_link &) = delete;
    redis_link &operator=(const redis_link &) = delete;

    void start();
    void stop();

    /* Instead of start(): it leads nowhere. */
    void stay_down();

    /* The server has taken the place of another. */
    void inherit(memory_doubt doubt);

    /* Opens it again if it was closed because it was idle. */
    void wake();

    bool usable() const { return !down_; }

    /* The server keeps up with the load: a claim can be sent. */
    bool keeps_up();

    /* It is even idle enough for what has time. */
    bool has_time();

    /* There are so many commands or bytes on their way that no more may be. */
    bool is_full() const;

    /* The server is known to understand SET with NX and GET. */
    bool knows_set_get() const { return greeting_.knows_set_get(); }
    bool is_untried() const { return greeting_.is_untried(); }
    bool has_no_aof() const { return greeting_.has_no_aof(); }
    void forget_set_get() { greeting_.forget_set_get(); }

    const ngx_str_t &name() const { return route_.name(); }
    bool is_idle() const { return !busy(); }
    bool is_ready() const { return state_ == state::ready; }

    /* Which connection this is: another number, another connection. */
    ngx_uint_t times_opened() const { return times_opened_; }

    /* Both are connected to the same process. */
    bool has_same_server(const redis_link &other) const;

    /* As far as is known, it was a replica of the other's server. */
    bool was_replica_of(const redis_link &other) const
    {
        return greeting_.was_replica_of(other.identity_);
    }

    bool is_confirmed() const { return route_.is_confirmed(); }
    bool has_moved() const { return is_ready() && route_.has_moved(); }
    std::uint64_t server_time() const { return greeting_.server_time(); }

    /* When the server that may have lost its memory, or has not, was there. */
    ngx_msec_t last_there() const
    {
        return is_ready() && !gate.closed ? ngx_current_msec : lost_at_;
    }

    /* When it was connected, the server refused writes. */
    bool was_refused() const { return greeting_.writes_refused(); }
    void forget_refusal() { greeting_.forget_refusal(); }

    /* To send a command: begin(), add the arguments to the output, end(). */
    redis_output &begin(command &c, unsigned arguments);
    void end(command &c);

    /* The same; asking: the node is about to get the slot of this command. */
    redis_output &begin(command &c, unsigned arguments, bool asking);

    /* Between the two: begins another command that belongs to it. */
    redis_output &begin_next(command &c, unsigned arguments);

    /* A part of a command has moved; its old memory is about to be freed. */
    void part_moved(bytes from, const std::uint8_t *to);

    /* The server cannot be used: close the connection and retry later. */
    void give_up(const char *why);

    /* Close the connection and open the next one at once. */
    void reconnect(const char *why);

    /* The owner's. */
    link_gate gate;
    redis_node *node = nullptr;

private:
    enum class state : std::uint8_t {
        closed,
        routing,
        connecting,
        greeting,
        ready,
    };

    /* redis_link.cpp: the life of a connection */
    static redis_link *of(ngx_event_t *event);
    static void on_retry(ngx_event_t *event);
    static void on_tls(ngx_connection_t *c);

    void open();
    void route_found(const endpoint &where) override;
    void route_failed(const char *why) override;
    bool prepare(ngx_connection_t *c);
    void connected();
    void greet();
    void opened();
    bool may_have_lost_memory() const;
    void quieten_log();
    void fail(const char *why, ngx_err_t err, bool down);
    void fail_waiting();
    void answer_all(unanswered (*why)(const command &, std::uint64_t sent));
    void try_later();
    void close(bool reset);

    /* redis_traffic.cpp: commands out, replies in */
    static void on_flush(ngx_event_t *event);
    static void on_write(ngx_event_t *event);
    static void on_read(ngx_event_t *event);

    void flush();
    void read();
    bool parse();
    bool take(owned_reply reply);
    bool take_answer(owned_reply reply);
    bool was_sent(const command &c) const;
    void drained();
    std::uint64_t first_command_end() const;
    bool busy() const { return !ngx_queue_empty(&commands_); }
    command &first_command() const;

    /* redis_deadlines.cpp: in time or not, too much or not, alive or not */
    static void on_deadline(ngx_event_t *event);
    static void on_idle(ngx_event_t *event);
    static void check_answered(command &c, const redisReply *reply,
                               unanswered why);

    void arm();
    bool next_deadline(ngx_msec_t &deadline);
    ngx_msec_t patience() const;
    std::uint64_t bytes_in_flight() const;
    void check_deadlines();
    void tell_overdue();
    bool is_late() const;
    void report_load();
    void check_later();
    void check();

    link_settings settings_;
    redis_route &route_;
    link_owner &owner_;

    state state_ = state::closed;
    bool down_ = false;
    unsigned failures_ = 0; /* in a row */
    time_t next_warning_ = 0;

    ngx_log_t log_ = {};
    tls_name certificate_ = {};
    ngx_connection_t *connection_ = nullptr;
    redis_greeting greeting_;
    ngx_uint_t times_opened_ = 0;
    ngx_msec_t lost_at_ = 0;
    server_identity identity_; /* of the last server that was */
    memory_doubt doubt_ = memory_doubt::none;

    ngx_queue_t commands_ = {};
    std::size_t in_flight_ = 0; /* commands */
    load_limit load_;
    bool said_overloaded_ = false;
    redis_output output_;
    redisReader *reader_ = nullptr;
    std::uint64_t unparsed_ = 0; /* bytes since the last reply */

    ngx_msec_t connect_deadline_ = 0;
    ngx_msec_t last_progress_ = 0; /* of the first command */
    bool timer_is_for_command_ = false;

    own_event flush_ = {};
    own_event deadline_ = {};
    own_event retry_ = {};

    /* Checks whether an idle connection still works. */
    struct : command {
        redis_link *link;
    } check_ = {};
    own_event idle_ = {};
};

}
