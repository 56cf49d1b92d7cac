#include "store/redis_cluster.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr ngx_msec_t interval = 30000;

/* Many commands may be sent elsewhere at once. */
constexpr ngx_msec_t shortest_interval = 100;
constexpr ngx_msec_t longest_when_lost = 1000;

/*
 * Longer than most failovers: one that is asked when a master is elected tells
 * of it at once, one that has to be connected to first does not.
 */
constexpr ngx_msec_t trusted_for = 10000;

}


cluster_map::cluster_map(const redis_settings &settings, cluster_owner &owner,
                         link_owner &links)
    : settings_(settings), owner_(owner), links_(links),
      route_(*this, settings.cluster.servers[0],
             settings.cluster.link.connect_timeout / 2 + 1),
      link_(settings.cluster.link, route_, *this),
      nowhere_(settings.cluster.link, route_, *this)
{}


void
cluster_map::start()
{
    /* Not all workers ask the same one. */
    next_ = ngx_worker % settings_.cluster.servers.size();
    question_.map = this;
    question_.answered = answered;
    question_.overdue = [](command &) {};
    tick_.init(this, on_tick, ngx_cycle->log);
    tick_.event.cancelable = 1;
    sweep_.init(this, on_sweep, ngx_cycle->log);
    sweep_.event.cancelable = 1;
    nowhere_.stay_down();
    link_.start();
    ask_later();
}


void
cluster_map::stop()
{
    is_stopping_ = true;
    tick_.stop();
    sweep_.stop();
    link_.stop();
}


/* The first answer is waited for until everybody was asked once. */
bool
cluster_map::is_learning() const
{
    return !is_known_ && tries_ < settings_.cluster.servers.size();
}


void
cluster_map::refresh()
{
    if (is_asking_) {
        ask_again_ = true;

    } else if (is_due(asked_at_ + shortest_interval)) {
        ask();

    } else {
        ask_again_ = true;
        ask_later();
    }
}


void
cluster_map::ask_another()
{
    if (is_due(distrusted_at_ + longest_when_lost)) {
        change_node();
    }

    refresh();
}


/* Not before it has answered. */
void
cluster_map::change_node()
{
    if (is_known_ && link_.is_ready() && !is_asking_) {
        distrusted_at_ = ngx_current_msec;
        link_.reconnect("another node is asked");
    }
}


void
cluster_map::ask()
{
    if (is_asking_ || is_stopping_) {
        return;
    }

    /* As soon as it is up it is asked. */
    if (!link_.is_ready()) {
        link_.wake();
        return;
    }

    is_asking_ = true;
    ask_again_ = false;
    asked_at_ = ngx_current_msec;

    redis_output &out = link_.begin(question_, 2);

    out.add("CLUSTER");
    out.add("SLOTS");
    link_.end(question_);
}


void
cluster_map::ask_later()
{
    ngx_msec_t delay = interval;

    if (ask_again_) {
        delay = shortest_interval;

    } else if (any_down() || uncovered_ != 0) {
        delay = ngx_max(
            shortest_interval,
            ngx_min(settings_.failover_grace / 3, longest_when_lost));
    }

    tick_.stop();
    ngx_add_timer(&tick_.event, delay);
}


void
cluster_map::on_tick(ngx_event_t *event)
{
    auto *self = own_event::owner_of<cluster_map>(event);

    /* One that is cut off from the others would not tell who follows. */
    if ((self->any_down() || self->uncovered_ != 0)
        && is_due(self->distrusted_at_ + trusted_for))
    {
        self->change_node();
    }

    self->ask();
    self->ask_later();
}


void
cluster_map::link_up(redis_link &)
{
    ask();
}


void
cluster_map::link_down(redis_link &, const char *why, ngx_err_t err)
{
    why_ = error_text("%.*s", why);
    err_ = err;

    if (tries_ + 1 >= settings_.cluster.servers.size()) {
        report_lost();
    }
}


/* While it is known where the slots are, their nodes tell what is wrong. */
void
cluster_map::report_lost()
{
    if (!is_known_ && !is_lost_) {
        is_lost_ = true;
        was_lost_ = true;
        owner_.slots_unknown(link_.name(), why_.text(), err_);
    }
}


