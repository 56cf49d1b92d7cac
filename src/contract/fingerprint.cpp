#include "contract/fingerprint.h"

namespace idempotency {

void
start_fingerprint(hasher &hash, const request_line &line, const admission &how,
                  body_kind kind)
{
    /* Records outlive the module's version: a new form needs a new name. */
    hash.start("idempotency fingerprint 2");
    hash.field(line.method);
    hash.field(line.path);
    hash.field(line.arguments);
    hash.number(how.by_host);
    hash.number(how.by_url);

    if (!how.by_url) {
        hash.number(static_cast<unsigned char>(how.kind));
        hash.field(how.location);
    }

    hash.bytes(&kind, sizeof(kind));
}

}
