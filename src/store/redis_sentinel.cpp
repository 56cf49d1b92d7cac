#include "store/redis_sentinel.h"

#include <algorithm>

namespace idempotency {

namespace {

/* While Sentinels do not agree, a failover may be under way. */
constexpr ngx_msec_t quick_check = 100;

}


sentinel_group *
sentinel_group::make(ngx_conf_t *cf, const sentinel_settings &settings,
                     sentinel_owner &owner)
{
    std::size_t count = settings.servers.size();
    auto *members = static_cast<member *>(
        ngx_pcalloc(cf->pool, count * sizeof(member)));
    auto *links = static_cast<redis_link *>(
        ngx_palloc(cf->pool, count * sizeof(redis_link)));

    if (members == nullptr || links == nullptr) {
        return nullptr;
    }

    auto *made = idempotency::make<sentinel_group>(cf->pool, settings, owner,
                                                   std::span(members, count));

    if (made == nullptr) {
        return nullptr;
    }

    for (std::size_t i = 0; i < count; i++) {
        auto *route = idempotency::make<single_server_route>(
            cf->pool, settings.servers[i],
            settings.link.connect_timeout / 2 + 1);

        if (route == nullptr) {
            return nullptr;
        }

        ::new (&members[i]) member{};
        members[i].link = ::new (&links[i])
            redis_link(settings.link, *route, *made);
    }

    return made;
}


void
sentinel_group::start()
{
    ngx_queue_init(&askers_);
    check_.init(this, on_check, ngx_cycle->log);
    check_.event.cancelable = 1;
    ngx_add_timer(&check_.event, settings_.check);

    for (member &m : members_) {
        m.link->start();
    }
}


void
sentinel_group::stop()
{
    is_stopping_ = true;
    check_.stop();

    for (member &m : members_) {
        m.link->stop();
    }
}


void
sentinel_group::ask(sentinel_asker &asker, unsigned failures)
{
    failures_ = failures;
    asker.place.asker = &asker;
    ngx_queue_insert_tail(&askers_, &asker.place.queue);
    ask_all();
    settle_askers();
}


void
sentinel_group::cancel(sentinel_asker &asker)
{
    ngx_queue_remove(&asker.place.queue);
}


bool
sentinel_group::confirms(const master_address &master) const
{
    return votes_for(master) >= majority();
}


bool
sentinel_group::denies(const master_address &master) const
{
    for (const member &m : members_) {
        if (counts(m) && m.named != master && confirms(m.named)) {
            return true;
        }
    }

    return false;
}


std::size_t
sentinel_group::votes_for(const master_address &master) const
{
    std::size_t votes = 0;

    for (const member &m : members_) {
        votes += counts(m) && m.named == master;
    }

    return votes;
}


/* A word counts from when it was asked for: it may have been on its way. */
bool
sentinel_group::counts(const member &m) const
{
    return !m.named.is_empty() && !is_due(m.asked_at + 3 * settings_.check);
}


void
sentinel_group::link_up(redis_link &link)
{
    for (member &m : members_) {
        if (m.link == &link) {
            ask_member(m);
        }
    }
}


void
sentinel_group::link_down(redis_link &link, const char *why, ngx_err_t err)
{
    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, err,
                  "idempotency: Sentinel at \"%V\" is unavailable: %s",
                  &link.name(), why);
    settle_askers();
}


void
sentinel_group::on_check(ngx_event_t *event)
{
    auto *self = own_event::owner_of<sentinel_group>(event);
    bool agree = true;

    self->ask_all();

    for (const member &m : self->members_) {
        agree = agree && (!self->counts(m) || self->confirms(m.named));
    }

    ngx_add_timer(event, agree ? self->settings_.check
                               : ngx_min(quick_check, self->settings_.check));
}


void
sentinel_group::ask_all()
{
    for (member &m : members_) {
        m.link->wake();
        ask_member(m);
    }
}


