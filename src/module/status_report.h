#pragma once

#include "module/config.h"
#include "module/text_output.h"

namespace idempotency {

/* Admin: where outcomes can be settled; empty: nowhere. */
void write_json(const main_conf &main, std::string_view admin,
                ngx_pool_t *pool, text_output &out);
void write_prometheus(const main_conf &main, ngx_pool_t *pool,
                      text_output &out);

}
