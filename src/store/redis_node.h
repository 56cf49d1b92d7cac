#pragma once

#include "store/redis_link.h"

namespace idempotency {

class redis_store;
struct redis_node;


/* Claims that count when enough disks or replicas of a server have them. */
struct durable_claims {
    redis_link *link = nullptr; /* null: nothing is asked for */
    ngx_queue_t undecided = {};
    ngx_queue_t asked_for = {};
    bool is_asking = false;
    unsigned key_number = 0; /* of the key that is written, in a cluster */
    unsigned tries = 0;
    own_event event = {};

    struct : command {
        redis_store *owner;
        redis_node *node;
    } question = {};
};


/*
 * One server that has records, or one after the other in the same place, as a
 * worker sees it: its connections.  A cluster has several of them.
 */
struct redis_node {
    redis_node *next = nullptr;
    std::span<redis_link> all_links;
    std::span<redis_link> links; /* for records */
    durable_claims durable;

    /* Commands for one record use one connection, so they stay in order. */
    template <class Name>
    redis_link &link_for(const Name &record) const
    {
        return links[record.back() % links.size()];
    }

    /* The links, of which the last may have no records. */
    void take(std::span<redis_link> made, const redis_settings &settings);

    void start(redis_store &owner, ngx_event_handler_pt on_undecided);
    void stop();

    /* All of its memory is there and can be used. */
    bool is_sound() const;

    /* Nothing is on its way. */
    bool is_idle() const;
};


/* How many links a node has, and what is particular to each. */
std::size_t links_of_node(const redis_settings &settings);
link_settings settings_of_link(const redis_settings &settings, std::size_t i);

}
