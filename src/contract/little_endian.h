#pragma once

#include <cstddef>
#include <cstdint>

namespace idempotency {

/* Integers in bytes that are stored: the same on every machine. */

/* Returns where it stopped writing. */
template <typename Integer>
std::uint8_t *
put_little_endian(std::uint8_t *out, Integer value)
{
    for (std::size_t i = 0; i < sizeof(Integer); i++) {
        *out++ = static_cast<std::uint8_t>(value >> (8 * i));
    }

    return out;
}


template <typename Integer>
Integer
get_little_endian(const std::uint8_t *in)
{
    std::uint64_t value = 0;

    for (std::size_t i = 0; i < sizeof(Integer); i++) {
        value |= static_cast<std::uint64_t>(in[i]) << (8 * i);
    }

    return static_cast<Integer>(value);
}

}
