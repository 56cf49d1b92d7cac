#pragma once

#include "ngx.h"

#include <hiredis/hiredis.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace idempotency {

using bytes = std::span<const std::uint8_t>;


/* Where a server is and how it lets us in. */
struct link_settings {
    ngx_str_t name; /* for the log: nothing secret */
    ngx_addr_t *addresses;
    ngx_uint_t address_count;

    /* A name that may get other addresses; empty: there is none. */
    ngx_str_t host;
    in_port_t port;
    const ngx_http_core_loc_conf_t *core; /* its resolver */

    ngx_str_t user;
    ngx_str_t password;
    ngx_str_t db;
    ngx_msec_t timeout;
    ngx_msec_t connect_timeout;

    ngx_ssl_t *ssl;     /* null: plain */
    ngx_str_t tls_name; /* with a zero behind it */
    bool tls_address;   /* that is an address, not a name */
    bool tls_verify;
};


/* What is known of a command that was not answered. */
enum class unanswered : std::uint8_t {
    not_sent, /* it surely had no effect */
    lost,     /* it may have had one, or may yet have */
};


/*
 * A command on its way.  It belongs to the caller, who keeps it until it is
 * answered; its bytes belong to the link, but for large parts of it.
 */
struct command {
    ngx_queue_t queue;
    std::uint64_t begin; /* in all that was ever to be sent */
    ngx_msec_t deadline;
    bool told; /* that it is late */

    /* An error of the server is a reply; no reply: see why. */
    void (*answered)(command &, const redisReply *reply, unanswered why);

    /* It takes longer than it may; it may yet be answered. */
    void (*slow)(command &);
};


inline command &
command_at(ngx_queue_t *q)
{
    return *ngx_queue_data(q, command, queue);
}


class redis_link;


/* Who has links: a store, which may have one per server. */
class link_owner {
public:
    virtual void link_up(redis_link &link) = 0;
    virtual void link_down(redis_link &link, const char *why,
                           ngx_err_t err) = 0;

    /* What the server says of itself: see greeting in redis_link.cpp. */
    virtual void server_evicts(redis_link &link, std::string_view policy) = 0;

protected:
    ~link_owner() = default;
};


/*
 * One connection to one server, kept for the life of the worker: nginx's
 * events, timers and TLS below, hiredis' reader above.  Commands of one turn
 * of the event loop leave together, replies are matched in order.  When the
 * server neither reads nor writes for longer than the timeout the connection
 * is given up, with all that is in flight: replies are never skipped.
 *
 * After such a timeout, or a failed attempt to connect, the link is down: it
 * takes no commands until an attempt succeeds.
 */
class redis_link {
public:
    redis_link(const link_settings &settings, link_owner &owner)
        : settings_(settings), owner_(owner)
    {}

    redis_link(const redis_link &) = delete;
    redis_link &operator=(const redis_link &) = delete;

    void start();
    void stop();

    bool usable() const { return !down_; }
    const ngx_str_t &name() const { return settings_.name; }

    /* Milliseconds of Unix time by the server's clock, about. */
    std::uint64_t server_time() const;

    /*
     * begin(), as many arguments as said, end().  A large argument is given
     * in parts, which stay where they are until the command is answered.
     */
    void begin(command &c, unsigned arguments);
    void add(std::string_view text);
    void add_size(std::size_t size);
    void add_part(bytes part);
    void end(command &c);

    /* A part has moved, and its old place is no more. */
    void part_moved(bytes from, const std::uint8_t *to);

    /* The server is of no use: close, and try again later. */
    void give_up(const char *why);

    /* SET NX GET is younger than Redis itself. */
    bool needs_claim_script = false;

private:
    enum class state : std::uint8_t {
        closed,
        resolving,
        connecting,
        greeting,
        ready,
    };

    enum class step : std::uint8_t { auth, select, name, time, role, memory };

    struct segment;
    struct address {
        ngx_sockaddr_t sockaddr;
        socklen_t length;
    };

    static redis_link *of(ngx_event_t *event);
    static void on_read(ngx_event_t *event);
    static void on_write(ngx_event_t *event);
    static void on_flush(ngx_event_t *event);
    static void on_deadline(ngx_event_t *event);
    static void on_retry(ngx_event_t *event);
    static void on_resolved(ngx_resolver_ctx_t *ctx);
    static void on_tls(ngx_connection_t *c);

    void open();
    bool resolve();
    void take_addresses(const ngx_resolver_ctx_t *ctx);
    void connect();
    void connected();
    void start_tls();
    bool is_for_name();
    const char *check_certificate();
    void greet();
    bool add_step(step what, std::span<const std::string_view> arguments);
    const char *take_greeting(const redisReply &reply);
    const char *take_role(const redisReply &reply);
    void take_time(const redisReply &reply);
    void take_memory(std::string_view info);
    void opened();

    void flush();
    void read();
    bool parse();
    bool take(const redisReply &reply);
    void drained();
    std::uint64_t head_end() const;

    segment *make_segment(std::size_t room);
    void append(std::string_view text);
    void free_until(ngx_chain_t *rest);

    void hush();
    ngx_msec_t patience() const;
    bool next_due(ngx_msec_t &due);
    void arm();
    void overdue();
    void tell_slow();
    void fail(const char *why, ngx_err_t err, bool down);
    void answer_all(unanswered (*why)(const command &, std::uint64_t written));
    void fail_waiting();
    void try_later();
    void close(bool reset);
    bool busy() const { return !ngx_queue_empty(&commands_); }

    link_settings settings_;
    link_owner &owner_;

    state state_ = state::closed;
    bool down_ = false;
    bool starved_ = false; /* no memory for a command */
    unsigned attempts_ = 0;
    ngx_msec_t connect_deadline_ = 0;
    ngx_msec_t progress_ = 0;  /* of the command that is next to be answered */
    bool for_command_ = false; /* the timer is for a command's deadline */
    time_t next_complaint_ = 0;

    ngx_log_t log_ = {};
    ngx_peer_connection_t peer_ = {};
    ngx_connection_t *connection_ = nullptr;
    redisReader *reader_ = nullptr;
    std::uint64_t unparsed_ = 0; /* bytes since the last reply */
    ngx_resolver_ctx_t *resolving_ = nullptr;
    std::array<address, 8> found_ = {}; /* what the name has become */
    ngx_uint_t found_count_ = 0;

    ngx_queue_t commands_ = {};
    ngx_chain_t *out_ = nullptr;
    segment *tail_ = nullptr;
    segment *spare_ = nullptr;
    std::uint64_t appended_ = 0;
    std::uint64_t written_ = 0;

    std::array<step, 6> greeting_ = {};
    unsigned greeting_size_ = 0;
    unsigned greeted_ = 0;
    char complaint_[256] = {}; /* the first error in it */

    std::uint64_t server_time_ = 0; /* when it was asked: */
    ngx_msec_t server_asked_ = 0;

    own_event flush_ = {};
    own_event deadline_ = {};
    own_event retry_ = {};
};

}
