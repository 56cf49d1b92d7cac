#pragma once

#include "module/config.h"

namespace idempotency {

/*
 * Of lines at this level that only "idempotency_fingerprint auto" heeds; once
 * for each.
 */
void warn_of_idle_pointers(ngx_conf_t *cf, location_conf &conf);

/*
 * Whether the settings of a location fit together, when it has been merged.
 * Refuses what cannot work, and warns of what was surely not meant.
 * on_here: it was switched on at this level itself.
 */
char *check_location(ngx_conf_t *cf, const location_conf &conf, bool on_here);

}
