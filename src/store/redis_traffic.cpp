#include "store/redis_link.h"

#include <algorithm>
#include <charconv>
#include <memory>

namespace idempotency {

namespace {

constexpr std::size_t block_size = 16 * 1024;
constexpr std::size_t large_part = 4 * 1024;

/* Redis itself has no larger strings. */
constexpr std::uint64_t largest_reply = 520ull * 1024 * 1024;


struct free_reply {
    void operator()(redisReply *reply) const { freeReplyObject(reply); }
};

using owned_reply = std::unique_ptr<redisReply, free_reply>;

}


/* A piece of what is to be sent: a block of commands, or a part outside. */
struct redis_link::segment {
    ngx_chain_t chain;
    ngx_buf_t buf;
    bool own;

    u_char *room() { return reinterpret_cast<u_char *>(this + 1); }

    static segment *of(ngx_chain_t *cl)
    {
        return reinterpret_cast<segment *>(cl);
    }
};


redis_link::segment *
redis_link::make_segment(std::size_t room)
{
    segment *made = nullptr;

    if (room != 0 && spare_ != nullptr) {
        made = spare_;
        spare_ = nullptr;

    } else {
        made = static_cast<segment *>(
            ngx_alloc(sizeof(segment) + room, &log_));
    }

    if (made == nullptr) {
        starved_ = true;
        return nullptr;
    }

    *made = {};
    made->own = room != 0;
    made->chain.buf = &made->buf;
    made->buf.memory = 1;

    if (made->own) {
        made->buf.start = made->room();
        made->buf.pos = made->buf.start;
        made->buf.last = made->buf.start;
        made->buf.end = made->buf.start + room;
    }

    if (out_ == nullptr) {
        out_ = &made->chain;

    } else {
        tail_->chain.next = &made->chain;
    }

    tail_ = made;

    return made;
}


void
redis_link::append(std::string_view text)
{
    appended_ += text.size();

    while (!text.empty() && !starved_) {
        bool room = tail_ != nullptr && tail_->own
                    && tail_->buf.last != tail_->buf.end;

        if (!room && make_segment(block_size) == nullptr) {
            return;
        }

        ngx_buf_t &buf = tail_->buf;
        std::size_t size = std::min<std::size_t>(
            text.size(), static_cast<std::size_t>(buf.end - buf.last));

        buf.last = ngx_cpymem(buf.last, text.data(), size);
        text.remove_prefix(size);
    }
}


void
redis_link::begin(command &c, unsigned arguments)
{
    char text[16];
    char *end = text;

    c.begin = appended_;

    *end++ = '*';
    end = std::to_chars(end, text + sizeof(text), arguments).ptr;
    *end++ = '\r';
    *end++ = '\n';

    append({text, static_cast<std::size_t>(end - text)});
}


void
redis_link::add(std::string_view text)
{
    add_size(text.size());
    append(text);
    append("\r\n");
}


/* Parts of that size together follow, then add_part({}). */
void
redis_link::add_size(std::size_t size)
{
    char text[32];
    char *end = text;

    *end++ = '$';
    end = std::to_chars(end, text + sizeof(text), size).ptr;
    *end++ = '\r';
    *end++ = '\n';

    append({text, static_cast<std::size_t>(end - text)});
}


void
redis_link::add_part(bytes part)
{
    if (part.empty()) {
        append("\r\n");
        return;
    }

    if (part.size() < large_part) {
        append({reinterpret_cast<const char *>(part.data()), part.size()});
        return;
    }

    segment *outside = make_segment(0);

    if (outside != nullptr) {
        outside->buf.pos = const_cast<u_char *>(part.data());
        outside->buf.last = outside->buf.pos + part.size();
    }

    appended_ += part.size();
}


void
redis_link::end(command &c)
{
    if (!busy()) {
        progress_ = ngx_current_msec;
    }

    c.deadline = ngx_current_msec + settings_.timeout;
    c.told = false;
    ngx_queue_insert_tail(&commands_, &c.queue);

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
    for (ngx_chain_t *cl = out_; cl != nullptr; cl = cl->next) {
        ngx_buf_t &buf = *cl->buf;

        if (segment::of(cl)->own || buf.pos < from.data()
            || buf.pos >= from.data() + from.size())
        {
            continue;
        }

        std::ptrdiff_t size = buf.last - buf.pos;

        buf.pos = const_cast<u_char *>(to) + (buf.pos - from.data());
        buf.last = buf.pos + size;
    }
}


void
redis_link::free_until(ngx_chain_t *rest)
{
    while (out_ != rest) {
        segment *sent = segment::of(out_);

        out_ = out_->next;

        if (sent->own && spare_ == nullptr) {
            spare_ = sent;

        } else {
            ngx_free(sent);
        }
    }

    if (out_ == nullptr) {
        tail_ = nullptr;
    }
}


/* Where the command ends that is next to be answered. */
std::uint64_t
redis_link::head_end() const
{
    if (!busy()) {
        return appended_;
    }

    ngx_queue_t *second = ngx_queue_next(ngx_queue_head(&commands_));

    return second == ngx_queue_sentinel(&commands_) ? appended_
                                                    : command_at(second).begin;
}


void
redis_link::on_flush(ngx_event_t *event)
{
    own_event::owner_of<redis_link>(event)->flush();
}


void
redis_link::flush()
{
    ngx_connection_t *c = connection_;

    if (starved_) {
        fail("no memory for a command", 0, true);
        return;
    }

    /* Not in end(): an attempt that fails at once would answer inside. */
    if (state_ == state::closed && busy()) {
        open();
        return;
    }

    if (state_ != state::ready || out_ == nullptr) {
        return;
    }

    off_t before = c->sent;
    bool head = written_ < head_end();
    ngx_chain_t *rest = c->send_chain(c, out_, 0);

    written_ += static_cast<std::uint64_t>(c->sent - before);

    /* A server that stands still goes on taking bytes for a while. */
    if (c->sent != before && head) {
        progress_ = ngx_current_msec;
    }

    if (rest == NGX_CHAIN_ERROR) {
        fail("write failed", 0, false);
        return;
    }

    free_until(rest);

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        fail("write event failed", 0, true);
    }
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

