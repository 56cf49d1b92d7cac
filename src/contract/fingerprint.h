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
};


struct request_line {
    std::string_view method;
    std::string_view path; /* as the client sent it, undecoded */
    std::string_view arguments;
};


/* Starts the fingerprint of a request; the body follows by hash.bytes(). */
void start_fingerprint(hasher &hash, const request_line &line, body_kind kind);

}
