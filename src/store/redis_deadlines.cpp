#include "store/redis_link.h"

namespace idempotency {

namespace {

constexpr std::uint64_t slowest_rate = 2048; /* bytes in a millisecond */
constexpr std::uint64_t most_patience = 5000;

/* More than this would only wait in nginx's memory. */
constexpr std::size_t most_commands = 16 * 1024;
constexpr std::uint64_t most_bytes = 64 * 1024 * 1024;

constexpr ngx_msec_t check_interval = 5000;

}


bool
redis_link::keeps_up()
{
    bool waits = state_ == state::ready && busy();
    bool admits = load_.admits(
        in_flight_, waits ? ngx_current_msec - first_command().sent_at : 0);

    report_load();

    return admits && !is_late() && !is_full();
}


bool
redis_link::has_time()
{
    bool admits = load_.admits_later(in_flight_);

    report_load();

    return admits && !is_late() && !is_full();
}


/* The oldest command has waited too long. */
bool
redis_link::is_late() const
{
    return busy() && is_due(first_command().deadline);
}


bool
redis_link::is_full() const
{
    return in_flight_ >= most_commands || bytes_in_flight() >= most_bytes;
}


/* The owner logs the change. */
void
redis_link::report_load()
{
    if (said_overloaded_ == load_.is_on()) {
        return;
    }

    said_overloaded_ = load_.is_on();

    if (said_overloaded_) {
        owner_.link_overloaded(*this);

    } else {
        owner_.link_recovered(*this);
    }
}


/*
 * Only moves the timer to an earlier time, because on_deadline() sets it
 * again.  If it is set for a command, no later command is due before that.
 */
void
redis_link::arm()
{
    ngx_msec_t deadline;

    deadline_.event.cancelable = !busy();

    if ((timer_is_for_command_ && deadline_.event.timer_set)
        || !next_deadline(deadline))
    {
        return;
    }

    if (deadline_.event.timer_set) {
        if (time_left(deadline) >= time_left(deadline_.event.timer.key)) {
            return;
        }

        ngx_del_timer(&deadline_.event);
    }

    ngx_msec_int_t left = time_left(deadline);

    ngx_add_timer(&deadline_.event, static_cast<ngx_msec_t>(ngx_max(left, 1)));
}


/* When check_deadlines() must run; false: there is nothing to wait for. */
bool
redis_link::next_deadline(ngx_msec_t &deadline)
{
    bool opening = state_ != state::ready && state_ != state::closed;

    deadline = opening ? connect_deadline_ : last_progress_ + patience();
    timer_is_for_command_ = false;

    for (ngx_queue_t *q = ngx_queue_head(&commands_);
         q != ngx_queue_sentinel(&commands_); q = ngx_queue_next(q))
    {
        const command &c = command_at(q);

        if (c.is_overdue) {
            continue;
        }

        if (time_left(c.deadline) <= time_left(deadline)) {
            timer_is_for_command_ = true;
            deadline = c.deadline;
        }

        break;
    }

    return opening || busy();
}


/*
 * How long the server may make no progress.  Large commands take time in
 * buffers of the network, where progress cannot be seen.
 */
ngx_msec_t
redis_link::patience() const
{
    return settings_.timeout
           + ngx_min(bytes_in_flight() / slowest_rate, most_patience);
}


std::uint64_t
redis_link::bytes_in_flight() const
{
    return busy() ? output_.added() - first_command().position : 0;
}


void
redis_link::on_deadline(ngx_event_t *event)
{
    own_event::owner_of<redis_link>(event)->check_deadlines();
}


void
redis_link::check_deadlines()
{
    if (state_ == state::ready) {

        if (busy() && is_due(last_progress_ + patience())) {
            fail("no reply in time", NGX_ETIMEDOUT, true);
            return;
        }

        tell_overdue();

    } else if (state_ != state::closed) {

        if (is_due(connect_deadline_)) {
            fail("could not connect in time", NGX_ETIMEDOUT, true);
            return;
        }

        if (busy() && is_due(first_command().deadline)) {
            fail_waiting();
        }
    }

    arm();
}


/* The server makes progress, but these commands have waited too long. */
void
redis_link::tell_overdue()
{
    ngx_connection_t *c = connection_;
    ngx_queue_t *q = ngx_queue_head(&commands_);

    /* A callback may close the connection, and with it end all commands. */
    while (connection_ == c && q != ngx_queue_sentinel(&commands_)) {
        command &late = command_at(q);

        q = ngx_queue_next(q);

        if (!is_due(late.deadline)) {
            return;
        }

        if (!late.is_overdue) {
            late.is_overdue = true;
            load_.overdue();
            report_load();
            late.overdue(late);
        }
    }
}


void
redis_link::check_later()
{
    if (!idle_.event.timer_set) {
        ngx_add_timer(&idle_.event, check_interval);
    }
}


void
redis_link::on_idle(ngx_event_t *event)
{
    own_event::owner_of<redis_link>(event)->check();
}


/*
 * Nobody would notice that an idle connection has gone, for example from the
 * tables of a firewall, until a request waits for it in vain.  TIME also keeps
 * the server's clock known.
 */
void
redis_link::check()
{
    if (state_ != state::ready || ngx_exiting) {
        return;
    }

    if (busy()) {
        check_later();
        return;
    }

    check_.link = this;
    check_.answered = check_answered;
    check_.overdue = [](command &) {};

    begin(check_, 1).add("TIME");
    end(check_);
}


void
redis_link::check_answered(command &c, const redisReply *reply, unanswered)
{
    if (reply != nullptr) {
        static_cast<decltype(check_) &>(c).link->greeting_.take_time(*reply);
    }
}

}
