#pragma once

#include "contract/byte_tag.h"

namespace idempotency {

/*
 * Fingerprints of requests that were seen lately, found by a tag of all that
 * they were made from.  In memory that several processes share and that was
 * zero at first.  It forgets: the oldest goes where there is no room.
 *
 * Nobody waits here.  What another process is using is not found, or not
 * added, and what a process died in is never used again.
 */
class known_fingerprints {
public:
    bool find(const byte_tag &tag, digest &fingerprint);
    void add(const byte_tag &tag, const digest &fingerprint);

    tag_key key; /* of the tags; secret */

private:
    struct entry {
        byte_tag tag;
        digest fingerprint;
    };

    struct group {
        std::uint32_t taken; /* by a process that is at work in it */
        std::uint32_t added; /* so far; the next goes to the oldest's place */
        std::array<entry, 4> entries;
    };

    class hold;

    group &group_of(const byte_tag &tag);

    std::array<group, 16 * 1024> groups_;
};

}
