#pragma once

#include "module/error_codes.h"
#include "ngx.h"

namespace idempotency {

struct context;
enum class status : std::uint8_t;

/* Why a request is not run. */
struct refusal {
    idempotency::status status;
    error_code code;
};


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
