#include "store/memory_lock.h"

#include <ctime>

namespace idempotency {

namespace {

constexpr ngx_msec_t sweep_interval = 5000;
constexpr ngx_msec_t sweep_again = 10;
constexpr std::uint64_t sweep_time = 500 * 1000; /* nanoseconds */
constexpr std::size_t small_response = 2048;

std::uint64_t nanoseconds();
void answer(settle_waiter *waiter, settle_result result);
const char *in_words(std::span<char> out, const char *what,
                     std::uint64_t milliseconds);

}


void
memory_store::start()
{
    sweeper_.init(this, sweep, ngx_cycle->log);
    sweeper_.event.cancelable = 1;
    ngx_add_timer(&sweeper_.event, sweep_interval);

    if (file_ != nullptr) {
        sync_.start(*file_);
    }
}


void
memory_store::stop()
{
    sweeper_.stop();
    sync_.stop();
}


void
memory_store::sweep(ngx_event_t *event)
{
    auto *self = own_event::owner_of<memory_store>(event);
    bool more = false;

    if (zone_lock locked(*self); locked.is_usable()) {
        more = self->sweep_some(*self->zone_);
    }

    if (self->file_ != nullptr) {
        self->file_->note_time();
    }

    if (!ngx_exiting) {
        ngx_add_timer(event, more ? sweep_again : sweep_interval);
    }
}


/*
 * In a large zone one record can take a third of a millisecond, as all that
 * leads to it has to be fetched from memory or even from the disk.
 */
bool
memory_store::sweep_some(zone &z)
{
    std::uint64_t time = now();
    std::uint64_t began = nanoseconds();

    while (z.expire(time, 1) != 0) {

        if (nanoseconds() - began >= sweep_time) {
            return true;
        }
    }

    return false;
}


void
memory_store::claim_record(const claim &what, claim_waiter &waiter)
{
    static std::uint8_t small[small_response];
    std::span<std::uint8_t> room = small;
    zone_answer answer;
    zone_notice notice;
    bool sound = true;

    /*
     * The zone says how much room a response needs.  Memory for it is not
     * allocated under the lock, so the claim is repeated with enough of it.
     * A small response is copied instead.
     */
    for (;;) {
        {
            zone_lock locked(*this);
            std::uint64_t time = now();

            sound = locked.is_usable();

            if (sound) {
                answer = locked->claim(what, time, room);
                sound = locked.is_sound();
            }

            if (sound && answer.result != claim_result::found) {
                notice = locked->notice(time);
            }
        }

        if (!sound) {
            break;
        }

        if (answer.response_size == 0
            || (answer.response_size <= room.size() && room.data() != small))
        {
            break;
        }

        std::uint8_t *bytes = waiter.room(waiter, answer.response_size);

        if (bytes == nullptr) {
            answer.result = claim_result::unreadable;
            answer.response = {};
            break;
        }

        if (!answer.response.empty()) {
            ngx_memcpy(bytes, small, answer.response_size);
            answer.response = {bytes, answer.response_size};
            break;
        }

        room = {bytes, answer.response_size};
    }

    tell(notice);

    if (sound) {
        sync_.answer(what, waiter, answer);

    } else {
        sync_.refuse(what, waiter, answer);
    }
}


void
memory_store::complete(const ownership &whose, const completion &how,
                       settle_waiter *waiter)
{
    settle_result result = settle_result::unavailable;
    zone_notice notice;

    {
        zone_lock locked(*this);
        std::uint64_t time = now();

        if (locked.is_usable()) {
            result = locked->complete(whose, how, time);
            notice = locked->notice(time);
        }
    }

    tell(notice);
    sync_.answer(waiter, result);
}


void
memory_store::release(const ownership &whose, settle_waiter *waiter)
{
    settle_result result = settle(
        [&](zone &z) { return z.release(whose, now()); });

    sync_.changed();
    answer(waiter, result);
}


void
memory_store::mark_unknown(const ownership &whose, std::uint64_t keep,
                           settle_waiter *waiter)
{
    settle_result result = settle(
        [&](zone &z) { return z.mark_unknown(whose, keep, now()); });

    sync_.changed();
    answer(waiter, result);
}


void
memory_store::renew(const ownership &whose, settle_waiter &waiter)
{
    answer(&waiter, settle([&](zone &z) { return z.renew(whose, now()); }));
}


template <typename Edit>
settle_result
memory_store::settle(Edit edit)
{
    zone_lock locked(*this);

    return locked.is_usable() ? edit(*zone_) : settle_result::unavailable;
}


/* The zone says each thing once, to one of the workers. */
void
memory_store::tell(const zone_notice &notice)
{
    constexpr const char *advice = "increase its size or shorten "
                                   "\"idempotency_ttl\"";
    char left[64];
    ngx_log_t *log = ngx_cycle->log;
    ngx_str_t *name = &shm_->shm.name;

    switch (notice.what) {

    case zone_event::none: break;

    case zone_event::filling:
        ngx_log_error(
            NGX_LOG_WARN, log, 0,
            "idempotency: zone \"%V\" is 80%% full%s; when it is "
            "full, the oldest responses are dropped: %s",
            name,
            in_words(left, ", at the present rate it is full", notice.left),
            advice);
        break;

    case zone_event::dropping:
        ngx_log_error(
            NGX_LOG_WARN, log, 0,
            "idempotency: zone \"%V\" is full, the oldest responses "
            "are dropped (a retry gets \"response_not_kept\"), "
            "%uL since the last such line; what cannot be dropped "
            "takes %uz%% of the zone%s: %s",
            name, notice.count, notice.facts,
            in_words(left, ", at the present rate all of it", notice.left),
            advice);
        break;

    case zone_event::not_fitting:
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "idempotency: zone \"%V\" is full, responses are not "
                      "stored (a retry gets \"response_not_kept\"): %s",
                      name, advice);
        break;

    case zone_event::refusing:
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "idempotency: zone \"%V\" is full, new keys cannot be "
                      "stored (\"store_unavailable\"): %s",
                      name, advice);
        break;
    }
}


