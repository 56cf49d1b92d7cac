#pragma once

#include "ngx.h"

namespace idempotency {

/* How often the field is in the request; value is the first one's. */
unsigned find_header(ngx_http_request_t *r, const ngx_str_t &name,
                     ngx_str_t &value);

bool is_grpc_type(std::string_view type);
bool is_grpc_web_type(std::string_view type);
bool is_event_stream(std::string_view type);

}
