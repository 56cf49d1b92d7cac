#pragma once

#include "module/config.h"

namespace idempotency {

/*
 * Of lines at this level that only "idempotency_fingerprint auto" heeds; once
 * for each.
 */
void warn_of_idle_pointers(ngx_conf_t *cf, location_conf &conf);

/* A level was merged, to be checked when all modules have merged theirs. */
bool remember_location(ngx_conf_t *cf, location_conf *outer,
                       location_conf *conf, bool on_here);

/*
 * Whether the settings of each location fit together.  Refuses what cannot
 * work, and warns of what was surely not meant.  Other modules may set their
 * content handlers as late as when they merge, so this comes after that.
 */
ngx_int_t check_locations(ngx_conf_t *cf);

/*
 * Warns of idempotency_admin where nothing restricts who may use it.  All
 * modules have registered their handlers by now.
 */
void warn_of_open_admin(ngx_cycle_t *cycle, const main_conf &main);

}
