#pragma once

#include <cstdint>
#include <string_view>

namespace idempotency {

/* Where a request is on its way through the module. */
enum class stage : std::uint8_t {
    start,    /* nothing has been done yet */
    reading,  /* the body is being read and hashed */
    ready,    /* body and fingerprint are known: the key can be claimed */
    claiming, /* the store has not answered yet */
    answered, /* the store has answered */
    parked,   /* another request runs the same key, this one waits */
    walking,  /* sent to the location that admitted the first request */
    running,  /* the request owns the record and runs */
    settling, /* the run has ended, its outcome is on its way to the store */
    settled,  /* the run has ended, and the store has its outcome */
    passed,   /* not protected: the request goes on untouched */
    replayed, /* answered with a stored response */
    refused,  /* answered with an error of ours */
    failed,   /* an internal error: it may not run */
};

inline constexpr std::size_t stage_count = 14;


/* Whether a request may go from one stage to the other in one step. */
bool is_legal_move(stage from, stage to);

std::string_view name_of(stage s);

}
