#pragma once

#include "contract/digest.h"
#include "contract/verdict.h"
#include "store/store.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace idempotency {

/*
 * A record as it is stored in Redis: a head of fixed size, then the response.
 * All numbers are little-endian.  docs/record-format.md describes the format;
 * the scripts in redis_scripts.h use the same offsets.
 */
inline constexpr std::uint8_t redis_record_version = 1;
inline constexpr std::size_t redis_record_head = 70;

/* The longest TTL that all servers accept: 4 years. */
inline constexpr std::uint64_t redis_longest = 1ull << 37;

/* Stands in a record for "never expires". */
inline constexpr std::uint64_t redis_never = 1ull << 43;


struct redis_record {
    record_state state;
    std::uint32_t attempt;
    token owner;
    digest fingerprint;
    std::uint64_t expiry; /* TTL in milliseconds when it was last written */
    std::uint64_t mark;   /* pending: its lease; else when Redis stored it */
    std::span<const std::uint8_t> response;
};


std::array<std::uint8_t, redis_record_head>
encode_redis_head(const redis_record &record);

/* Nothing: not a record, or of an unknown version. */
std::optional<redis_record>
decode_redis_record(std::span<const std::uint8_t> bytes);

/* The expiry of an outcome that is kept so long; redis_never: none. */
std::uint64_t redis_expiry(std::uint64_t ttl);

/* A pending record always expires: what has gone of that is its age. */
std::uint64_t redis_pending_expiry(std::uint64_t lease, std::uint64_t keep);

}
