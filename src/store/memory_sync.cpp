#include "store/memory_sync.h"

#include "store/zone_file.h"

#include <new>

namespace idempotency {

namespace {

/* A disk that takes longer does not answer. */
constexpr ngx_msec_t patience = 5000;

constexpr ngx_msec_t look_interval = 500;

/* How long an error of the disk can go unnoticed while no request comes. */
constexpr ngx_msec_t disk_interval = 1000;

}


/* Somebody who waits for the disk. */
struct memory_sync::entry {
    ngx_queue_t link;
    flusher::number flush;
    ngx_msec_t since;

    claim_waiter *claimant; /* of a claim */
    ownership own;
    claim_answer answer;

    settle_waiter *settler; /* of an outcome */
    settle_result result;
};


void
memory_sync::start(zone_file &file)
{
    file_ = &file;
    ngx_queue_init(&waiting_);
    interval_.init(this, write_now, ngx_cycle->log);
    interval_.event.cancelable = 1;
    patience_.init(this, look_at_time, ngx_cycle->log);
    disk_.init(this, look_at_disk, ngx_cycle->log);
    disk_.event.cancelable = 1;

    if (file.watch() && flusher_.start(file) && watch()) {
        ngx_add_timer(&disk_.event, disk_interval);
        return;
    }

    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                  "idempotency: file \"%V\" cannot be written to the disk: no "
                  "descriptor, thread or connection for it; new keys are "
                  "refused (\"store_unavailable\"): restart nginx",
                  &how_.file);
    flusher_.stop();
}


/* A store of whose disk nothing can be known counts as one that fails. */
bool
memory_sync::is_failing() const
{
    return file_ != nullptr && (!flusher_.is_running() || file_->is_failing());
}


bool
memory_sync::watch()
{
    ngx_connection_t *c = ngx_get_connection(flusher_.descriptor(),
                                             ngx_cycle->log);

    if (c == nullptr) {
        return false;
    }

    c->data = this;
    c->log = ngx_cycle->log;
    c->read->log = ngx_cycle->log;
    c->read->handler = written;

    /* As nginx's own channel, it is no connection that somebody has left. */
    c->read->channel = 1;
    c->write->channel = 1;

    bool clear = (ngx_event_flags & NGX_USE_CLEAR_EVENT) != 0;
    ngx_uint_t flags = clear ? ngx_uint_t{NGX_CLEAR_EVENT}
                             : ngx_uint_t{NGX_LEVEL_EVENT};

    if (ngx_add_event(c->read, NGX_READ_EVENT, flags) != NGX_OK) {
        ngx_free_connection(c);
        return false;
    }

    link_ = c;

    return true;
}


void
memory_sync::stop()
{
    bool late = interval_.event.timer_set;

    patience_.stop();
    disk_.stop();

    if (!flusher_.is_running()) {
        return;
    }

    if (late) {
        flusher_.ask();
    }

    while (entry *e = oldest()) {
        ngx_queue_remove(&e->link);

        if (e->claimant != nullptr) {
            give_back(e->own, e->own.keep, e->answer.attempt);
        }

        delete e;
    }

    interval_.stop();

    /* The descriptor is the flusher's to close. */
    if (link_ != nullptr) {
        ngx_del_event(link_->read, NGX_READ_EVENT, 0);
        ngx_free_connection(link_);
        link_->fd = static_cast<ngx_socket_t>(-1);
        link_ = nullptr;
    }

    flusher_.stop();
    tell();
}


void
memory_sync::changed()
{
    if (how_.sync == sync_when::by_system || interval_.event.timer_set
        || !flusher_.is_running())
    {
        return;
    }

    ngx_add_timer(&interval_.event, how_.sync_interval);
}


void
memory_sync::write_now(ngx_event_t *event)
{
    own_event::owner_of<memory_sync>(event)->flusher_.ask();
}


void
memory_sync::answer(const claim &what, claim_waiter &waiter,
                    const claim_answer &answer)
{
    if (answer.result != claim_result::claimed) {
        waiter.answered(waiter, answer);
        return;
    }

    if (!is_always() && !is_failing()) {
        changed();
        waiter.answered(waiter, answer);
        return;
    }

    entry *e = is_always() ? enlist() : nullptr;

    if (e == nullptr) {
        give_back({what.name, what.owner}, what.keep, answer.attempt);
        waiter.answered(waiter, {});
        return;
    }

    e->claimant = &waiter;
    waiter.under_way = handle(e);
    e->own = {what.name, what.owner, what.lease, what.keep};
    e->answer = answer;
}


/* "pass" must not apply: there may be a record. */
void
memory_sync::refuse(const claim &what, claim_waiter &waiter,
                    const claim_answer &answer)
{
    claim_answer none;

    if (answer.result == claim_result::claimed) {
        give_back({what.name, what.owner}, what.keep, answer.attempt);
    }

    none.result = claim_result::unreadable;
    waiter.answered(waiter, none);
}


void
memory_sync::answer(settle_waiter *waiter, settle_result result)
{
    bool done = result == settle_result::done
                || result == settle_result::kept_without_response;

    if (done && (waiter == nullptr || !is_always())) {
        changed();
    }

    if (waiter == nullptr) {
        return;
    }

    entry *e = done && is_always() ? enlist() : nullptr;

    if (e == nullptr) {
        waiter->settled(*waiter, result);
        return;
    }

    e->settler = waiter;
    waiter->under_way = handle(e);
    e->result = result;
}


/* For the waiter: whether there is one is all that others ask. */
operation *
memory_sync::handle(entry *e)
{
    return reinterpret_cast<operation *>(e);
}


