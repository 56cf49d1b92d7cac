#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace idempotency {

/* Integers in bytes that are stored: the same on every machine. */

/* Returns where it stopped writing. */
template <typename Integer>
std::uint8_t *
put_little_endian(std::uint8_t *out, Integer value)
{
    /* gcc 12 does not make one store of the loop by itself. */
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(out, &value, sizeof(Integer));

    } else {
        for (std::size_t i = 0; i < sizeof(Integer); i++) {
            out[i] = static_cast<std::uint8_t>(value >> (8 * i));
        }
    }

    return out + sizeof(Integer);
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
