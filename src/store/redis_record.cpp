#include "store/redis_record.h"

#include <algorithm>

namespace idempotency {

namespace {

/* Little-endian. */
template <class T>
std::uint8_t *put(std::uint8_t *p, T value);
template <class T>
T get(const std::uint8_t *&p);
template <std::size_t N>
void get(const std::uint8_t *&p, std::array<std::uint8_t, N> &out);

}


std::array<std::uint8_t, redis_record_head>
encode_redis_head(const redis_record &record)
{
    std::array<std::uint8_t, redis_record_head> out;
    std::uint8_t *p = out.data();

    *p++ = redis_record_version;
    *p++ = static_cast<std::uint8_t>(record.state);
    p = put(p, record.attempt);
    p = std::copy(record.owner.begin(), record.owner.end(), p);
    p = std::copy(record.fingerprint.begin(), record.fingerprint.end(), p);
    p = put(p, record.expiry);
    put(p, record.mark);

    return out;
}


std::optional<redis_record>
decode_redis_record(std::span<const std::uint8_t> bytes)
{
    redis_record record;
    const std::uint8_t *p = bytes.data();

    if (bytes.size() < redis_record_head || p[0] != redis_record_version
        || p[1] < static_cast<std::uint8_t>(record_state::pending)
        || p[1] > static_cast<std::uint8_t>(record_state::unknown))
    {
        return std::nullopt;
    }

    record.state = static_cast<record_state>(p[1]);
    p += 2;
    record.attempt = get<std::uint32_t>(p);
    get(p, record.owner);
    get(p, record.fingerprint);
    record.expiry = get<std::uint64_t>(p);
    record.mark = get<std::uint64_t>(p);
    record.response = bytes.subspan(redis_record_head);

    return record;
}


std::uint64_t
redis_expiry(std::uint64_t ttl)
{
    return ttl > redis_longest ? redis_never : std::max<std::uint64_t>(ttl, 1);
}


std::uint64_t
redis_pending_expiry(std::uint64_t lease, std::uint64_t keep)
{
    return keep > redis_longest ? redis_longest
                                : std::min(lease + keep, redis_longest);
}


namespace {

template <class T>
std::uint8_t *
put(std::uint8_t *p, T value)
{
    for (std::size_t i = 0; i < sizeof(T); i++) {
        *p++ = static_cast<std::uint8_t>(value >> (8 * i));
    }

    return p;
}


template <class T>
T
get(const std::uint8_t *&p)
{
    T value = 0;

    for (std::size_t i = 0; i < sizeof(T); i++) {
        value = static_cast<T>(value | static_cast<T>(*p++) << (8 * i));
    }

    return value;
}


template <std::size_t N>
void
get(const std::uint8_t *&p, std::array<std::uint8_t, N> &out)
{
    std::copy_n(p, N, out.begin());
    p += N;
}

}

}
