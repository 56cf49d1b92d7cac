#pragma once

#include "store/redis_store.h"

#include <charconv>

namespace idempotency {

/*
 * A command of an administrator: rare, so its script is always sent in full.
 * It belongs to itself, and ends when it is answered.
 */
struct admin_operation : command {
    redis_store *store;
    redis_link *link;
    admin_waiter *waiter;
    void (*take)(admin_operation &, const redisReply &);
    std::string_view script; /* its name for people */

    /* About one record. */
    record_id name;
    unsigned hops;
    bool is_asking;

    /* A settlement. */
    bool settles;
    admin_act act;
    token owner;
    std::uint64_t ttl;
    std::uint8_t *response; /* its own copy */
    std::size_t size;

    /* Where a copy of the record that it changes may be, or null. */
    local_copies *local;

    /* A list, in a cluster: which of the masters has this part of it. */
    std::size_t master;
};


/* A number as an argument. */
struct number_text {
    char text[24];
    std::size_t length;

    explicit number_text(std::uint64_t value)
        : length(static_cast<std::size_t>(
            std::to_chars(text, text + sizeof(text), value).ptr - text))
    {}

    operator std::string_view() const { return {text, length}; }
};


void answer_admin(admin_operation &op, const admin_answer &what);
void answer_refused(admin_operation &op, const redisReply &reply);
bool read_admin_record(const redisReply &reply, std::uint64_t now,
                       admin_record &out);

}