void
cluster_map::answered(command &c, const redisReply *reply, unanswered)
{
    cluster_map &self = *static_cast<decltype(question_) &>(c).map;

    self.is_asking_ = false;

    if (self.is_stopping_) {
        return;
    }

    if (reply != nullptr && !self.take(*reply)) {
        self.cannot_tell(reply->type == REDIS_REPLY_ERROR ? text_of(*reply)
                                                          : "no slots");
    }

    self.ask_later();
}


/* What is known stays. */
void
cluster_map::cannot_tell(std::string_view said)
{
    error_text why("it cannot tell where the slots of its cluster are, the "
                   "reply is \"%.*s\"",
                   said.substr(0, 150));

    if (is_known_ && ngx_time() >= next_warning_) {
        next_warning_ = ngx_time() + 60;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: Redis at \"%V\" is not asked again: %s",
                      &link_.name(), why.text());
    }

    link_.give_up(why.text());
}


/* False: it names no node. */
bool
cluster_map::take(const redisReply &reply)
{
    std::array<bool, slot_count> seen = {};
    bool named = false;

    for (std::size_t i = 0;
         reply.type == REDIS_REPLY_ARRAY && i < reply.elements; i++)
    {
        slot_range range;

        if (read_slot_range(*reply.element[i], route_.host(), range)) {
            named = true;
            take_range(range, seen);
        }
    }

    if (!named) {
        return false;
    }

    for (std::size_t slot = 0; slot < slot_count; slot++) {
        if (!seen[slot]) {
            assign(static_cast<std::uint16_t>(slot), nullptr);
        }
    }

    tries_ = 0;
    is_known_ = true;
    slots_assigned();
    count_slots();

    if (is_lost_) {
        is_lost_ = false;
        owner_.slots_known(link_.name());
    }

    return true;
}


void
cluster_map::take_range(const slot_range &range, std::span<bool> seen)
{
    cluster_node *node = find_node(range.master);

    if (node == nullptr) {
        node = add_node(range.master);
    }

    for (std::size_t slot = range.first; slot <= range.last && node != nullptr;
         slot++)
    {
        seen[slot] = true;
        assign(static_cast<std::uint16_t>(slot), node);
    }
}


void
cluster_map::count_slots()
{
    std::size_t uncovered = static_cast<std::size_t>(
        std::count(slots_.begin(), slots_.end(), nullptr));

    if (uncovered == uncovered_) {
        return;
    }

    uncovered_ = uncovered;

    if (uncovered == 0) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: the cluster of Redis at \"%V\" has a "
                      "master for each of its slots again",
                      &link_.name());
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: the cluster of Redis at \"%V\" has no master "
                  "for %uz of its 16384 slots, requests whose keys are there "
                  "are refused",
                  &link_.name(), uncovered);
}


/*
 * The seeds first, then the nodes that are known and can be reached: to wait
 * for another takes time in which nobody is asked.
 */
const server_location *
cluster_map::next_seed(bool failed, server_address &node)
{
    std::span<server_location> seeds = settings_.cluster.servers;
    std::size_t count = seeds.size();

    for (redis_node *n = nodes_; n != nullptr; n = n->next) {
        count += n->links[0].is_ready();
    }

    if (failed) {
        next_++;
        tries_++;
    }

    if (tries_ >= seeds.size()) {
        report_lost();
    }

    std::size_t index = next_ % count;

    if (index < seeds.size()) {
        return &seeds[index];
    }

    redis_node *n = nodes_;

    for (index -= seeds.size(); index != 0 || !n->links[0].is_ready();
         n = n->next) {
        index -= n->links[0].is_ready();
    }

    node = static_cast<cluster_node *>(n)->server.where();

    return nullptr;
}


void
asking_route::find(route_user &user, unsigned failures)
{
    server_address node;
    const server_location *seed = map_.next_seed(failures != 0, node);

    if (seed == nullptr) {
        named_.set(node, map_.common());
        seed = &named_.location();
    }

    current_ = seed;
    inner_.set_server(*seed);
    inner_.find(user, 0);
}


std::string_view
asking_route::host() const
{
    if (current_ == &named_.location()) {
        return named_.where().host.data();
    }

    if (current_->host.len != 0) {
        return view(current_->host);
    }

    /* Else it is an address with a port. */
    std::string_view name = view(current_->name);

    name = name.substr(0, name.rfind(':'));

    return name.starts_with('[') ? name.substr(1, name.size() - 2) : name;
}

}
