#pragma once

#include "ngx.h"

#include <cstdint>

namespace idempotency {

struct context;
struct subrequest_below;


/* Why the response of a completed run is not kept. */
enum class not_kept : std::uint8_t {
    no, /* it is kept */
    too_large,
    in_file,       /* a filter needs it there */
    not_encodable, /* more headers than a record can hold */
    incomplete,
    subrequest_output,
    discarded, /* the application asked for that */
    elsewhere, /* a location admitted the run where no retry can be led */
    encoded,   /* a retry of this JSON-RPC call could not get its own id */
    no_memory,
};


/* The response on its way out. */
struct capture_state {
    enum class mode : std::uint8_t {
        none,
        held,     /* held back until it is whole */
        waiting,  /* ... and until the store has the outcome */
        streamed, /* passed on while it is captured */
    };

    mode how;
    not_kept why_not;
    bool own_answer; /* of the handler or the upstream, not an error page */
    bool bodiless;   /* nginx sends no body, whatever is written */
    bool whole;      /* the last buffer was seen */
    bool cut_off;    /* and yet the document in it has not ended */
    bool encoded;    /* by the application; only known with JSON-RPC */
    unsigned status; /* as the client gets it */
    off_t content_length;
    off_t size;
    std::span<std::uint8_t> head; /* encoded, up to the body */
    std::span<const std::uint8_t> summary;
    ngx_chain_t *body;
    ngx_chain_t **last;
    ngx_buf_t *tail;
    subrequest_below *below; /* see writers.h */
};


inline bool
is_kept(const capture_state &capture)
{
    return capture.why_not == not_kept::no;
}


inline bool
is_held_back(const capture_state &capture)
{
    return capture.how == capture_state::mode::held
           || capture.how == capture_state::mode::waiting;
}


/* To the filters below us. */
ngx_int_t pass_header(ngx_http_request_t *r);
ngx_int_t pass_body(ngx_http_request_t *r, ngx_chain_t *in);

/*
 * Sends a response from our place in the chain: the filters above it (range
 * bodies, conditions) saw it once, those below it are to see it.
 */
ngx_int_t send_below(ngx_http_request_t *r, ngx_chain_t *body);

void init_response_filters();

}