void
sentinel_group::ask_member(member &m)
{
    if (m.is_asked || !m.link->is_ready()) {
        return;
    }

    m.question.group = this;
    m.question.from = &m;
    m.question.answered = answered;
    m.question.overdue = [](command &) {};
    m.is_asked = true;
    m.question_at = ngx_current_msec;

    redis_output &out = m.link->begin(m.question, 3);

    out.add("SENTINEL");
    out.add("get-master-addr-by-name");
    out.add(view(settings_.service));
    m.link->end(m.question);
}


void
sentinel_group::answered(command &c, const redisReply *reply, unanswered)
{
    member &m = *static_cast<decltype(m.question) &>(c).from;
    sentinel_group &self = *m.question.group;

    m.is_asked = false;
    m.has_answered = reply != nullptr;

    if (self.is_stopping_) {
        return;
    }

    if (reply != nullptr) {
        self.take(m, *reply);
        self.owner_.masters_named();
    }

    self.settle_askers();
}


void
sentinel_group::take(member &m, const redisReply &reply)
{
    master_address named;

    m.named = {};
    m.asked_at = m.question_at;

    if (reply.type == REDIS_REPLY_ERROR) {
        say_unknown(m, error_text(reply).text());

    } else if (reply.type == REDIS_REPLY_NIL
               || (reply.type == REDIS_REPLY_ARRAY && reply.elements == 0))
    {
        say_unknown(m, "it does not know a master of this name");

    } else if (!read_master(reply, named)) {
        say_unknown(m, "it names no address");

    } else {
        m.named = named;
    }
}


void
sentinel_group::say_unknown(const member &m, const char *why)
{
    if (ngx_time() < next_warning_) {
        return;
    }

    next_warning_ = ngx_time() + 60;

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: Sentinel at \"%V\" cannot tell where the "
                  "master \"%V\" is: %s",
                  &m.link->name(), &settings_.service, why);
}


/* A majority is enough; without one, those that can be asked are. */
void
sentinel_group::settle_askers()
{
    const master_address *chosen = choose(failures_);
    bool agreed = chosen != nullptr && confirms(*chosen);
    ngx_queue_t all;

    if (ngx_queue_empty(&askers_) || (is_waiting() && !agreed)) {
        return;
    }

    ngx_queue_init(&all);
    ngx_queue_add(&all, &askers_);
    ngx_queue_init(&askers_);

    while (!ngx_queue_empty(&all)) {
        ngx_queue_t *q = ngx_queue_head(&all);
        auto *place = ngx_queue_data(q, sentinel_asker::waiting, queue);
        sentinel_asker *asker = place->asker;

        ngx_queue_remove(q);

        if (chosen != nullptr) {
            asker->master_named(*chosen);

        } else {
            asker->no_master_named(why_none());
        }
    }
}


/* Some have not been asked, or have not answered. */
bool
sentinel_group::is_waiting() const
{
    return std::any_of(members_.begin(), members_.end(), [](const member &m) {
        return m.link->usable() && (m.is_asked || !m.link->is_ready());
    });
}


/*
 * Whom most name.  If that one could not be used, whom others name, in turn.
 * What was true once does not count.
 */
const master_address *
sentinel_group::choose(unsigned failures) const
{
    const master_address *best = nullptr;
    std::size_t most = 0;

    for (std::size_t i = 0; i < members_.size(); i++) {
        const member &m = members_[(i + failures) % members_.size()];
        std::size_t votes = counts(m) ? votes_for(m.named) : 0;

        if (votes > most) {
            most = votes;
            best = &m.named;
        }
    }

    for (std::size_t i = 0;
         best != nullptr && failures % 2 == 1 && i < members_.size(); i++)
    {
        const member &m = members_[(i + failures / 2) % members_.size()];

        if (counts(m) && m.named != *best) {
            return &m.named;
        }
    }

    return best;
}


const char *
sentinel_group::why_none() const
{
    bool reached = std::any_of(
        members_.begin(), members_.end(),
        [](const member &m) { return m.link->is_ready(); });

    return reached ? "no Sentinel names a master"
                   : "no Sentinel can be reached";
}

}
