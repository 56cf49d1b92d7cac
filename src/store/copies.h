#pragma once

#include "store/store.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace idempotency {

/* What was said of a record that does not change any more. */
struct finished_record {
    record_state state; /* completed or not_kept */
    std::uint32_t attempt;
    digest fingerprint;

    /* When it was asked for; the two below are as of then. */
    std::uint64_t as_of;
    std::uint64_t age;       /* milliseconds since completion */
    std::uint64_t remaining; /* milliseconds, or forever */
};


/*
 * Copies of finished records in one region shared by processes: a ring, in
 * which the newest overwrites the oldest.  A copies is the header of its
 * region, made by format(); it lives as long as the region does.  The caller
 * holds one lock around every call and passes the milliseconds of one
 * monotonic clock.
 *
 * A process may be killed inside any call.  Whoever gets the lock next finds
 * dirty() and must call clear() first: what is lost are only copies.
 */
class copies {
public:
    copies(const copies &) = delete;
    copies &operator=(const copies &) = delete;

    /* Zeroed memory, aligned to 8.  Null: it is too small. */
    static copies *format(void *region, std::size_t size, std::uint64_t seed);

    /* The response is in the region: it stays while the lock is held. */
    bool find(const record_id &name, finished_record &out,
              std::span<const std::uint8_t> &response);

    /*
     * Does nothing if there is news of the record since it was asked for, or
     * if the response is too large.
     */
    void put(const record_id &name, const finished_record &what,
             pieces response, std::uint64_t now);

    /* Nor is what was asked for before now put in any more. */
    void drop(const record_id &name, std::uint64_t now);

    [[nodiscard]] bool dirty() const { return dirty_ != 0; }
    void clear();

private:
    class change;

    /* What it holds of one record, followed by the response. */
    struct entry {
        std::uint64_t older; /* position of the next in its bucket */
        std::uint64_t written;
        record_id name;
        finished_record what;
        std::uint64_t response_size;
        bool dropped; /* says only that */

        std::uint8_t *response()
        {
            return reinterpret_cast<std::uint8_t *>(this + 1);
        }
    };

    copies() = default;

    std::uint64_t *buckets();
    std::uint64_t &bucket_of(const record_id &name);
    entry &entry_at(std::uint64_t position);
    entry *newest(const record_id &name);
    entry *append(const record_id &name, std::uint64_t response_size,
                  std::uint64_t now);

    std::uint64_t seed_;
    std::uint32_t bucket_bits_;
    std::uint32_t dirty_;
    std::uint64_t capacity_;

    /*
     * Positions never go back: modulo the capacity they are places.  What
     * lies before the oldest is overwritten, whoever still points to it.
     */
    std::uint64_t oldest_;
    std::uint64_t end_;
};

}