/* Null: no memory, or nothing that could be waited for. */
memory_sync::entry *
memory_sync::enlist()
{
    if (!flusher_.is_running()) {
        return nullptr;
    }

    auto *e = new (std::nothrow) entry{};

    if (e == nullptr) {
        return nullptr;
    }

    e->flush = flusher_.ask();
    e->since = ngx_current_msec;
    ngx_queue_insert_tail(&waiting_, &e->link);

    /* It also keeps a worker from leaving before all are answered. */
    if (!patience_.event.timer_set) {
        ngx_add_timer(&patience_.event, look_interval);
    }

    return e;
}


memory_sync::entry *
memory_sync::oldest()
{
    return ngx_queue_empty(&waiting_)
               ? nullptr
               : ngx_queue_data(ngx_queue_head(&waiting_), entry, link);
}


void
memory_sync::written(ngx_event_t *event)
{
    auto *c = static_cast<ngx_connection_t *>(event->data);
    auto *self = static_cast<memory_sync *>(c->data);
    flusher::progress how_far = self->flusher_.look();

    if (how_far.error == 0 && self->stuck_) {
        self->stuck_ = false;
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: file \"%V\" is written to the disk again",
                      &self->how_.file);
    }

    self->tell();
    self->answer_written(how_far);
}


/* Whoever is answered may ask for something, or make others forget. */
void
memory_sync::answer_written(const flusher::progress &how_far)
{
    while (entry *e = oldest()) {

        if (e->flush > how_far.done) {
            break;
        }

        end(e, e->flush > how_far.failed);
    }

    if (ngx_queue_empty(&waiting_)) {
        patience_.stop();
    }
}


void
memory_sync::look_at_time(ngx_event_t *event)
{
    auto *self = own_event::owner_of<memory_sync>(event);
    auto is_late = [](const entry *e) {
        return e != nullptr && ngx_current_msec - e->since >= patience;
    };

    /* Before those who wait are told. */
    if (is_late(self->oldest()) && !self->stuck_) {
        self->stuck_ = true;
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: file \"%V\" was not written to the disk "
                      "in %M seconds; new keys are refused "
                      "(\"store_unavailable\") until it is",
                      &self->how_.file, patience / 1000);
    }

    while (is_late(self->oldest())) {
        self->end(self->oldest(), false);
    }

    if (!ngx_queue_empty(&self->waiting_) && !event->timer_set) {
        ngx_add_timer(event, look_interval);
    }
}


void
memory_sync::end(entry *e, bool on_disk)
{
    ngx_queue_remove(&e->link);

    if (e->claimant != nullptr) {
        e->claimant->under_way = nullptr;
        end_claim(*e, on_disk);

    } else if (e->settler != nullptr) {
        e->settler->under_way = nullptr;
        e->settler->settled(*e->settler,
                            on_disk ? e->result : settle_result::unavailable);
    }

    delete e;
}


void
memory_sync::end_claim(entry &e, bool on_disk)
{
    if (on_disk && still_owns(e)) {
        e.claimant->answered(*e.claimant, e.answer);
        return;
    }

    give_back(e.own, e.own.keep, e.answer.attempt);
    e.claimant->answered(*e.claimant, {});
}


/* What took long has used up a part of its lease. */
bool
memory_sync::still_owns(const entry &e)
{
    if (ngx_current_msec - e.since < e.own.lease / 6) {
        return true;
    }

    settle_result result = settle_result::lost;
    settle_waiter waiter = {&result, [](settle_waiter &w, settle_result r) {
                                *static_cast<settle_result *>(w.owner) = r;
                            }};

    store_.renew(e.own, waiter);

    return result == settle_result::done;
}


/* Nothing was sent; but an earlier attempt may have been executed. */
void
memory_sync::give_back(const ownership &own, std::uint64_t keep,
                       std::uint32_t attempt)
{
    if (attempt > 1) {
        store_.mark_unknown(own, keep, nullptr);

    } else {
        store_.release(own, nullptr);
    }
}


void
memory_sync::forget(claim_waiter &waiter)
{
    auto *e = reinterpret_cast<entry *>(waiter.under_way);

    if (e == nullptr) {
        return;
    }

    waiter.under_way = nullptr;
    ngx_queue_remove(&e->link);
    give_back(e->own, e->own.keep, e->answer.attempt);
    delete e;
}


void
memory_sync::forget(settle_waiter &waiter)
{
    auto *e = reinterpret_cast<entry *>(waiter.under_way);

    if (e == nullptr) {
        return;
    }

    waiter.under_way = nullptr;
    e->settler = nullptr;
}


void
memory_sync::look_at_disk(ngx_event_t *event)
{
    auto *self = own_event::owner_of<memory_sync>(event);

    if (self->file_->has_failed() || self->is_failing()) {
        self->flusher_.ask();
    }

    self->tell();
    ngx_add_timer(event, disk_interval);
}


/* When the disk begins to fail, and when it is well again. */
void
memory_sync::tell()
{
    zone_file_news news = file_->news();

    if (news.failed != 0) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, news.failed,
                      "idempotency: file \"%V\" cannot be written to the "
                      "disk; new keys are refused (\"store_unavailable\") "
                      "until all of it is written: check the disk",
                      &how_.file);
    }

    if (news.lost) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: file \"%V\": records were lost when the "
                      "disk could not be written; all keys are refused "
                      "(\"store_unavailable\"): repair the disk and restart "
                      "nginx; requests whose record is lost can run again "
                      "then",
                      &how_.file);
    }

    if (news.written) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: file \"%V\" is written to the disk again",
                      &how_.file);
    }
}

}
