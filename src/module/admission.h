#pragma once

#include "contract/fingerprint.h"
#include "ngx.h"

namespace idempotency {

/*
 * How the request came to the location where the gate stands.  What names the
 * location lies in the configuration, which outlives the request.
 */
admission admitted_by(ngx_http_request_t *r);

/* Locations of two kinds may have one name. */
char kind_of(const ngx_http_core_loc_conf_t *core);

}
