#pragma once

#include "store/redis_node.h"

namespace idempotency {

class cluster_map;


/* Who uses a cluster: a store. */
class cluster_owner {
public:
    /* Some slots have another master, or none. */
    virtual void slots_moved() = 0;

    /* A server that is in use may lack records of the slots it has got. */
    virtual void memory_in_doubt(redis_link &link) = 0;

    virtual void node_added(redis_node &node) = 0;

    /* Its links have stopped; nothing may refer to them after this. */
    virtual void node_gone(redis_node &node) = 0;

    /* Nobody tells where the slots are, or somebody does again. */
    virtual void slots_unknown(const ngx_str_t &server, const char *why,
                               ngx_err_t err) = 0;
    virtual void slots_known(const ngx_str_t &server) = 0;

protected:
    ~cluster_owner() = default;
};


/* The route to one node, as long as it is one. */
class node_route final : public redis_route {
public:
    node_route(cluster_map &map, const redis_node &node,
               const server_location &server, ngx_msec_t patience)
        : map_(map), node_(node), server_(server), inner_(server, patience)
    {}

    void find(route_user &user, unsigned failures) override;
    void cancel() override { inner_.cancel(); }
    const ngx_str_t &name() const override { return server_.name; }
    bool serves(std::uint16_t slot) const override;
    bool serves_any() const override;

private:
    cluster_map &map_;
    const redis_node &node_;
    const server_location &server_;
    single_server_route inner_;
};


struct cluster_node final : redis_node {
    named_server server;
    std::size_t slots = 0;
    bool is_counted = false; /* by master() */

    /* Another node has sent us here; it may get slots. */
    bool is_guest = false;
    ngx_msec_t guest_until = 0;

    /* It has no slots any more; what is on its way is waited for. */
    bool is_leaving = false;
    ngx_msec_t leaves_at = 0;

    bool may_lack = false; /* records of slots that it has just got */
};


/* The route to one after the other of the nodes that can be asked. */
class asking_route final : public redis_route {
public:
    asking_route(cluster_map &map, const server_location &first,
                 ngx_msec_t patience)
        : map_(map), inner_(first, patience), current_(&first)
    {}

    void find(route_user &user, unsigned failures) override;
    void cancel() override { inner_.cancel(); }
    const ngx_str_t &name() const override { return current_->name; }

    /* The host of the node that is asked. */
    std::string_view host() const;

private:
    cluster_map &map_;
    single_server_route inner_;
    named_server named_;
    const server_location *current_;
};


/*
 * Which node of a cluster has which slots, in one worker, and the nodes
 * themselves.  One node at a time is asked for all of it: at first, every 30
 * seconds, when a node says that a slot is elsewhere, and when one is lost.
 * Only masters with slots are connected to, and those that another node has
 * sent us to.
 */
class cluster_map final : private link_owner {
public:
    cluster_map(const redis_settings &settings, cluster_owner &owner,
                link_owner &links);

    cluster_map(const cluster_map &) = delete;
    cluster_map &operator=(const cluster_map &) = delete;

    void start();
    void stop();
    void free_nodes();

    /* Null: nobody has it, as far as is known. */
    cluster_node *node_of(std::uint16_t slot) const { return slots_[slot]; }

    /* All of them, also those that leave. */
    redis_node *first() const { return nodes_; }

    /* The masters in the order of their slots; null: no more. */
    redis_node *master(std::size_t index);

    /* Leads nowhere: for what has no node. */
    redis_link &nowhere() { return nowhere_; }

    /* It is not known yet where the slots are, but it may be soon. */
    bool is_learning() const;

    /* Nobody has told where the slots are. */
    bool is_lost() const { return is_lost_; }

    void refresh();

    /* The node that was asked may not know what has changed. */
    void ask_another();

    /* A node has sent a command elsewhere.  Null: no memory. */
    redis_node *follow(const redirection &to, const redis_link &said_by);

    /* For the routes. */
    const server_location *next_seed(bool failed, server_address &node);
    const server_location &common() const { return settings_.server; }

private:
    void link_up(redis_link &link) override;
    void link_down(redis_link &link, const char *why, ngx_err_t err) override;

    /* redis_cluster.cpp: what is asked, and what the answer means */
    static void on_tick(ngx_event_t *event);
    static void answered(command &c, const redisReply *reply, unanswered why);

    void ask();
    void ask_later();
    void change_node();
    void report_lost();
    void cannot_tell(std::string_view said);
    bool take(const redisReply &reply);
    void take_range(const slot_range &range, std::span<bool> seen);
    void count_slots();

    /* redis_cluster_nodes.cpp: nodes come and go */
    static void on_sweep(ngx_event_t *event);

    void assign(std::uint16_t slot, cluster_node *node);
    void inherit(cluster_node &node, const cluster_node *from);
    void slots_assigned();
    cluster_node *find_node(const server_address &where);
    cluster_node *add_node(const server_address &where);
    void let_go();
    void try_out(cluster_node &node);
    void sweep();
    void free_node(cluster_node &node);
    bool any_down() const;

    redis_settings settings_;
    cluster_owner &owner_;
    link_owner &links_; /* the owner of the nodes' links */

    asking_route route_;
    redis_link link_;
    redis_link nowhere_;
    std::size_t next_ = 0;  /* who is asked next */
    std::size_t tries_ = 0; /* since somebody has told */

    struct : command {
        cluster_map *map;
    } question_ = {};
    bool is_asking_ = false;
    bool ask_again_ = false;
    ngx_msec_t asked_at_ = 0;
    ngx_msec_t distrusted_at_ = 0;
    own_event tick_ = {};
    bool is_stopping_ = false;

    bool is_known_ = false; /* where the slots are */
    bool is_lost_ = false;
    bool was_lost_ = false; /* before it was known for the first time */
    error_text why_;
    ngx_err_t err_ = 0;
    std::array<cluster_node *, slot_count> slots_ = {};
    bool has_changed_ = false;
    std::size_t uncovered_ = 0;
    time_t next_warning_ = 0;

    redis_node *nodes_ = nullptr;
    own_event sweep_ = {};
};

}
