#pragma once

#include "module/problem.h"

namespace idempotency {

/*
 * Whether a record of this request could have expired, by the time at which
 * the client says that it sent the request for the first time.  False: no
 * memory.
 */
bool check_first_sent(context &ctx, error_code &problem);

}
