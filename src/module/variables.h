#pragma once

#include "ngx.h"

namespace idempotency {

ngx_int_t add_variables(ngx_conf_t *cf);

}
