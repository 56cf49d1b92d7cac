#pragma once

#include "ngx.h"

#include <cstdint>

namespace idempotency {

struct context;
enum class status : std::uint8_t;

/* In the order of the table in problem.cpp. */
enum class error_code : std::uint8_t {
    none,
    key_missing,
    key_invalid,
    key_not_supported,
    scope_missing,
    in_progress,
    outcome_unknown,
    response_not_kept,
    key_reused,
    store_unavailable,
};


/* A line of idempotency_error. */
struct error_status {
    error_code code;
    ngx_uint_t status;
};


/* Why a request is not run. */
struct refusal {
    idempotency::status status;
    error_code code;
};


std::string_view name_of(error_code code);

/* none: there is no such code. */
error_code error_by_name(std::string_view name);

/*
 * Answers the request with the error; in a dry run only logs it.  Returns what
 * the phase handler has to return.
 */
ngx_int_t refuse(context &ctx, refusal why);

/* The same, also in a dry run and without a change of the status. */
ngx_int_t send_problem(context &ctx, error_code code);

/* The same from a filter, in place of another response. */
ngx_int_t send_problem_below(context &ctx, error_code code);

}
