#pragma once

#include "store/store.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace idempotency {

/* What an administrator is told of a record; its body is not among it. */
struct admin_record {
    record_id name;
    record_state state; /* a pending one whose lease has expired is unknown */
    std::uint32_t attempt;
    std::uint64_t age;       /* milliseconds since it was last written */
    std::uint64_t remaining; /* milliseconds, or forever */
    std::uint64_t response_size;
    std::uint8_t response_head[4]; /* has the status, if there is a response */
};


enum class admin_result : std::uint8_t {
    done,
    not_found,
    owner_lives, /* it is being run */
    not_unknown, /* its outcome is known */
    no_room,
    unreadable,  /* it is no record, or damaged, or of another version */
    unreachable, /* there is no connection: nothing was asked */
    refused,     /* the server replied with an error, see admin_refusal */
    unavailable, /* no reply: it may have been done */
};


/* Of a server that did not do it.  The views end with the call. */
struct admin_refusal {
    std::string_view server;
    std::string_view command;
    std::string_view reply;
    std::string_view page; /* of the documentation */
    bool had_no_effect;    /* as far as the reply tells */
};


struct admin_answer {
    admin_result result = admin_result::unavailable;
    std::span<const admin_record> records;
    std::uint64_t next = 0; /* of a list: where to go on; 0: this is the end */
    admin_refusal refusal = {};
};


/* Who waits for such an answer, which may come inside the call. */
struct admin_waiter {
    void *owner;
    void (*answered)(admin_waiter &, const admin_answer &);
    struct admin_operation *under_way = nullptr; /* the store's own */
};


enum class admin_act : std::uint8_t {
    release,  /* it did not happen: a retry runs */
    complete, /* it did happen: a retry gets this response */
    remove,   /* whatever it is, unless it is being run */
};


/*
 * The token is new: an owner that comes back to life after its lease has
 * expired must not take the administrator's outcome for its own.
 */
struct admin_settlement {
    admin_act act;
    token owner;
    std::uint64_t ttl;
    pieces response; /* encoded */
    pieces summary;  /* of it, see completion */
};

}
