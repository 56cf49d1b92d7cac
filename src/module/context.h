#pragma once

#include "contract/digest.h"
#include "contract/fingerprint.h"
#include "contract/json.h"
#include "contract/multipart.h"
#include "contract/outcome.h"
#include "module/config.h"
#include "module/problem.h"
#include "ngx.h"
#include "store/store.h"

namespace idempotency {

/* Where a request is on its way through the gate. */
enum class stage : std::uint8_t {
    start,    /* nothing done yet */
    reading,  /* its body is read and hashed */
    ready,    /* body and fingerprint are there: claim */
    claiming, /* the store has not answered yet */
    answered, /* the store has answered */
    parked,   /* another request runs the same key */
    running,  /* it owns the record */
    settling, /* it owned the record, its outcome is on its way */
    settled,  /* it owned the record, and its outcome is stored */
    passed,   /* no business of ours: untouched, replayed or refused */
};


enum class status : std::uint8_t {
    none,
    bypass,
    fresh,
    replay,
    in_progress,
    reused,
    unknown,
    not_kept,
    invalid,
    store_error,
};


/* The request's body on its way into the fingerprint.  See body.cpp. */
struct body_state {
    enum sink : std::uint8_t { hash, memory, multipart } into;
    body_kind kind;
    bool json;         /* its type says so */
    bool hash_as_read; /* the body filter feeds the hash */
    bool called;       /* nginx has the call in hand */
    bool there;
    ngx_chain_t *rest; /* to be walked */
    off_t offset;      /* in the first of it */
    own_event turn;
    multipart_hasher *parts;
    u_char *bytes; /* all of it, and json_padding */
    std::size_t size;

    ~body_state() { drop(); }

    void drop()
    {
        if (bytes != nullptr) {
            ngx_free(bytes);
            bytes = nullptr;
            size = 0;
        }
    }

    std::string_view text() const
    {
        return {reinterpret_cast<const char *>(bytes), size};
    }
};


/* The run: from the claim to the outcome.  See run.cpp. */
struct run_state {
    own_event renewal;
    settle_waiter renewed;
    ngx_msec_t renewed_at;
    ngx_uint_t first_exchange; /* of upstream_states */
    ngx_http_handler_pt content_handler;
    const ngx_http_core_loc_conf_t *location; /* of that handler */
    ngx_http_upstream_t *upstream_before; /* when that handler was called */
    ngx_http_upstream_conf_t *upstream_conf;
    ngx_int_t (*reinit_request)(ngx_http_request_t *r);
    ngx_http_event_handler_pt write_event_handler;
    ngx_uint_t handler_status; /* an error that the handler returned */
    bool subrequest_sent;      /* a byte to some peer */
    bool subrequest_unanswered;
    bool frozen;    /* the application has spoken: */
    bool delegated; /* ... and sent nginx elsewhere */
    evidence seen;
    app_word word;
};


/* The response on its way out.  See capture.cpp. */
struct capture_state {
    enum mode : std::uint8_t { none, held, streamed } how;
    bool overflow; /* larger than is kept */
    bool client_gone;
    bool own_answer; /* of the handler or the upstream */
    bool whole;      /* the last buffer was seen */
    app_word word;
    unsigned status; /* as the client gets it */
    off_t content_length;
    std::span<std::uint8_t> head; /* encoded, up to the body */
    std::span<const std::uint8_t> summary;
    ngx_chain_t *body;
    ngx_chain_t **last;
    ngx_buf_t *tail;
    off_t size;
    ngx_chain_t *unsent; /* passed on, not gone out yet */
    settle_waiter settled;
    bool waiting;    /* for the store to take the outcome */
    bool completing; /* ... which is one to be kept */
    token second;    /* of the claim that asks whose it is */
    bool asked;      /* the record was another's: */
    bool superseded; /* ... whose outcome is the answer */
};


struct waiting_link {
    ngx_queue_t queue;
    struct context *waiter;
};


/* A place among those who wait for one record.  See waiting.cpp. */
struct wait_state {
    waiting_link link;
    struct shared_wait *key; /* null: asks for itself alone */
    ngx_msec_t since;
    own_event wake;
    own_event deadline;
    bool started;
    bool over;
    bool met; /* over, and this was known: */
    claim_answer last;
};


/*
 * A request's life in this module.  Made by the gate for a request that
 * carries a key, found again after internal redirects through its pool
 * cleanup, which is also its end: whatever it still owns then is settled by
 * what is known.  Settings, key and names are taken once, at the gate.
 */
struct context {
    ngx_http_request_t *request;
    const location_conf *conf;
    stage at;
    idempotency::status status;
    error_code error;

