#pragma once

#include "module/config.h"
#include "ngx.h"

namespace idempotency {

struct context;


enum class key_found : std::uint8_t {
    no,
    yes,
    bad,
    failed,  /* no memory */
    in_body, /* perhaps: the body has not been read yet */
};


struct key_search {
    std::string_view key;
    key_fault fault = key_fault::none; /* of a bad one */
};


/* The first source that is present decides.  Without a context the body has
   not been read yet. */
key_found find_key(ngx_http_request_t *r, const location_conf *conf,
                   context *ctx, key_search &out);

/*
 * Makes what finds the keys of json: sources while the body is walked through,
 * unless the request has a key already.  False: no memory.
 */
bool prepare_key_search(context &ctx);

/* Whether any source but the body has a key, valid or not. */
bool has_key(ngx_http_request_t *r, const location_conf *conf);


enum class naming : std::uint8_t { done, scope_empty, failed };

/* Names the record of the request by its scope, route and key. */
naming name_record(context &ctx);

/* Takes the parts of the request line that the names are made of. */
void split_target(context &ctx);

}
