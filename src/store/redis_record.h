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
 * A record as it lies in Redis: a head of fixed size, then the response.  All
 * numbers are little-endian.  docs/record-format.md tells the rest; the
 * scripts in redis_scripts.h know these offsets too.
 */
inline constexpr std::uint8_t redis_record_version = 1;
inline constexpr std::size_t redis_record_head = 70;

/* Redis lets a key live that long; a record that is to stay for ever does. */
inline constexpr std::uint64_t redis_longest = 1ull << 43;


struct redis_record {
    record_state state;
    std::uint32_t attempt;
    token owner;
    digest fingerprint;
    std::uint64_t expiry; /* milliseconds it was given when last written */
    std::uint64_t mark; /* pending: its lease; else when it ended, by Redis */
    std::span<const std::uint8_t> response;
};


std::array<std::uint8_t, redis_record_head>
encode_redis_head(const redis_record &record);

/* Nothing: not a record, or one of a version that is not known. */
std::optional<redis_record>
decode_redis_record(std::span<const std::uint8_t> bytes);

/* A time to live as Redis gets it. */
std::uint64_t redis_expiry(std::uint64_t ttl);

}
