#include "store/redis_link.h"

namespace idempotency {

namespace {

/* Redis allows strings of up to 512 megabytes. */
constexpr std::uint64_t largest_reply = 520ull * 1024 * 1024;

}


redis_output &
redis_link::begin(command &c, unsigned arguments)
{
    c.position = output_.added();
    c.replies = 1;
    c.earlier = nullptr;
    output_.begin(arguments);

    return output_;
}


redis_output &
redis_link::begin(command &c, unsigned arguments, bool asking)
{
    if (!asking) {
        return begin(c, arguments);
    }

    begin(c, 1).add("ASKING");

    return begin_next(c, arguments);
}


redis_output &
redis_link::begin_next(command &c, unsigned arguments)
{
    c.replies++;
    output_.begin(arguments);

    return output_;
}


void
redis_link::end(command &c)
{
    if (!busy()) {
        last_progress_ = ngx_current_msec;
    }

    c.sent_at = ngx_current_msec;
    c.deadline = ngx_current_msec + settings_.timeout;
    c.is_overdue = false;
    ngx_queue_insert_tail(&commands_, &c.queue);
    in_flight_++;

    if (connection_ != nullptr) {
        connection_->idle = 0;
    }

    if (!flush_.event.posted) {
        ngx_post_event(&flush_.event, &ngx_posted_events);
    }

    arm();
}


void
redis_link::part_moved(bytes from, const std::uint8_t *to)
{
    output_.part_moved(from, to);
}


void
redis_link::on_flush(ngx_event_t *event)
{
    own_event::owner_of<redis_link>(event)->flush();
}


void
redis_link::on_write(ngx_event_t *event)
{
    redis_link *self = of(event);

    if (self->state_ == state::connecting) {
        self->connected();

    } else {
        self->flush();
    }
}


void
redis_link::on_read(ngx_event_t *event)
{
    redis_link *self = of(event);

    /* This worker is shutting down and closes its idle connections. */
    if (self->connection_->close) {
        if (self->busy()) {
            self->fail("nginx closes its connections", 0, false);

        } else {
            self->close(false);
        }

        return;
    }

    if (self->state_ == state::connecting) {
        self->connected();
        return;
    }

    self->read();
}


redis_link *
redis_link::of(ngx_event_t *event)
{
    return static_cast<redis_link *>(
        static_cast<ngx_connection_t *>(event->data)->data);
}


void
redis_link::flush()
{
    ngx_connection_t *c = connection_;

    if (output_.out_of_memory()) {
        fail("not enough memory for a command", 0, true);
        return;
    }

    /* Not in end(): if this fails at once, callbacks would run inside it. */
    if (state_ == state::closed && busy()) {
        open();
        return;
    }

    if (state_ != state::ready || output_.empty()) {
        return;
    }

    std::uint64_t before = output_.sent();
    bool sends_first = before < first_command_end();
    bool written = output_.send(c);

    /* Later commands do not count: the kernel takes bytes for any server. */
    if (output_.sent() != before && sends_first) {
        last_progress_ = ngx_current_msec;
    }

    if (!written) {
        fail("write failed", 0, false);
        return;
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        fail("ngx_handle_write_event() failed", 0, true);
    }
}


/* Where the command ends that will be answered next. */
std::uint64_t
redis_link::first_command_end() const
{
    if (!busy()) {
        return output_.added();
    }

    ngx_queue_t *second = ngx_queue_next(ngx_queue_head(&commands_));

    return second == ngx_queue_sentinel(&commands_)
               ? output_.added()
               : command_at(second).position;
}


command &
redis_link::first_command() const
{
    return command_at(ngx_queue_head(&commands_));
}


void
redis_link::read()
{
    static u_char buffer[64 * 1024];
    ngx_connection_t *c = connection_;

    for (;;) {
        ssize_t n = c->recv(c, buffer, sizeof(buffer));

        if (n == NGX_AGAIN) {
            break;
        }

        if (n <= 0) {
            const char *said = greeting_.first_error();

            fail(said != nullptr ? said : "Redis closed the connection", 0,
                 state_ != state::ready);
            return;
        }

        unparsed_ += static_cast<std::uint64_t>(n);
        last_progress_ = ngx_current_msec;

        if (unparsed_ > largest_reply
            || redisReaderFeed(reader_, reinterpret_cast<char *>(buffer),
                               static_cast<std::size_t>(n))
                   != REDIS_OK)
        {
            fail("the reply is too large", 0, true);
            return;
        }

        if (!parse()) {
            return;
        }
    }

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        fail("ngx_handle_read_event() failed", 0, true);
    }
}


/* False: the connection was closed meanwhile, or is another one. */
bool
redis_link::parse()
{
    redisReader *reader = reader_;

    for (;;) {
        void *found = nullptr;

        if (redisReaderGetReply(reader, &found) != REDIS_OK) {
            fail("the reply is not in the Redis protocol", 0, true);
            return false;
        }

        if (found == nullptr) {
            return true;
        }

        owned_reply reply(static_cast<redisReply *>(found));

        unparsed_ = 0;

        if (!take(std::move(reply))) {
            return false;
        }
    }
}


bool
redis_link::take(owned_reply reply)
{
    ngx_atomic_uint_t number = connection_->number;

    if (state_ != state::greeting) {
        if (!take_answer(std::move(reply))) {
            return false;
        }

    } else {
        const char *wrong = greeting_.take(*reply);

        if (wrong != nullptr) {
            fail(wrong, 0, true);
            return false;
        }

        if (greeting_.is_complete()) {
            opened();
        }
    }

    if (connection_ == nullptr || connection_->number != number) {
        return false;
    }

    if (state_ == state::ready && !busy()) {
        drained();
    }

    return true;
}


bool
redis_link::take_answer(owned_reply reply)
{
    if (!busy()) {
        fail("a reply without a command", 0, true);
        return false;
    }

    command &c = first_command();

    if (!was_sent(c)) {
        fail("a reply to a command that was not sent yet", 0, true);
        return false;
    }

    if (--c.replies != 0) {
        owned_reply before(c.earlier);
        c.earlier = reply.release();
        return true;
    }

    owned_reply earlier(c.earlier);

    ngx_queue_remove(&c.queue);
    in_flight_--;
    failures_ = 0;
    load_.answered(ngx_current_msec - c.sent_at);
    report_load();
    c.answered(c, reply.get(), unanswered::lost);

    return true;
}


/* Of several, the first reply may come before the last is sent. */
bool
redis_link::was_sent(const command &c) const
{
    return c.replies > 1 ? output_.sent() > c.position
                         : output_.sent() >= first_command_end();
}


/* An idle connection does not delay the shutdown of a worker. */
void
redis_link::drained()
{
    connection_->idle = 1;
    deadline_.event.cancelable = 1;

    check_later();
}

}
