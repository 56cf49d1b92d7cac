#include "contract/fingerprint.h"

namespace idempotency {

namespace {

/* What follows is told from these, so that no way has the bytes of another. */
enum way : std::uint64_t { by_location, by_url_alone, by_condition };

}


void
start_fingerprint(hasher &hash, const request_line &line, const admission &how,
                  body_kind kind)
{
    /* Records outlive the module's version: a new form needs a new name. */
    hash.start("idempotency fingerprint 2");
    add_request(hash, line, how, kind);
}


void
add_request(framed &out, const request_line &line, const admission &how,
            body_kind kind)
{
    out.field(line.method);
    out.field(line.path);
    out.field(line.arguments);
    out.number(how.by_host);
    out.number(how.by_url              ? by_url_alone
               : how.condition.empty() ? by_location
                                       : by_condition);

    if (!how.by_url) {
        out.number(static_cast<unsigned char>(how.kind));
        out.field(how.location);
    }

    if (!how.by_url && !how.condition.empty()) {
        out.field(how.condition);
    }

    out.bytes(&kind, sizeof(kind));
}

}
