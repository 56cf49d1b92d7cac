#pragma once

#include "ngx.h"

namespace idempotency {

/* The phase handler through which every protected request goes. */
ngx_int_t gate(ngx_http_request_t *r);

}
