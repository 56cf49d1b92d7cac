#include "store/redis_cluster.h"

namespace idempotency {

namespace {

constexpr ngx_msec_t sweep_interval = 100;

/* A migration that goes on sends us there again. */
constexpr ngx_msec_t longest_visit = 60000;

cluster_node *node_at(redis_node *node);

}


void
node_route::find(route_user &user, unsigned failures)
{
    /* Perhaps another one has its slots by now. */
    if (failures != 0) {
        map_.refresh();
    }

    inner_.find(user, failures);
}


bool
node_route::serves(std::uint16_t slot) const
{
    return map_.node_of(slot) == &node_;
}


bool
node_route::serves_any() const
{
    return static_cast<const cluster_node &>(node_).slots != 0;
}


redis_node *
cluster_map::master(std::size_t index)
{
    for (redis_node *n = nodes_; n != nullptr; n = n->next) {
        node_at(n)->is_counted = false;
    }

    for (cluster_node *node : slots_) {
        if (node == nullptr || node->is_counted) {
            continue;
        }

        node->is_counted = true;

        if (index-- == 0) {
            return node;
        }
    }

    return nullptr;
}


redis_node *
cluster_map::follow(const redirection &to, const redis_link &said_by)
{
    auto &from = *node_at(said_by.node);
    server_address where = to.where;

    if (where.is_empty()) {
        where.host = from.server.where().host;
    }

    /* It says that it is elsewhere, and is right there. */
    if (!to.ask && where == from.server.where() && !from.is_leaving) {
        return &from;
    }

    cluster_node *node = find_node(where);

    if (node == nullptr) {
        node = add_node(where);
    }

    if (node == nullptr) {
        return nullptr;
    }

    if (to.ask) {
        node->is_guest = true;
        node->guest_until = ngx_current_msec + longest_visit;

    } else {
        assign(to.slot, node);
        slots_assigned();
        ask_another();
    }

    return node;
}


void
cluster_map::assign(std::uint16_t slot, cluster_node *node)
{
    cluster_node *before = slots_[slot];

    if (before == node) {
        return;
    }

    if (node != nullptr) {
        inherit(*node, before);
        node->slots++;
    }

    if (before != nullptr) {
        before->slots--;
    }

    slots_[slot] = node;
    has_changed_ = true;
}


/*
 * A slot that is moved takes its records along.  If the node that had it is
 * gone or has lost its memory, or the next one was its replica, records may be
 * missing.  Which one it was can be told of a node that is connected already:
 * its first slots may have come before these.
 */
void
cluster_map::inherit(cluster_node &node, const cluster_node *from)
{
    memory_doubt doubt = memory_doubt::if_promoted;

    if (!is_known_) {
        doubt = was_lost_ ? memory_doubt::always : memory_doubt::none;

    } else if (from == nullptr || !from->is_sound()) {
        doubt = memory_doubt::always;
    }

    for (redis_link &link : node.links) {
        if (!link.is_ready()) {
            link.inherit(doubt);

        } else if (doubt == memory_doubt::always
                   || (doubt == memory_doubt::if_promoted
                       && link.was_replica_of(from->links[0])))
        {
            node.may_lack = true;
        }
    }
}


void
cluster_map::slots_assigned()
{
    if (!has_changed_) {
        let_go();
        return;
    }

    has_changed_ = false;
    owner_.slots_moved();

    for (redis_node *n = nodes_; n != nullptr; n = n->next) {
        cluster_node *node = node_at(n);

        for (redis_link &link : node->links) {
            if (node->may_lack && link.is_ready() && settings_.reassert != 0) {
                owner_.memory_in_doubt(link);
            }
        }

        node->may_lack = false;
    }

    let_go();
}


/* One that leaves is not taken back: its memory may be another by now. */
cluster_node *
cluster_map::find_node(const server_address &where)
{
    for (redis_node *n = nodes_; n != nullptr; n = n->next) {
        cluster_node *node = node_at(n);

        if (!node->is_leaving && node->server.where() == where) {
            return node;
        }
    }

    return nullptr;
}


/* Null: no memory. */
cluster_node *
cluster_map::add_node(const server_address &where)
{
    std::size_t count = links_of_node(settings_);
    std::size_t size = sizeof(cluster_node)
                       + count * (sizeof(redis_link) + sizeof(node_route));
    void *memory = ngx_alloc(size, ngx_cycle->log);

    static_assert(alignof(redis_link) <= alignof(cluster_node)
                  && alignof(node_route) <= alignof(redis_link));

    if (memory == nullptr) {
        return nullptr;
    }

    auto *node = ::new (memory) cluster_node{};
    auto *links = reinterpret_cast<redis_link *>(node + 1);
    auto *routes = reinterpret_cast<node_route *>(links + count);

    node->server.set(where, settings_.server);

    for (std::size_t i = 0; i < count; i++) {
        auto *route = ::new (&routes[i])
            node_route(*this, *node, node->server.location(),
                       settings_.link.connect_timeout / 2 + 1);

        ::new (&links[i])
            redis_link(settings_of_link(settings_, i), *route, links_);
    }

    node->take({links, count}, settings_);
    node->next = nodes_;
    nodes_ = node;
    owner_.node_added(*node);

    return node;
}


/* Nodes without slots; their links finish what they have begun. */
void
cluster_map::let_go()
{
    for (redis_node *n = nodes_; n != nullptr; n = n->next) {
        cluster_node *node = node_at(n);

        try_out(*node);

        bool visits = node->is_guest && !is_due(node->guest_until);

        if (node->slots != 0 || visits || node->is_leaving) {
            continue;
        }

        node->is_leaving = true;
        node->leaves_at = ngx_current_msec + 2 * settings_.link.timeout;

        if (!sweep_.event.timer_set) {
            ngx_add_timer(&sweep_.event, sweep_interval);
        }
    }
}


/* What was first reached by ASK has slots by now: greet it again. */
void
cluster_map::try_out(cluster_node &node)
{
    for (redis_link &link : node.links) {
        if (node.slots != 0 && link.is_ready() && link.is_untried()
            && link.is_idle()) {
            link.reconnect("it was not tried out yet");
        }
    }
}


void
cluster_map::on_sweep(ngx_event_t *event)
{
    own_event::owner_of<cluster_map>(event)->sweep();
}


void
cluster_map::sweep()
{
    redis_node **at = &nodes_;
    bool more = false;

    while (*at != nullptr) {
        cluster_node *node = node_at(*at);

        if (!node->is_leaving
            || (!node->is_idle() && !is_due(node->leaves_at))) {
            more = more || node->is_leaving;
            at = &node->next;
            continue;
        }

        /* A callback may add one, at the head of the list. */
        *at = node->next;
        free_node(*node);
        at = &nodes_;
    }

    if (more) {
        ngx_add_timer(&sweep_.event, sweep_interval);
    }
}


/* What is still on its way gets no reply, and looks for its slot. */
void
cluster_map::free_node(cluster_node &node)
{
    node.stop();
    owner_.node_gone(node);
    ngx_free(&node);
}


/* When nothing refers to them any more. */
void
cluster_map::free_nodes()
{
    while (nodes_ != nullptr) {
        redis_node *next = nodes_->next;

        ngx_free(node_at(nodes_));
        nodes_ = next;
    }
}


bool
cluster_map::any_down() const
{
    for (redis_node *n = nodes_; n != nullptr; n = n->next) {
        for (const redis_link &link : n->links) {
            if (!link.is_ready()) {
                return true;
            }
        }
    }

    return false;
}


namespace {

cluster_node *
node_at(redis_node *node)
{
    return static_cast<cluster_node *>(node);
}

}

}
