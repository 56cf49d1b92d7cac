#pragma once

#include "ngx.h"
#include "store/redis_reply.h"

namespace idempotency {

/*
 * Commands that wait to be sent, in the Redis protocol.  Small arguments are
 * copied into blocks.  Large parts are not copied: their memory must stay
 * valid until they are sent or discarded.  Positions count all bytes that were
 * ever added.
 */
class redis_output {
public:
    /*
     * Begins a command with so many arguments.  Each argument is added as a
     * whole, or as its size, parts of that total size, and an empty part.
     */
    void begin(unsigned arguments);
    void add(std::string_view argument);
    void add_size(std::size_t size);
    void add_part(bytes part);

    /* A part has moved; its old memory is about to be freed. */
    void part_moved(bytes from, const std::uint8_t *to);

    bool empty() const { return first_ == nullptr; }
    bool out_of_memory() const { return out_of_memory_; }
    std::uint64_t added() const { return added_; }
    std::uint64_t sent() const { return sent_; }

    /* False: the connection is broken. */
    bool send(ngx_connection_t *c);

    void discard();
    void free_memory();

    /* Commands that were discarded count as sent. */
    void skip_discarded() { sent_ = added_; }

private:
    struct segment;

    void append_header(char type, std::size_t number);
    void append(std::string_view text);
    segment *make_segment(std::size_t room);
    void free_until(ngx_chain_t *rest);

    ngx_chain_t *first_ = nullptr;
    segment *last_ = nullptr;
    segment *spare_ = nullptr;
    std::uint64_t added_ = 0;
    std::uint64_t sent_ = 0;
    bool out_of_memory_ = false;
};

}
