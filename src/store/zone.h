#pragma once

#include "store/store.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace idempotency {

/* response_size tells what is needed where the response did not fit. */
struct zone_answer : claim_answer {
    std::size_t response_size = 0;
};


struct zone_stats {
    std::size_t records; /* with the expired, not yet reclaimed ones */
    std::size_t blocks_used;
    std::size_t blocks_total;
    std::size_t block_size;
};


struct recovered {
    std::size_t records;
    std::size_t orphans; /* blocks of a write that never ended */
    std::size_t broken;  /* records that lost their response */
};


/*
 * The memory store's records in one region shared by processes.  A zone is
 * the header of its region, made by format(); it lives as long as the region
 * does.  The caller holds one lock around every
 * call and passes one monotonic clock's milliseconds, from which processes
 * may differ by a little.
 *
 * A process may be killed inside any call.  Whoever gets the lock next finds
 * dirty() and must call recover() first: every record is then as it was
 * before the interrupted call or as it is after.
 */
class zone {
public:
    zone(const zone &) = delete;
    zone &operator=(const zone &) = delete;

    static std::size_t minimum_size();

    /* Null: too small, or not aligned to 8; 64 is best. */
    static zone *format(void *region, std::size_t size, std::uint64_t seed);

    /*
     * The response, if there is one, is copied to out, or left empty if out
     * is too small for it.  What is found is not changed in any way.
     */
    zone_answer claim(const idempotency::claim &c, std::uint64_t now,
                      std::span<std::uint8_t> out);

    /* These take effect only on a pending record that the token owns. */
    settle_result complete(const ownership &whose, const completion &how,
                           std::uint64_t now);
    settle_result release(const ownership &whose, std::uint64_t now);
    settle_result mark_unknown(const ownership &whose, std::uint64_t keep,
                               std::uint64_t now);
    settle_result renew(const ownership &whose, std::uint64_t now);

    /* Reclaims up to max expired records; returns how many. */
    std::size_t expire(std::uint64_t now, std::size_t max);

    [[nodiscard]] bool dirty() const;
    recovered recover();

    [[nodiscard]] zone_stats stats() const;

private:
    friend struct zone_inspector; /* the tests' */
    class change;

    static constexpr std::uint32_t none = UINT32_MAX;
    static constexpr std::size_t block_size = 256;
    static constexpr std::size_t payload_size = 248;

    enum block_kind : std::uint8_t {
        free_block,
        head_block,
        data_block,
    };

    /* What changes while a record lives. */
    struct life {
        std::uint64_t expiry;
        std::uint64_t since; /* last renewed, or completed */
        std::uint64_t lease;
        std::uint64_t keep;
        std::uint64_t size;  /* of the response */
        std::uint32_t first; /* block of it */
        std::uint32_t attempt;
        token owner;
        record_state state;
    };

    struct record {
        std::uint32_t chain; /* next record of the bucket */
        std::uint32_t heap_at;
        digest name;
        digest fingerprint;
        life lives[2];
        std::uint8_t active; /* which of the two counts */
    };

    /* kind is outside the payload: no response can pass for a record. */
    struct block {
        std::uint8_t kind;
        std::uint8_t reached; /* used by recover() only */
        std::uint32_t next;   /* of the free list or response */
        union {
            record head;
            std::uint8_t bytes[payload_size];
        };
    };

    static_assert(sizeof(block) == block_size);

    struct layout {
        std::uint32_t blocks;
        std::uint32_t bucket_bits;
        std::size_t heap_at;
        std::size_t blocks_at;
    };

    zone() = default;

    static bool measure(const void *region, std::size_t size, layout &l);

    unsigned char *base();
    std::uint32_t *buckets();
    std::uint32_t *heap();
    block &at(std::uint32_t index);
    life &current(std::uint32_t index);

    std::uint32_t &bucket_of(const digest &name);
    std::uint32_t find(const digest &name);
    std::uint32_t owned(const ownership &whose, std::uint64_t now);
    void link(std::uint32_t index);
    void unlink(std::uint32_t index);

    void create(const idempotency::claim &c, std::uint64_t now);
    void replace(std::uint32_t index, const life &next);
    void rewrite(std::uint32_t index, const life &next);
    void erase(std::uint32_t index);
    bool describe(std::uint32_t index, const idempotency::claim &c,
                  std::uint64_t now, zone_answer &answer);
    void take_over(std::uint32_t index, const idempotency::claim &c,
                   std::uint64_t now);

    std::uint32_t take();
    void give_back(std::uint32_t index);
    bool make_room(std::size_t blocks, std::uint64_t now);
    bool write(pieces response, life &l, std::uint64_t now);
    void read(const life &l, std::uint8_t *out);

    bool expire_one(std::uint64_t now);
    std::size_t reclaim(std::uint64_t now, std::size_t max);
    void schedule(std::uint32_t index);
    void unschedule(std::uint32_t index);
    void place(std::uint32_t position, std::uint32_t index);
    void settle(std::uint32_t position);

    void adopt(std::uint32_t index, recovered &found);
    bool whole(const life &l);

    std::uint64_t seed_;
    std::uint64_t heap_offset_;
    std::uint64_t blocks_offset_;
    std::uint32_t blocks_;
    std::uint32_t bucket_bits_;
    std::uint32_t dirty_;

    /* Blocks from here on were never used; the system need not give them. */
    std::uint32_t touched_;

    /* All below is derived: recover() makes it from the head blocks. */
    std::uint32_t free_;
    std::uint32_t used_;
    std::uint32_t records_;
    std::uint32_t heap_size_;
};

}
