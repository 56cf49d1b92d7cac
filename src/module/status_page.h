#pragma once

#include "ngx.h"

namespace idempotency {

/* Answers with the page that shows the status. */
ngx_int_t send_status_page(ngx_http_request_t *r);

/* Sends the header, then the body; null: no memory. */
ngx_int_t send_whole(ngx_http_request_t *r, std::string_view type,
                     ngx_chain_t *body, off_t size);

}
