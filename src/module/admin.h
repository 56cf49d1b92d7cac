#pragma once

#include "ngx.h"

namespace idempotency {

/* The content handler of a location with idempotency_admin. */
ngx_int_t administer(ngx_http_request_t *r);

/* Where the server of this request has such a location; empty: nowhere. */
std::string_view admin_path(ngx_http_request_t *r);

}
