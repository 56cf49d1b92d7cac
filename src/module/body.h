#pragma once

#include "contract/byte_tag.h"
#include "contract/digest.h"
#include "contract/fingerprint.h"
#include "contract/json.h"
#include "contract/json_finder.h"
#include "contract/multipart.h"
#include "ngx.h"

namespace idempotency {

struct context;


/* The request body on its way into the fingerprint. */
struct body_state {
    enum class sink : std::uint8_t { hash, memory, multipart, none };

    /* Whether nginx's call that reads the body has returned. */
    enum class arrival : std::uint8_t { later, in_call, arrived_in_call };

    sink into;
    arrival read;
    body_kind kind;
    bool json;           /* the content type is JSON, and it is not encoded */
    bool may_have_key;   /* some content type names JSON */
    bool too_large;      /* to be parsed: it counts as bytes */
    bool hashed_as_read; /* the body filter feeds the hash */
    bool has_fingerprint;
    off_t limit;          /* client_max_body_size */
    ngx_int_t refused_by; /* nginx: a status, 0: it was not refused */
    ngx_chain_t *rest;    /* what is still to be walked through */
    off_t offset;         /* in the first buffer of it */
    own_event turn;
    multipart_hasher *parts;
    json_finder *finder; /* of keys; null: there is nothing to be found */
    std::span<json_target> targets; /* a target for each json: source */
    bool walked;                    /* once: what there is was found */
    u_char *bytes; /* the whole body, followed by json_padding */
    std::size_t size;
    bool borrowed; /* bytes lie in nginx's own buffer */
    hasher hash;
    digest fingerprint;
    bool tagged; /* it has a tag, by which it is known or remembered */
    byte_tag tag;

    ~body_state() { drop(); }

    void drop()
    {
        if (bytes != nullptr && !borrowed) {
            ngx_free(bytes);
        }

        bytes = nullptr;
        size = 0;
    }

    std::string_view text() const
    {
        return {reinterpret_cast<const char *>(bytes), size};
    }
};


/*
 * A larger body is not parsed, as that is done in one turn of the event loop:
 * 46 milliseconds at this size for the worst body, see docs/fingerprint.md.
 */
inline constexpr off_t max_parsed = 4 * 1024 * 1024;

/*
 * Reads the body and makes the fingerprint.  NGX_OK: both are there.  Anything
 * else is what the phase handler has to return.
 */
ngx_int_t read_body(context &ctx);

/*
 * nginx refused the body.  A part of it may have been read, and is not to run.
 * Status 0: nginx has not told us its status.
 */
void note_refused_body(context &ctx, ngx_int_t status);

/* Of a body that has been read. */
off_t size_of_body(const context &ctx);

void init_request_body_filter();

/* body_fingerprint.cpp: what a body means. */

/* Decides by the content type how the body is hashed; false: no memory. */
bool prepare_fingerprint(context &ctx);

/* The body is too large to be parsed. */
void count_as_bytes(context &ctx);

enum class fingerprint_result : std::uint8_t {
    done,
    walk_again, /* not what its type says: hash the bytes, from the start */
    failed,
};

/* The body has been walked through. */
fingerprint_result finish_fingerprint(context &ctx);

/* Whether the content type says so, and the body is not encoded. */
bool is_json_request(ngx_http_request_t *r);

/* Whether a json: source has to be looked for in the body. */
bool may_have_json_key(ngx_http_request_t *r);

/* A compressed body is not what its type says until somebody decodes it. */
bool is_encoded(ngx_http_request_t *r);

/* Shared by all requests of a worker; null: no memory. */
json_parser *worker_json_parser();
void free_json_parser();

}