    /* nginx is about to leave, and wants its idle connections closed. */
    if (self->connection_->close) {
        if (self->busy()) {
            self->fail("nginx closed its connections", 0, false);

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
            fail(complaint_[0] != '\0' ? complaint_
                                       : "it closed the connection",
                 0, state_ != state::ready);
            return;
        }

        unparsed_ += static_cast<std::uint64_t>(n);
        progress_ = ngx_current_msec;

        if (unparsed_ > largest_reply
            || redisReaderFeed(reader_, reinterpret_cast<char *>(buffer),
                               static_cast<std::size_t>(n))
                   != REDIS_OK)
        {
            fail("its reply is too large", 0, true);
            return;
        }

        if (!parse()) {
            return;
        }
    }

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        fail("read event failed", 0, true);
    }
}


/* False: the connection is another one now, or none. */
bool
redis_link::parse()
{
    redisReader *reader = reader_;

    for (;;) {
        void *found = nullptr;

        if (redisReaderGetReply(reader, &found) != REDIS_OK) {
            fail("it does not speak the protocol of Redis", 0, true);
            return false;
        }

        if (found == nullptr) {
            return true;
        }

        owned_reply reply(static_cast<redisReply *>(found));

        unparsed_ = 0;

        if (!take(*reply)) {
            return false;
        }
    }
}


bool
redis_link::take(const redisReply &reply)
{
    ngx_atomic_uint_t number = connection_->number;

    if (state_ == state::greeting) {
        const char *wrong = take_greeting(reply);

        if (wrong != nullptr) {
            fail(wrong, 0, true);
            return false;
        }

        if (++greeted_ == greeting_size_) {
            opened();
        }

    } else if (!busy()) {
        fail("it sent what was not asked for", 0, true);
        return false;

    } else if (written_ < head_end()) {
        fail("it answered before it was asked", 0, true);
        return false;

    } else {
        command &c = command_at(ngx_queue_head(&commands_));

        ngx_queue_remove(&c.queue);
        attempts_ = 0;
        c.answered(c, &reply, unanswered::lost);
    }

    if (connection_ == nullptr || connection_->number != number) {
        return false;
    }

    if (state_ == state::ready && !busy()) {
        drained();
    }

    return true;
}


void
redis_link::drained()
{
    connection_->idle = 1;
    deadline_.event.cancelable = 1;
}

}
