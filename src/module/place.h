#pragma once

#include "ngx.h"

namespace idempotency {

struct context;
class response_reader;


/*
 * A content handler can send its request on (ngx.exec, echo_exec, an internal
 * redirect of Perl or njs, or an error before any peer was asked) to a
 * location with access rules of its own.  Then that location has admitted the
 * run, and only there its response may be replayed.
 */
struct place_state {
    ngx_uint_t changes; /* r->uri_changes when it was last looked at */
    ngx_str_t place;    /* where the run was sent on to; empty: nowhere */
    bool lost;          /* it was sent on, but its way cannot be gone again */
};


/* The run begins in the location where the gate stands. */
void start_place(context &ctx);

/* A running request has come to the gate of another location. */
void note_place(context &ctx, bool by_application);

/*
 * Looked at when the response is there: false if a replay would have to pass
 * the access rules of a location to which it cannot be led.
 */
bool has_known_place(context &ctx);

/* Whether the run was admitted where its gate stands: anything may be told. */
bool is_at_home(const context &ctx);

/* Replays the record, in the location that has admitted its run. */
ngx_int_t replay_in_place(context &ctx, response_reader &reader);

/* A request that was sent to that location has come to a gate. */
ngx_int_t arrive(context &ctx);

/* Whether the record's run was admitted where this run was. */
bool is_own_place(const context &ctx, const response_reader &reader);

}
