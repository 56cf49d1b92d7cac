#pragma once

#include "contract/known_fingerprints.h"
#include "ngx.h"

namespace idempotency {

struct context;
struct main_conf;


/*
 * Nearly every retry has the same bytes as its first request.  Such a one is
 * recognised by a tag of its bytes, and its body need not be parsed again: the
 * workers remember the fingerprints of the latest bodies that were parsed.
 */

/*
 * The body has been read.  True: the request has its fingerprint.  If it has
 * not, remember_body() is to be called when it has.
 */
bool is_known_body(context &ctx);
void remember_body(const context &ctx);

/* The shared memory for it; the reason of a failure is logged. */
ngx_int_t add_known_bodies(ngx_conf_t *cf, main_conf *main);

/* In each worker. */
void start_known_bodies(const main_conf &main);
void stop_known_bodies();

}
