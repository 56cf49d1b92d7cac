#pragma once

#include "contract/digest.h"
#include "contract/key.h"
#include "contract/outcome.h"
#include "contract/verdict.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace idempotency {

class counters;
struct admin_waiter;
struct admin_settlement;

using token = std::array<std::uint8_t, 16>;


struct claim {
    record_id name;
    digest fingerprint;
    token owner;
    std::uint64_t lease; /* milliseconds without a renewal */
    std::uint64_t keep;  /* how long the record outlives its lease */
    bool take_over;      /* an unknown outcome may be run again */
    bool again = false;  /* it met a pending record just now */
};


enum class claim_result : std::uint8_t {
    claimed,
    found,
    unavailable,
    unreadable, /* there is a record, but not to be told from */
};


struct claim_answer {
    claim_result result = claim_result::unavailable;
    record_state state = record_state::pending;
    bool same_fingerprint = false;
    bool from_copy = false; /* the store itself was not asked */
    std::uint32_t attempt = 0;
    std::uint64_t age = 0;       /* milliseconds since completion */
    std::uint64_t remaining = 0; /* milliseconds, or forever */

    /* Completed or not kept: an encoded response. */
    std::span<const std::uint8_t> response;
};


enum class settle_result : std::uint8_t {
    done,
    kept_without_response, /* no room for it: the outcome is kept */
    lost,                  /* the token owns the record no more */
    unavailable,
};


using pieces = std::span<const std::span<const std::uint8_t>>;


/* Which record, and by what right. */
struct ownership {
    record_id name;
    token owner;
    std::uint64_t lease = 0; /* milliseconds */

    /* With these, a record that the store has lost can be put back. */
    std::uint64_t keep = 0; /* how long the record outlives its lease */
    digest fingerprint = {};
    std::uint32_t attempt = 1;

    /* By this worker's clock.  Another may have taken over after that. */
    std::uint64_t leased_until = 0;

    /* A renewal had no reply: it may still take effect, after the outcome. */
    bool renewal_lost = false;
};


/*
 * How a run ended well.  The summary is an encoded response without fields
 * but Location and without a body; it stands in where the response has no
 * room, and has a time of its own.
 */
struct completion {
    record_state state; /* completed or not_kept */
    std::uint64_t ttl;
    pieces response;
    pieces summary;
    std::uint64_t summary_ttl;
};


/*
 * Who waits for a claim's answer.  The answer may come inside the call.  The
 * response in it lies in memory that room() gave, null where there is none.
 */
struct claim_waiter {
    void *owner;
    void (*answered)(claim_waiter &, const claim_answer &);
    std::uint8_t *(*room)(claim_waiter &, std::size_t size);
    struct operation *under_way = nullptr; /* the store's own */
};


struct settle_waiter {
    void *owner;
    void (*settled)(settle_waiter &, settle_result);
    struct operation *under_way = nullptr;
};


/* Of a store that has room for so many bytes and no more. */
struct store_usage {
    std::uint64_t records; /* with the expired, not yet reclaimed ones */
    std::uint64_t used;
    std::uint64_t facts; /* of the used bytes: cannot make room for others */
    std::uint64_t size;
    std::uint64_t dropped; /* responses that made room, ever */
    std::uint64_t refused; /* claims that found no room, ever */

    /* Milliseconds until all of it is used, or forever. */
    std::uint64_t full_in;
    std::uint64_t facts_full_in;
};


/*
 * Who remembers.  Made while the configuration is read, lives as long as it
 * does.  claim() alone decides who runs; everything after it is fenced: it
 * takes effect only while the token owns the record.  All five answer by
 * callback, at once or later; a settlement without a waiter is seen to by the
 * store alone.  The bytes of a completion are the caller's and stay until the
 * answer, or until the waiter is forgotten.
 */
class store {
public:
    /* Where its numbers are kept; set before it starts. */
    counters *counts = nullptr;

    /* Some location has idempotency_admin; set before it starts. */
    bool is_administered = false;

    virtual void claim_record(const claim &what, claim_waiter &waiter) = 0;
    virtual void complete(const ownership &whose, const completion &how,
                          settle_waiter *waiter) = 0;
    virtual void release(const ownership &whose, settle_waiter *waiter) = 0;
    virtual void mark_unknown(const ownership &whose, std::uint64_t keep,
                              settle_waiter *waiter) = 0;
    virtual void renew(const ownership &whose, settle_waiter &waiter) = 0;

    /*
     * The waiter is about to go.  A claim that nobody waits for is given
     * back; a settlement goes on.
     */
    virtual void forget(claim_waiter &waiter) = 0;
    virtual void forget(settle_waiter &waiter) = 0;

    /*
     * For administrators, see admin.h.  None of these changes a record while
     * its owner lives.
     */
    virtual void look_up(const record_id &name, admin_waiter &waiter) = 0;
    virtual void list_unknown(std::uint64_t from, admin_waiter &waiter) = 0;
    virtual void settle_unknown(const record_id &name,
                                const admin_settlement &how,
                                admin_waiter &waiter) = 0;
    virtual void forget(admin_waiter &waiter) = 0;

    virtual std::string_view kind() const = 0;

    /* False: it has no room of its own. */
    virtual bool usage(store_usage &) { return false; }

    /* The longest time that a request waits for an answer; 0: none. */
    virtual std::uint64_t timeout() const { return 0; }

    /* The bytes there are for all records; 0: it is not known here. */
    virtual std::size_t capacity() const { return 0; }

    /* In each worker, when it begins and when it ends. */
    virtual void start() = 0;
    virtual void stop() = 0;

protected:
    ~store() = default;
};

}