std::size_t
memory_store::count()
{
    return zone_ == nullptr ? 0 : zone_lock(*this)->stats().records;
}


std::uint64_t
memory_store::now() const
{
    timespec ts;

    if (file_ != nullptr) {
        return file_->now();
    }

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return static_cast<std::uint64_t>(ts.tv_sec) * 1000
           + static_cast<std::uint64_t>(ts.tv_nsec) / 1000000;
}


namespace {

std::uint64_t
nanoseconds()
{
    timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return static_cast<std::uint64_t>(ts.tv_sec) * 1000000000
           + static_cast<std::uint64_t>(ts.tv_nsec);
}


void
answer(settle_waiter *waiter, settle_result result)
{
    if (waiter != nullptr) {
        waiter->settled(*waiter, result);
    }
}


/* What and when, in the largest unit that is not too coarse; or nothing. */
const char *
in_words(std::span<char> out, const char *what, std::uint64_t milliseconds)
{
    struct unit {
        std::uint64_t seconds;
        const char *name;
    };

    constexpr unit units[] = {
        {86400, "days"}, {3600, "hours"}, {60, "minutes"}, {1, "seconds"}};

    if (milliseconds == forever) {
        return "";
    }

    std::uint64_t seconds = milliseconds / 1000;
    const unit *u = units;

    while (u->seconds > 1 && seconds < 2 * u->seconds) {
        ++u;
    }

    u_char *end = ngx_snprintf(reinterpret_cast<u_char *>(out.data()),
                               out.size() - 1, "%s in %uL %s", what,
                               seconds / u->seconds, u->name);

    *end = '\0';

    return out.data();
}

}

}
