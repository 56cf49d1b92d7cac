#include "contract/verdict.h"

namespace idempotency {

verdict
judge(record_state state, bool same_fingerprint)
{
    if (!same_fingerprint) {
        return verdict::reused;
    }

    switch (state) {

    case record_state::pending: return verdict::wait;

    case record_state::completed: return verdict::replay;

    case record_state::not_kept: return verdict::not_kept;

    case record_state::unknown: break;
    }

    /* Also for a state from elsewhere that this version does not know. */
    return verdict::unknown;
}

}