    ngx_str_t key;
    ngx_str_t method;
    ngx_str_t path; /* undecoded, without arguments */
    ngx_str_t arguments;
    ngx_str_t uri; /* as it was at the gate */
    bool grpc;
    bool headers_pushed; /* those of the error */
    bool failed;         /* inside: it may not run */

    body_state body;
    ngx_str_t jsonrpc_id; /* as it is spelled */
    hasher hash;
    digest fingerprint;
    bool hashed; /* there is a fingerprint */

    ownership own;
    claim_waiter claimer;
    claim_answer answer;
    bool claim_called;     /* the store has the call in hand */
    ngx_msec_t asked;      /* when the store was, last */
    ngx_msec_t store_time; /* what was waited for the store */
    time_t expires;        /* Unix time; 0: not known; -1: never */

    run_state run;
    capture_state capture;
    wait_state wait;
};


/* The request's context, if it has one; also behind internal redirects. */
context *find_context(ngx_http_request_t *r);
context *make_context(ngx_http_request_t *r, const location_conf *conf);

/* Goes on with the phases from an event that is not the request's own. */
void resume(context &ctx);

void set_expires(context &ctx, std::uint64_t remaining);

ngx_int_t fail(context &ctx);

bool is_grpc_type(std::string_view type);
bool is_event_stream(std::string_view type);

/* How often the field is in the request; value is its first. */
unsigned find_header(ngx_http_request_t *r, const ngx_str_t &name,
                     ngx_str_t &value);


/* gate.cpp */
ngx_int_t gate(ngx_http_request_t *r);
bool make_token(token &out);

/* body.cpp */
ngx_int_t read_body(context &ctx);
json_parser *worker_json_parser();
void free_json_parser();
void init_request_body_filter();

/* jsonrpc.cpp */
bool is_jsonrpc_error(context &ctx);
std::span<u_char> with_own_id(context &ctx,
                              std::span<const std::uint8_t> body);

/* run.cpp */
ngx_int_t start_run(context &ctx);
ngx_int_t enter_again(context &ctx);
ngx_int_t stop_or_pass(context &ctx);
ngx_int_t guard_upstreams(ngx_conf_t *cf, main_conf *main);
bool is_same_request(const context &ctx);
evidence collect_evidence(context &ctx, bool complete);
void end_run(context &ctx, settle_result result);
void abandon_run(context &ctx);

/* keeping.cpp */
using piece = std::span<const std::uint8_t>;
bool keep_header(context &ctx);
bool keep(context &ctx, ngx_chain_t *in);
std::span<piece> assemble(context &ctx);
std::span<piece> no_content(context &ctx);

/* settle.cpp */
void settle(context &ctx, bool whole);
bool is_whole(const context &ctx);
app_word read_app_word(context &ctx);
void strip_app_word(ngx_http_request_t *r);
void log_ending(const context &ctx, const evidence &seen, const outcome &how);

/* capture.cpp */
ngx_int_t send_below(ngx_http_request_t *r, ngx_chain_t *body);
void init_response_filters();

/* successor.cpp */
bool ask_successor(context &ctx);
ngx_int_t send_successor(context &ctx);

/* replay.cpp */
ngx_int_t replay(context &ctx);
ngx_int_t send_replay(context &ctx);

/* waiting.cpp */
void init_waiting();
bool join(context &ctx);
bool was_pending(context &ctx);
void note_claimed(context &ctx);
bool park(context &ctx);
void leave(context &ctx);
void share_answer(context &ctx);
void wake_one(context &ctx);

/* variables.cpp */
ngx_int_t add_variables(ngx_conf_t *cf);

}
