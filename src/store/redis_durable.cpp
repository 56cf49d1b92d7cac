#include "store/redis_store.h"

namespace idempotency {

namespace {

/* A node with a single slot is found in time. */
constexpr std::size_t most_key_tries = 200000;
constexpr unsigned most_durable_tries = 5;

operation &operation_at(ngx_queue_t *q);
bool is_number(const redisReply &reply, ngx_uint_t least);

}


bool
redis_store::wants_durable() const
{
    return durability_.what != durability_settings::kind::none;
}


bool
redis_store::can_ask_durable(const redis_link &link) const
{
    return !wants_durable() || link.node == nullptr
           || link.node->durable.link->usable();
}


/*
 * The server has the claim.  All claims of one turn of the event loop are
 * asked for together, and no two questions are on their way: what is granted
 * meanwhile is the next one's.
 */
void
redis_store::wait_until_durable(operation &op)
{
    durable_claims &durable = op.link->node->durable;

    op.granted_by = op.link->times_opened();
    ngx_queue_insert_tail(&durable.undecided, &op.command::queue);

    if (!durable.event.event.posted) {
        ngx_post_event(&durable.event.event, &ngx_posted_events);
    }
}


void
redis_store::on_undecided(ngx_event_t *event)
{
    auto &question = *own_event::owner_of<decltype(durable_claims::question)>(
        event);

    question.owner->ask_durable(*question.node);
}


void
redis_store::ask_durable(redis_node &node)
{
    durable_claims &durable = node.durable;
    u_char room[longest_prefix + sizeof("durable:asked:") + NGX_INT_T_LEN];
    std::string_view key;

    if (durable.is_asking || ngx_queue_empty(&durable.undecided)) {
        return;
    }

    if (!durable.link->usable() || !find_durable_key(node, room, key)) {
        decide(node, durable.undecided, false);
        return;
    }

    ngx_queue_add(&durable.asked_for, &durable.undecided);
    ngx_queue_init(&durable.undecided);

    durable.is_asking = true;
    durable.question.answered = durable_answered;
    durable.question.overdue = [](command &) {};
    commands_.ask_durable(*durable.link, durable.question, durability_, key,
                          is_guest(node));
}


/* One that was only asked while a slot moves may have none. */
bool
redis_store::is_guest(const redis_node &node) const
{
    return cluster_ != nullptr
           && static_cast<const cluster_node &>(node).slots == 0;
}


/*
 * In a cluster it has to be one of the node's own, or, if it has none yet, in
 * the slot that moves there: with another name, as the node that has the slot
 * could not move its own key to a place that is taken.
 */
bool
redis_store::find_durable_key(redis_node &node, u_char *room,
                              std::string_view &key)
{
    const ngx_str_t &prefix = commands_.prefix();
    unsigned &number = node.durable.key_number;
    bool guest = is_guest(node);
    std::uint16_t moves =
        operation_at(ngx_queue_head(&node.durable.undecided)).slot;

    for (std::size_t tries = 0; tries < most_key_tries; tries++) {
        u_char *end = cluster_ == nullptr
                          ? ngx_sprintf(room, "%Vdurable", &prefix)
                          : ngx_sprintf(room, "%Vdurable:%s%ud", &prefix,
                                        guest ? "asked:" : "", number);

        key = {reinterpret_cast<char *>(room),
               static_cast<std::size_t>(end - room)};

        std::uint16_t slot = slot_of(key);

        if (cluster_ == nullptr
            || (guest ? slot == moves : cluster_->node_of(slot) == &node))
        {
            return true;
        }

        number++;
    }

    return false;
}


void
redis_store::durable_answered(command &c, const redisReply *reply, unanswered)
{
    auto &question = static_cast<decltype(durable_claims::question) &>(c);
    redis_store &self = *question.owner;
    redis_node &node = *question.node;

    node.durable.is_asking = false;

    if (self.stopping_) {
        return;
    }

    if (!self.ask_elsewhere(node, reply)) {
        self.decide(node, node.durable.asked_for,
                    self.is_durable(node, reply));
    }

    self.ask_durable(node);
}


/* The slot of the key is on its way to another node: take another key. */
bool
redis_store::ask_elsewhere(redis_node &node, const redisReply *reply)
{
    durable_claims &durable = node.durable;
    redirection to;

    if (cluster_ == nullptr || reply == nullptr
        || !read_redirection(text_of(*durable.question.earlier), to)
        || ++durable.tries > most_durable_tries)
    {
        durable.tries = 0;
        return false;
    }

    durable.key_number++;
    cluster_->refresh();
    ngx_queue_add(&durable.undecided, &durable.asked_for);
    ngx_queue_init(&durable.asked_for);

    return true;
}


bool
redis_store::is_durable(redis_node &node, const redisReply *reply)
{
    const durability_settings &wanted = durability_;
    redis_link &link = *node.durable.link;

    if (reply == nullptr) {
        return false;
    }

    for (const redisReply *any :
         {static_cast<const redisReply *>(node.durable.question.earlier),
          reply})
    {
        if (any->type == REDIS_REPLY_ERROR) {
            refused(link, *any);
            return false;
        }
    }

    bool durable = wanted.what == durability_settings::kind::replicas
                       ? is_number(*reply, wanted.replicas)
                       : reply->type == REDIS_REPLY_ARRAY
                             && reply->elements == 2
                             && is_number(*reply->element[0], 1)
                             && is_number(*reply->element[1], wanted.replicas);

    if (!durable) {
        health_.not_durable(link.name());
    }

    return durable;
}


/* The answer is about a claim whose link has led to the same server since. */
void
redis_store::decide(redis_node &node, ngx_queue_t &which, bool durable)
{
    ngx_queue_t all;

    if (ngx_queue_empty(&which)) {
        return;
    }

    ngx_queue_init(&all);
    ngx_queue_add(&all, &which);
    ngx_queue_init(&which);
    ngx_time_update();

    while (!ngx_queue_empty(&all)) {
        operation &op = operation_at(ngx_queue_head(&all));
        redis_link &link = *op.link;
        bool same = link.times_opened() == op.granted_by
                    && link.has_same_server(*node.durable.link);

        ngx_queue_remove(&op.command::queue);

        if (op.claimer == nullptr) {
            settle(return_claim(op, purpose::give_back), nullptr);

        } else if (!link.is_confirmed()) {
            health_.claim_not_confirmed(link.name());
            claim_too_late(op, claim_result::unreadable);

        } else if (durable && is_elsewhere(op)) {
            claim_at_home(op);

        } else if (durable && same
                   && !is_due(op.asked_at
                              + static_cast<ngx_msec_t>(op.whose.lease / 2)))
        {
            claim_counts(op);

        } else {
            claim_too_late(op, claim_result::unavailable);
        }
    }
}


void
redis_store::free_undecided(redis_node &node)
{
    for (ngx_queue_t *list :
         {&node.durable.undecided, &node.durable.asked_for}) {
        while (!ngx_queue_empty(list)) {
            operation &op = operation_at(ngx_queue_head(list));

            ngx_queue_remove(&op.command::queue);
            free_operation(&op);
        }
    }
}


namespace {

operation &
operation_at(ngx_queue_t *q)
{
    return static_cast<operation &>(command_at(q));
}


bool
is_number(const redisReply &reply, ngx_uint_t least)
{
    return reply.type == REDIS_REPLY_INTEGER && reply.integer >= 0
           && static_cast<ngx_uint_t>(reply.integer) >= least;
}

}

}
