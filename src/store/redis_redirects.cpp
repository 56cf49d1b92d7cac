#include "store/redis_errors.h"
#include "store/redis_store.h"

namespace idempotency {

namespace {

constexpr unsigned most_hops = 5;

}


redis_link &
redis_store::home_of(const record_id &name)
{
    return home_of(name, cluster_ != nullptr ? commands_.slot(name) : 0);
}


redis_link &
redis_store::home_of(const record_id &name, std::uint16_t slot)
{
    if (cluster_ == nullptr) {
        return server_->link_for(name);
    }

    redis_node *node = cluster_->node_of(slot);

    return node != nullptr ? node->link_for(name) : cluster_->nowhere();
}


/* It has no place yet, but may have one soon. */
bool
redis_store::is_learning(const redis_link &link) const
{
    return cluster_ != nullptr && &link == &cluster_->nowhere()
           && cluster_->is_learning();
}


void
redis_store::go_home(operation &op)
{
    redis_link &home = home_of(op.whose.name, op.slot);

    op.is_asking = false;

    if (op.link != &home) {
        op.move_to(home);
    }
}


void
redis_store::put_off(operation &op)
{
    go_home(op);
    late_.put_off(op);
}


/* What waits here, waits for the node that has its slot now. */
void
redis_store::slots_moved()
{
    late_.each([this](operation &op) { go_home(op); });

    for (ngx_queue_t *q = ngx_queue_head(&held_);
         q != ngx_queue_sentinel(&held_); q = ngx_queue_next(q))
    {
        go_home(static_cast<operation &>(command_at(q)));
    }

    arm_gate();
}


void
redis_store::memory_in_doubt(redis_link &link)
{
    bool refuses = link.gate.refuses;

    link.gate.closed = true;
    memory_lost(link);

    link.gate.refuses = link.gate.refuses || refuses;

    /* What is on its way on this connection stays on its way. */
    link.gate.next_try = ngx_current_msec;
    put_back_more(link);
}


void
redis_store::node_added(redis_node &node)
{
    node.start(*this, on_undecided);
}


/* Its links have said of all commands that there is no reply. */
void
redis_store::node_gone(redis_node &node)
{
    for (ngx_queue_t *list :
         {&node.durable.undecided, &node.durable.asked_for}) {
        decide(node, *list, false);
    }

    node.durable.event.stop();
    slots_moved();

    if (first_node() != nullptr) {
        health_.link_up(first_node()->links[0].name(), links_down());
    }
}


void
redis_store::slots_unknown(const ngx_str_t &server, const char *why,
                           ngx_err_t err)
{
    health_.link_down(server, why, err);
}


void
redis_store::slots_known(const ngx_str_t &server)
{
    health_.link_up(server, links_down());
    late_.try_all();
}


/*
 * True: the command was not executed, because its key is elsewhere, and it is
 * sent there.  A pair was not executed as a whole: what is sent again finds
 * its own claim.
 */
bool
redis_store::is_redirected(operation &op, const redisReply &reply)
{
    const redisReply *error = &reply;
    bool is_pair = op.written == form::set_and_get && op.earlier != nullptr;
    redirection to;

    if (cluster_ == nullptr) {
        return false;
    }

    if (is_pair && is_about_slots(error_code(*op.earlier))) {
        error = op.earlier;
    }

    if (is_pair && op.earlier->type == REDIS_REPLY_STATUS) {
        op.may_be_claimed = true;
    }

    /* Keys of a slot that moves; the next look may find another state. */
    if (has_code(*error, "TRYAGAIN") && op.why == purpose::claim
        && op.claimer != nullptr && ++op.hops <= most_hops)
    {
        go_home(op);
        hold(op);
        return true;
    }

    return error->type == REDIS_REPLY_ERROR
           && read_redirection(text_of(*error), to) && follow(op, to);
}


bool
redis_store::follow(operation &op, const redirection &to)
{
    redis_link &from = *op.link;

    if (op.why == purpose::claim && op.claimer == nullptr) {
        drop_claim(op);
        return true;
    }

    /* A release that followed it may be at the new home already. */
    if (op.why == purpose::renew && !op.puts_back
        && &from != &home_of(op.whose.name, op.slot))
    {
        settle_failed(op);
        return true;
    }

    if (++op.hops > most_hops
        || is_due(op.asked_at + static_cast<ngx_msec_t>(timeout_)))
    {
        cluster_->refresh();
        return false;
    }

    redis_link *next = link_after(to, from, op.whose.name);

    if (next == nullptr) {
        return false;
    }

    redis_link &link = *next;

    if (op.puts_back) {
        from.gate.under_way--;
        from.gate.bytes_under_way -= op.own_response.size();

        /* When it is up, all that is in doubt is sent. */
        if (!link.is_ready()) {
            put_back_answered(op, nullptr);
            return true;
        }

        link.gate.under_way++;
        link.gate.bytes_under_way += op.own_response.size();
    }

    op.move_to(link);
    op.is_asking = to.ask;

    /* Only the next command may ask, and a claim can be two. */
    if (to.ask && op.why == purpose::claim) {
        op.written = form::script_by_hash;
    }

    send_again(op);
    return true;
}


/* Null: no memory. */
redis_link *
redis_store::link_after(const redirection &to, redis_link &from,
                        const record_id &name)
{
    redis_node *node = cluster_->follow(to, from);

    if (node == nullptr) {
        return nullptr;
    }

    redis_link &link = node->link_for(name);

    /* Some servers mean a new connection by that. */
    if (&link == &from && !to.ask) {
        link.reconnect("it has moved to where it is");
    }

    return &link;
}


void
redis_store::send_again(operation &op)
{
    if (op.why == purpose::claim && must_wait(*op.link)) {
        hold(op);

    } else if (op.link->usable()) {
        commands_.send(op);

    } else {
        answered(op, nullptr, unanswered::not_sent);
    }
}


/* Another node has its slot by now, and may not have what this one has. */
bool
redis_store::is_elsewhere(const operation &op)
{
    return !op.is_asking && op.link != &home_of(op.whose.name, op.slot);
}


/* If the slot has taken it along, it is found there. */
void
redis_store::claim_at_home(operation &op)
{
    op.may_be_claimed = true;

    if (++op.hops > most_hops
        || is_due(op.asked_at + static_cast<ngx_msec_t>(timeout_)))
    {
        claim_too_late(op, claim_result::unavailable);
        return;
    }

    go_home(op);
    send_again(op);
}

}
