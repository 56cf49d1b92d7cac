#pragma once

#include "store/redis_link.h"

namespace idempotency {

/* A server as a Sentinel names it; empty: it has named none. */
using master_address = server_address;


/* Who wants to know what the Sentinels say: a route. */
class sentinel_asker {
public:
    struct waiting {
        ngx_queue_t queue;
        sentinel_asker *asker;
    };

    waiting place = {};

    virtual void master_named(const master_address &master) = 0;
    virtual void no_master_named(const char *why) = 0;

protected:
    ~sentinel_asker() = default;
};


class sentinel_owner {
public:
    /* A majority may name another master than before. */
    virtual void masters_named() = 0;

protected:
    ~sentinel_owner() = default;
};


/*
 * The Sentinels of one store, in one worker.  Each has a connection and is
 * asked at every check which server is the master.  What one of them has said
 * counts until it says something else, for three checks at most.
 */
class sentinel_group final : private link_owner {
public:
    struct member {
        redis_link *link;
        master_address named;
        ngx_msec_t asked_at;
        bool has_answered; /* within the last checks, even if with nothing */

        /* The question under way. */
        struct : command {
            sentinel_group *group;
            member *from;
        } question;
        bool is_asked;
        ngx_msec_t question_at;
    };

    sentinel_group(const sentinel_settings &settings, sentinel_owner &owner,
                   std::span<member> members)
        : settings_(settings), owner_(owner), members_(members)
    {}

    /* Null: no memory. */
    static sentinel_group *make(ngx_conf_t *cf,
                                const sentinel_settings &settings,
                                sentinel_owner &owner);

    void start();
    void stop();

    /* Answers inside this call or later, or never after cancel(). */
    void ask(sentinel_asker &asker, unsigned failures);
    void cancel(sentinel_asker &asker);

    /* A majority of all Sentinels says so, and has said so lately. */
    bool confirms(const master_address &master) const;

    /* A majority names another one. */
    bool denies(const master_address &master) const;

    const sentinel_settings &settings() const { return settings_; }

private:
    void link_up(redis_link &link) override;
    void link_down(redis_link &link, const char *why, ngx_err_t err) override;

    static void on_check(ngx_event_t *event);
    static void answered(command &c, const redisReply *reply, unanswered why);

    void ask_all();
    void ask_member(member &m);
    void take(member &m, const redisReply &reply);
    void say_unknown(const member &m, const char *why);
    void settle_askers();
    bool is_waiting() const;
    bool counts(const member &m) const;
    std::size_t votes_for(const master_address &master) const;
    std::size_t majority() const { return members_.size() / 2 + 1; }
    const master_address *choose(unsigned failures) const;
    const char *why_none() const;

    sentinel_settings settings_;
    sentinel_owner &owner_;
    std::span<member> members_;

    ngx_queue_t askers_ = {};
    unsigned failures_ = 0; /* of who asks */
    bool is_stopping_ = false;
    time_t next_warning_ = 0;
    own_event check_ = {};
};


/* The route to the master that Sentinels name. */
class sentinel_route final : public redis_route, private sentinel_asker {
public:
    sentinel_route(sentinel_group &group, const server_location &server,
                   ngx_msec_t patience)
        : group_(group), server_(server), inner_(server, patience),
          name_(group.settings().service)
    {}

    void find(route_user &user, unsigned failures) override;
    void cancel() override;
    const ngx_str_t &name() const override { return name_; }
    bool is_confirmed() const override { return group_.confirms(master_); }
    bool has_moved() const override { return group_.denies(master_); }

private:
    void master_named(const master_address &master) override;
    void no_master_named(const char *why) override;
    void set_name();

    sentinel_group &group_;
    server_location server_; /* what all masters have in common */
    single_server_route inner_;

    route_user *user_ = nullptr;
    unsigned failures_ = 0;
    bool is_asking_ = false;

    master_address master_;
    named_server named_;
    std::array<u_char, 512> name_text_ = {};
    ngx_str_t name_;
};

}
