#pragma once

#include <cstdint>

namespace idempotency {

enum class record_state : std::uint8_t {
    pending = 1,
    completed = 2,
    not_kept = 3,
    unknown = 4,
};


enum class verdict : std::uint8_t {
    replay,
    wait,
    reused,
    unknown,
    not_kept,
};


/* What a request gets that met a record.  Another fingerprint comes first. */
verdict judge(record_state state, bool same_fingerprint);

}
