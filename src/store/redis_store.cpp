#include "store/redis_store.h"

#include "store/redis_errors.h"

namespace idempotency {

namespace {

redis_route *make_route(ngx_conf_t *cf, const redis_settings &settings,
                        sentinel_group *sentinels);

}


/* The store needs its links, and each link its owner and its route. */
store *
make_redis_store(ngx_conf_t *cf, const redis_settings &settings)
{
    std::size_t count = redis_store::links_needed(settings);
    auto *links = static_cast<redis_link *>(
        ngx_palloc(cf->pool, count * sizeof(redis_link)));

    if (links == nullptr) {
        return nullptr;
    }

    auto *made = make<redis_store>(cf->pool, settings,
                                   std::span(links, count));
    sentinel_group *sentinels = nullptr;

    if (made == nullptr) {
        return nullptr;
    }

    if (!settings.sentinels.servers.empty()) {
        sentinels = sentinel_group::make(cf, settings.sentinels, *made);

        if (sentinels == nullptr) {
            return nullptr;
        }

        made->set_sentinels(*sentinels);
    }

    if (settings.local.size != 0) {
        local_copies *local = local_copies::make(cf, settings.local);

        if (local == nullptr) {
            return nullptr;
        }

        made->set_local(*local);
    }

    for (ngx_uint_t i = 0; i < count; i++) {
        redis_route *route = make_route(cf, settings, sentinels);
        link_settings how = settings.link;

        if (route == nullptr) {
            return nullptr;
        }

        /* The last one has no records. */
        if (i == settings.connections) {
            how.asks_for = settings.durability.what;
            how.puts_back = false;
        }

        ::new (&links[i]) redis_link(how, *route, *made);
    }

    return made;
}


namespace {

redis_route *
make_route(ngx_conf_t *cf, const redis_settings &settings,
           sentinel_group *sentinels)
{
    ngx_msec_t patience = settings.link.connect_timeout / 2 + 1;

    if (sentinels != nullptr) {
        return make<sentinel_route>(cf->pool, *sentinels, settings.server,
                                    patience);
    }

    return make<single_server_route>(cf->pool, settings.server, patience);
}

}


redis_store::redis_store(const redis_settings &settings,
                         std::span<redis_link> links)
    : timeout_(settings.link.timeout),
      grace_(settings.failover_grace + settings.sentinels.check),
      all_links_(links), links_(links.first(settings.connections)),
      commands_(settings.prefix), health_(settings.prefix),
      late_(commands_, health_), kept_(settings.reassert)
{
    durable_.wanted = settings.durability;

    if (links_needed(settings) > settings.connections) {
        durable_.link = &links.back();
    }
}


/* WAIT blocks its connection, so it has one of its own. */
std::size_t
redis_store::links_needed(const redis_settings &settings)
{
    bool durable = settings.durability.what != durability_settings::kind::none;

    return settings.connections + (durable ? 1 : 0);
}


void
redis_store::start()
{
    health_.report_to(counts);
    late_.start();
    kept_.start();
    ngx_queue_init(&held_);
    gate_tick_.init(this, on_gate_tick, ngx_cycle->log);
    ngx_queue_init(&durable_.undecided);
    ngx_queue_init(&durable_.asked_for);
    durable_.event.init(this, on_undecided, ngx_cycle->log);

    if (sentinels_ != nullptr) {
        sentinels_->start();
    }

    for (redis_link &link : all_links_) {
        link.start();
    }
}


void
redis_store::stop()
{
    stopping_ = true;

    for (redis_link &link : all_links_) {
        link.stop();
    }

    if (sentinels_ != nullptr) {
        sentinels_->stop();
    }

    free_held();
    free_undecided();
    late_.stop();
    kept_.stop();
}


void
redis_store::link_up(redis_link &link)
{
    unsigned down = 0;

    for (const redis_link &any : all_links_) {
        down += !any.usable();
    }

    health_.link_up(link.name(), down);
    begin_put_back(link);
    late_.try_all();
}


void
redis_store::link_down(redis_link &link, const char *why, ngx_err_t err)
{
    health_.link_down(link.name(), why, err);
}


void
redis_store::link_overloaded(redis_link &link)
{
    health_.link_overloaded(link.name());
}


void
redis_store::link_recovered(redis_link &link)
{
    health_.link_recovered(link.name());
}


void
redis_store::server_evicts(redis_link &link, std::string_view policy)
{
    health_.evicts(link.name(), policy);
}


/* As long as it can, the old master would go on. */
void
redis_store::masters_named()
{
    for (redis_link &link : all_links_) {
        if (link.has_moved()) {
            link.give_up("the Sentinels name another master");
        }
    }
}


operation *
redis_store::make(purpose why, const ownership &whose)
{
    /* Commands for one record use one connection, so they stay in order. */
    redis_link &link = links_[whose.name.back() % links_.size()];
    operation *op = make_operation(*this, link, why, whose);

    if (op != nullptr) {
        op->command::answered = answered;
        op->command::overdue = overdue;
        op->as_of = local_ != nullptr ? local_copies::now() : 0;
    }

    return op;
}


void
redis_store::answered(command &c, const redisReply *reply, unanswered why)
{
    auto &op = static_cast<operation &>(c);
    redis_store &self = *op.owner;
    bool is_claim = op.why == purpose::claim;

    if (self.stopping_) {
        free_operation(&op);

    } else if (op.puts_back) {
        if (reply == nullptr || !self.send_in_other_form(op, *reply)) {
            self.put_back_answered(op, reply);
        }

    } else if (reply == nullptr) {
        if (is_claim) {
            self.claim_lost(op, why);

        } else {
            self.settle_failed(op);
        }

    } else if (!self.send_in_other_form(op, *reply)) {
        if (is_claim) {
            self.claim_replied(op, *reply);

        } else {
            self.settle_replied(op, *reply);
        }
    }
}


/*
 * True: the command was not executed, and is sent in another form.  A server
 * that accepts no writes may still have the record that is asked for.
 */
bool
redis_store::send_in_other_form(operation &op, const redisReply &reply)
{
    if (op.written == form::script_by_hash && has_code(reply, "NOSCRIPT")) {
        op.written = form::script_in_full;

    } else if (op.written == form::plain_set
               && is_error(reply, "ERR syntax error"))
    {
        op.link->forget_set_get();
        op.written = form::set_and_get;

    } else if (op.written == form::plain_set
               && refuses_writes(error_code(reply))) {
        refused(*op.link, reply);
        op.written = form::set_and_get;

    } else {
        return false;
    }

    /* Nobody waits for a claim that was not executed. */
    if (op.why == purpose::claim && op.claimer == nullptr) {
        free_operation(&op);
        return true;
    }

    commands_.send(op);
    return true;
}


/* A reply may still come, but too late for the waiter. */
void
redis_store::overdue(command &c)
{
    auto &op = static_cast<operation &>(c);
    redis_store &self = *op.owner;
    claim_waiter *claimer = op.claimer;
    settle_waiter *settler = op.settler;

    if (claimer != nullptr) {
        self.health_.claim_failed();
        self.forget(*claimer);
        claimer->answered(*claimer, {});
    }

    if (settler != nullptr) {
        self.forget(*settler);
        settler->settled(*settler, settle_result::unavailable);
    }
}


/* WRONGTYPE concerns one key; all other errors concern the server. */
void
redis_store::refused(redis_link &link, const redisReply &reply)
{
    std::string_view code = error_code(reply);
    error_text why(reply);

    if (code == "WRONGTYPE") {
        health_.wrong_type(link.name());
        return;
    }

    health_.refused(link.name(), why.text());

    if (refuses_writes(code)) {
        writes_refused(link);
    }

    /* After a failover the name may point to another server: reconnect. */
    if (code == "READONLY" || code == "NOAUTH") {
        link.give_up(why.text());
    }
}

}
