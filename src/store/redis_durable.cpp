#include "store/redis_store.h"

namespace idempotency {

namespace {

operation &operation_at(ngx_queue_t *q);
bool is_number(const redisReply &reply, ngx_uint_t least);

}


bool
redis_store::can_ask_durable() const
{
    return !wants_durable() || durable_.link->usable();
}


/*
 * The server has the claim.  All claims of one turn of the event loop are
 * asked for together, and no two questions are on their way: what is granted
 * meanwhile is the next one's.
 */
void
redis_store::wait_until_durable(operation &op)
{
    op.granted_by = op.link->times_opened();
    ngx_queue_insert_tail(&durable_.undecided, &op.command::queue);

    if (!durable_.event.event.posted) {
        ngx_post_event(&durable_.event.event, &ngx_posted_events);
    }
}


void
redis_store::on_undecided(ngx_event_t *event)
{
    own_event::owner_of<redis_store>(event)->ask_durable();
}


void
redis_store::ask_durable()
{
    if (durable_.is_asking || ngx_queue_empty(&durable_.undecided)) {
        return;
    }

    if (!durable_.link->usable()) {
        decide(durable_.undecided, false);
        return;
    }

    ngx_queue_add(&durable_.asked_for, &durable_.undecided);
    ngx_queue_init(&durable_.undecided);

    durable_.is_asking = true;
    durable_.question.owner = this;
    durable_.question.answered = durable_answered;
    durable_.question.overdue = [](command &) {};
    commands_.ask_durable(*durable_.link, durable_.question, durable_.wanted);
}


void
redis_store::durable_answered(command &c, const redisReply *reply, unanswered)
{
    redis_store &self = *static_cast<decltype(durable_.question) &>(c).owner;

    self.durable_.is_asking = false;

    if (self.stopping_) {
        return;
    }

    self.decide(self.durable_.asked_for, self.is_durable(c, reply));
    self.ask_durable();
}


bool
redis_store::is_durable(const command &c, const redisReply *reply)
{
    const durability_settings &wanted = durable_.wanted;
    redis_link &link = *durable_.link;

    if (reply == nullptr) {
        return false;
    }

    for (const redisReply *any :
         {static_cast<const redisReply *>(c.earlier), reply})
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
redis_store::decide(ngx_queue_t &which, bool durable)
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
                    && link.has_same_server(*durable_.link);

        ngx_queue_remove(&op.command::queue);

        if (op.claimer == nullptr) {
            settle(return_claim(op, purpose::give_back), nullptr);

        } else if (!link.is_confirmed()) {
            health_.claim_not_confirmed(link.name());
            claim_too_late(op, claim_result::unreadable);

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
redis_store::free_undecided()
{
    durable_.event.stop();

    for (ngx_queue_t *list : {&durable_.undecided, &durable_.asked_for}) {
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
