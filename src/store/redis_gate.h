#pragma once

#include "ngx.h"

namespace idempotency {

/*
 * Whether claims may be sent on a link.  When the server has lost its memory,
 * or is another one, what this worker knows is put back first.  Then other
 * hosts get some time to do the same.
 */
struct link_gate {
    bool closed = false;
    ngx_msec_t opens_at = 0;

    /* What is put back: on its way, and since the log was told. */
    unsigned under_way = 0;
    std::size_t bytes_under_way = 0;
    ngx_msec_t next_try = 0;
    ngx_uint_t put_back = 0; /* the server still had the others */
    ngx_uint_t still_there = 0;
    bool told = false;

    /* Late outcomes that have to be stored first. */
    ngx_uint_t outcomes_in_doubt = 0;

    /*
     * The server has refused a write since its memory was lost.  Hosts that
     * have something to put back can do so only when it accepts writes again:
     * then new claims wait once more.
     */
    bool refuses = false;
};

}
