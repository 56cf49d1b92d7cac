#pragma once

#include "module/config.h"

namespace idempotency {

enum class status_format : ngx_uint_t {
    off,
    by_accept, /* the client says */
    html,
    json,
    prometheus,
};


/* In each worker, before its first request: counts from now on. */
void start_status(main_conf &main);

}
