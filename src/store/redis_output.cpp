#include "store/redis_output.h"

#include <algorithm>
#include <charconv>

namespace idempotency {

namespace {

constexpr std::size_t block_size = 16 * 1024;
constexpr std::size_t large_part = 4 * 1024;

}


/* A block of commands, or a reference to a large part. */
struct redis_output::segment {
    ngx_chain_t chain; /* must be first: of() casts back from it */
    ngx_buf_t buf;
    bool is_block;

    u_char *room() { return reinterpret_cast<u_char *>(this + 1); }

    static segment *of(ngx_chain_t *cl)
    {
        return reinterpret_cast<segment *>(cl);
    }
};


void
redis_output::begin(unsigned arguments)
{
    append_header('*', arguments);
}


void
redis_output::add(std::string_view argument)
{
    add_size(argument.size());
    append(argument);
    append("\r\n");
}


void
redis_output::add_size(std::size_t size)
{
    append_header('$', size);
}


void
redis_output::add_part(bytes part)
{
    if (part.empty()) {
        append("\r\n");
        return;
    }

    if (part.size() < large_part) {
        append(text_of(part));
        return;
    }

    segment *outside = make_segment(0);

    if (outside != nullptr) {
        outside->buf.pos = const_cast<u_char *>(part.data());
        outside->buf.last = outside->buf.pos + part.size();
    }

    added_ += part.size();
}


void
redis_output::part_moved(bytes from, const std::uint8_t *to)
{
    for (ngx_chain_t *cl = first_; cl != nullptr; cl = cl->next) {
        ngx_buf_t &buf = *cl->buf;

        if (segment::of(cl)->is_block || buf.pos < from.data()
            || buf.pos >= from.data() + from.size())
        {
            continue;
        }

        std::ptrdiff_t size = buf.last - buf.pos;

        buf.pos = const_cast<u_char *>(to) + (buf.pos - from.data());
        buf.last = buf.pos + size;
    }
}


bool
redis_output::send(ngx_connection_t *c)
{
    off_t before = c->sent;
    ngx_chain_t *rest = c->send_chain(c, first_, 0);

    sent_ += static_cast<std::uint64_t>(c->sent - before);

    if (rest == NGX_CHAIN_ERROR) {
        return false;
    }

    free_until(rest);
    return true;
}


void
redis_output::discard()
{
    free_until(nullptr);
    out_of_memory_ = false;
}


void
redis_output::free_memory()
{
    discard();

    if (spare_ != nullptr) {
        ngx_free(spare_);
        spare_ = nullptr;
    }
}


void
redis_output::append_header(char type, std::size_t number)
{
    char text[32];
    char *end = text;

    *end++ = type;
    end = std::to_chars(end, text + sizeof(text), number).ptr;
    *end++ = '\r';
    *end++ = '\n';

    append({text, static_cast<std::size_t>(end - text)});
}


void
redis_output::append(std::string_view text)
{
    added_ += text.size();

    while (!text.empty() && !out_of_memory_) {
        bool room = last_ != nullptr && last_->is_block
                    && last_->buf.last != last_->buf.end;

        if (!room && make_segment(block_size) == nullptr) {
            return;
        }

        ngx_buf_t &buf = last_->buf;
        std::size_t size = std::min<std::size_t>(
            text.size(), static_cast<std::size_t>(buf.end - buf.last));

        buf.last = ngx_cpymem(buf.last, text.data(), size);
        text.remove_prefix(size);
    }
}


redis_output::segment *
redis_output::make_segment(std::size_t room)
{
    segment *made = nullptr;

    if (room != 0 && spare_ != nullptr) {
        made = spare_;
        spare_ = nullptr;

    } else {
        made = static_cast<segment *>(
            ngx_alloc(sizeof(segment) + room, ngx_cycle->log));
    }

    if (made == nullptr) {
        out_of_memory_ = true;
        return nullptr;
    }

    *made = {};
    made->is_block = room != 0;
    made->chain.buf = &made->buf;
    made->buf.memory = 1;

    if (made->is_block) {
        made->buf.start = made->room();
        made->buf.pos = made->buf.start;
        made->buf.last = made->buf.start;
        made->buf.end = made->buf.start + room;
    }

    if (first_ == nullptr) {
        first_ = &made->chain;

    } else {
        last_->chain.next = &made->chain;
    }

    last_ = made;

    return made;
}


void
redis_output::free_until(ngx_chain_t *rest)
{
    while (first_ != rest) {
        segment *sent = segment::of(first_);

        first_ = first_->next;

        if (sent->is_block && spare_ == nullptr) {
            spare_ = sent;

        } else {
            ngx_free(sent);
        }
    }

    if (first_ == nullptr) {
        last_ = nullptr;
    }
}

}
