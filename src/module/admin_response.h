#pragma once

#include "module/admin_form.h"

#include <cstdint>

namespace idempotency {

struct encoded_response {
    std::span<const std::uint8_t> whole;
    std::span<const std::uint8_t> summary; /* its status and Location */
};


/*
 * The response that an administrator has written: fields "status", "type",
 * "header" as often as wanted, "body".  False: it is none.
 */
bool encode_response(const admin_form &form, ngx_pool_t *pool,
                     encoded_response &out);

}
