#include "contract/fingerprint.h"

namespace idempotency {

void
start_fingerprint(hasher &hash, const request_line &line, body_kind kind)
{
    /* Records outlive the module's version: a new form needs a new name. */
    hash.start("idempotency fingerprint 1");
    hash.field(line.method);
    hash.field(line.path);
    hash.field(line.arguments);
    hash.bytes(&kind, sizeof(kind));
}

}
