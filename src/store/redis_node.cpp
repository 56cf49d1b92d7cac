#include "store/redis_node.h"

#include <algorithm>

namespace idempotency {

/* WAIT blocks its connection, so it has one of its own. */
std::size_t
links_of_node(const redis_settings &settings)
{
    bool durable = settings.durability.what != durability_settings::kind::none;

    return settings.connections + (durable ? 1 : 0);
}


link_settings
settings_of_link(const redis_settings &settings, std::size_t i)
{
    link_settings how = settings.link;

    /* The last one has no records. */
    if (i == settings.connections) {
        how.asks_for = settings.durability.what;
        how.puts_back = false;
    }

    return how;
}


void
redis_node::take(std::span<redis_link> made, const redis_settings &settings)
{
    all_links = made;
    links = made.first(settings.connections);

    if (made.size() > settings.connections) {
        durable.link = &made.back();
    }

    for (redis_link &link : made) {
        link.node = this;
    }
}


void
redis_node::start(redis_store &owner, ngx_event_handler_pt on_undecided)
{
    ngx_queue_init(&durable.undecided);
    ngx_queue_init(&durable.asked_for);
    durable.event.init(&durable.question, on_undecided, ngx_cycle->log);
    durable.question.owner = &owner;
    durable.question.node = this;

    for (redis_link &link : all_links) {
        link.start();
    }
}


void
redis_node::stop()
{
    durable.event.stop();

    for (redis_link &link : all_links) {
        link.stop();
    }
}


bool
redis_node::is_sound() const
{
    return std::all_of(links.begin(), links.end(), [](const redis_link &link) {
        return link.is_ready() && !link.gate.closed;
    });
}


bool
redis_node::is_idle() const
{
    return ngx_queue_empty(&durable.undecided)
           && ngx_queue_empty(&durable.asked_for)
           && std::all_of(
               all_links.begin(), all_links.end(),
               [](const redis_link &link) { return link.is_idle(); });
}

}
