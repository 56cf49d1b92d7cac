#pragma once

#include "contract/digest.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

/*
 * A finding for libFuzzer, as an assert() that no flag can take away; says
 * which one it was.
 */
inline void
check(bool holds, const char *claim)
{
    if (!holds) {
        std::fprintf(stderr, "does not hold: %s\n", claim);
        std::abort();
    }
}


inline std::string_view
text_of(const std::uint8_t *data, std::size_t size)
{
    return {reinterpret_cast<const char *>(data), size};
}
