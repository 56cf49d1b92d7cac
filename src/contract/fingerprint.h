#pragma once

#include "contract/digest.h"

namespace idempotency {

/*
 * How the body takes part.  The kind is hashed with the body, so that no body
 * of one kind can have the fingerprint of a body of another.
 */
enum class body_kind : char {
    none = 'n',
    raw = 'r',
    json = 'j',
    form = 'f',
    multipart = 'm',
    call =
        'c', /* of JSON-RPC: bytes, in fields, without what does not count */
};


struct request_line {
    std::string_view method;
    std::string_view path; /* as the client sent it, undecoded */
    std::string_view arguments;
};


/*
 * How a request was admitted.  Other access rules may stand on another way, so
 * what was admitted by one way is another request than what came by another.
 */
struct admission {
    bool by_host = true; /* the Host named the server, it is no mere default */
    bool by_url = true;  /* the URL alone led to the location */
    char kind = 0;       /* of the location, where by_url is false */

    /* Where by_url is false: its name, and the condition of an if in it. */
    std::string_view location = {};
    std::string_view condition = {};
};


/* Starts the fingerprint of a request; the body follows by hash.bytes(). */
void start_fingerprint(hasher &hash, const request_line &line,
                       const admission &how, body_kind kind);

/* All that a fingerprint covers but the body. */
void add_request(framed &out, const request_line &line, const admission &how,
                 body_kind kind);

}
