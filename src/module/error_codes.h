#pragma once

#include "ngx.h"

#include <cstdint>

namespace idempotency {

struct context;
struct location_conf;


/* In the order of the table in error_codes.cpp. */
enum class error_code : std::uint8_t {
    none,
    key_missing,
    key_invalid,
    key_not_supported,
    scope_missing,
    first_sent_invalid,
    key_expired,
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


struct problem {
    std::string_view name;
    ngx_uint_t status;
    unsigned grpc_status;
    std::string_view title;
    std::string_view detail;
};


const problem &describe(error_code code);

/* The HTTP status, which the operator may have changed. */
ngx_uint_t status_of(const location_conf *conf, error_code code);

/* Empty beyond the last code. */
std::string_view name_of(error_code code);

/* The error of this request in a sentence.  No data: no memory. */
ngx_str_t detail_of(const context &ctx);

/* none: there is no such code. */
error_code error_by_name(std::string_view name);

}
