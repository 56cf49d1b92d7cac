#pragma once

#include "ngx.h"
#include "store/admin.h"

namespace idempotency {

struct logged_act {
    std::string_view act;
    const ngx_str_t &id;
    const ngx_str_t &store;
    std::string_view result;
};


/* One line for what an administrator has done, or tried to do. */
void log_act(ngx_http_request_t *r, const logged_act &what);

/* What a server said to it; the id is "-" for a list. */
void log_refusal(ngx_http_request_t *r, const ngx_str_t &id,
                 const admin_refusal &refusal);

}
