#include "store/redis_store.h"

#include "store/redis_errors.h"

namespace idempotency {

namespace {

redis_node *make_server(ngx_conf_t *cf, const redis_settings &settings,
                        redis_store &owner, sentinel_group *sentinels);
redis_route *make_route(ngx_conf_t *cf, const redis_settings &settings,
                        sentinel_group *sentinels);

}


/* The store needs its servers, and each link its owner and its route. */
store *
make_redis_store(ngx_conf_t *cf, const redis_settings &settings)
{
    auto *made = make<redis_store>(cf->pool, settings);
    sentinel_group *sentinels = nullptr;

    if (made == nullptr) {
        return nullptr;
    }

    if (settings.local.size != 0) {
        local_copies *local = local_copies::make(cf, settings.local);

        if (local == nullptr) {
            return nullptr;
        }

        made->set_local(*local);
    }

    if (!settings.cluster.servers.empty()) {
        auto *cluster = make<cluster_map>(cf->pool, settings, *made, *made);

        if (cluster == nullptr) {
            return nullptr;
        }

        made->set_cluster(*cluster);
        return made;
    }

    if (!settings.sentinels.servers.empty()) {
        sentinels = sentinel_group::make(cf, settings.sentinels, *made);

        if (sentinels == nullptr) {
            return nullptr;
        }
    }

    redis_node *server = make_server(cf, settings, *made, sentinels);

    if (server == nullptr) {
        return nullptr;
    }

    made->set_server(*server, sentinels);
    return made;
}


namespace {

/* Null: no memory. */
redis_node *
make_server(ngx_conf_t *cf, const redis_settings &settings, redis_store &owner,
            sentinel_group *sentinels)
{
    std::size_t count = links_of_node(settings);
    auto *node = make<redis_node>(cf->pool);
    auto *links = static_cast<redis_link *>(
        ngx_palloc(cf->pool, count * sizeof(redis_link)));

    if (node == nullptr || links == nullptr) {
        return nullptr;
    }

    for (std::size_t i = 0; i < count; i++) {
        redis_route *route = make_route(cf, settings, sentinels);

        if (route == nullptr) {
            return nullptr;
        }

        ::new (&links[i])
            redis_link(settings_of_link(settings, i), *route, owner);
    }

    node->take({links, count}, settings);
    return node;
}


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


redis_store::redis_store(const redis_settings &settings)
    : timeout_(settings.link.timeout),
      grace_(settings.failover_grace + settings.sentinels.check),
      durability_(settings.durability), commands_(settings.prefix),
      health_(settings.prefix), late_(commands_, health_),
      kept_(settings.reassert, *this)
{}


void
redis_store::set_server(redis_node &node, sentinel_group *named_by)
{
    server_ = &node;
    sentinels_ = named_by;
}


redis_node *
redis_store::first_node() const
{
    return cluster_ != nullptr ? cluster_->first() : server_;
}


void
redis_store::start()
{
    health_.report_to(counts);
    late_.start();
    kept_.start();
    ngx_queue_init(&held_);
    gate_tick_.init(this, on_gate_tick, ngx_cycle->log);

    if (cluster_ != nullptr) {
        cluster_->start();
        return;
    }

    if (sentinels_ != nullptr) {
        sentinels_->start();
    }

    server_->start(*this, on_undecided);
}


void
redis_store::stop()
{
    stopping_ = true;

    for (redis_node *n = first_node(); n != nullptr; n = n->next) {
        n->stop();
        free_undecided(*n);
    }

    if (sentinels_ != nullptr) {
        sentinels_->stop();
    }

    free_held();
    late_.stop();
    kept_.stop();

    if (cluster_ != nullptr) {
        cluster_->stop();
        cluster_->free_nodes();
    }
}


void
redis_store::link_up(redis_link &link)
{
    health_.link_up(link.name(), links_down());
    begin_put_back(link);
    late_.try_all();
}


unsigned
redis_store::links_down()
{
    unsigned down = cluster_ != nullptr && cluster_->is_lost();

    each_link([&](const redis_link &link) { down += !link.usable(); });

    return down;
}


void
redis_store::link_down(redis_link &link, const char *why, ngx_err_t err)
{
    health_.link_down(link.name(), why, err);

    if (cluster_ != nullptr) {
        cluster_->refresh();
    }
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


void
redis_store::server_lists_nothing(redis_link &link, const char *why)
{
    health_.lists_nothing(link.name(), why);
}


/* As long as it can, the old master would go on. */
void
redis_store::masters_named()
{
    each_link([](redis_link &link) {
        if (link.has_moved()) {
            link.give_up("the Sentinels name another master");
        }
    });
}


operation *
redis_store::make(purpose why, const ownership &whose)
{
    std::uint16_t slot = cluster_ != nullptr ? commands_.slot(whose.name) : 0;
    operation *op = make_operation(*this, home_of(whose.name, slot), why,
                                   whose);

    if (op != nullptr) {
        op->slot = slot;
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
        return;
    }

    if (reply != nullptr && self.is_redirected(op, *reply)) {
        return;
    }

    /* The link may be one that ends. */
    if (reply == nullptr) {
        self.go_home(op);
    }

    if (op.puts_back) {
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

    if (op.why == purpose::claim && op.claimer == nullptr) {
        drop_claim(op);
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

    if (cluster_ != nullptr && is_about_slots(code)) {
        cluster_->ask_another();
    }

    /* After a failover the name may point to another server: reconnect. */
    if (code == "READONLY" || code == "NOAUTH") {
        link.give_up(why.text());
    }
}

}
