#pragma once

#include "store/redis_reply.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace idempotency {

/* A cluster spreads its keys over so many slots, each has one master. */
inline constexpr std::size_t slot_count = 16384;


/* The checksum that a key's slot is made of; it can be continued. */
std::uint16_t crc16(std::string_view text, std::uint16_t from = 0);

/* Of a key without braces. */
inline std::uint16_t
slot_of(std::string_view key)
{
    return crc16(key) % slot_count;
}


/* A server as others name it; empty: none. */
struct server_address {
    std::array<char, 256> host = {};
    std::uint16_t port = 0;

    bool operator==(const server_address &) const = default;
    bool is_empty() const { return host[0] == '\0'; }

    /* False: there is no such address. */
    bool set(std::string_view name, std::uint64_t number);
};


/* "MOVED 3999 10.0.0.5:6379", or ASK: who has the key instead. */
struct redirection {
    bool ask = false; /* this once */
    std::uint16_t slot = 0;

    /* Without a host: that of the server that says so. */
    server_address where;
};


/* False: it is another error, or not understood. */
bool read_redirection(std::string_view error, redirection &out);


/* A part of the reply to CLUSTER SLOTS: both slots are included. */
struct slot_range {
    std::uint16_t first = 0;
    std::uint16_t last = 0;
    server_address master;
};


/*
 * Without a host the master is the one that was asked.  False: it is no range,
 * or its master is not known.
 */
bool read_slot_range(const redisReply &reply, std::string_view asked,
                     slot_range &out);

/* Which master a Sentinel names.  False: none. */
bool read_master(const redisReply &reply, server_address &out);

}
