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


/* What recover() found. */
struct zone_recovery {
    std::size_t records;
    std::size_t without_response; /* of these: records that lost theirs */
    std::size_t orphans;          /* blocks of a write that was cut short */
};


/*
 * The memory store's records in one region shared by processes.  A zone is
 * the header of its region, made by format(); it lives as long as the region
 * does.  The caller holds one lock around every call and passes the
 * milliseconds of one monotonic clock, which processes may have read at
 * slightly different times.
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
     * is too small for it.  A record that is found is not changed in any way.
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
    zone_recovery recover();

    [[nodiscard]] zone_stats stats() const;

private:
    friend struct zone_inspector; /* the tests' */
    class change;

    static constexpr std::uint32_t none = UINT32_MAX;
    static constexpr std::size_t block_size = 256;
    static constexpr std::size_t payload_size = 248;

    enum block_kind : std::uint8_t {
        free_block,
        head_block, /* holds a record */
        data_block, /* holds a part of a response */
    };

    /* What changes while a record lives. */
    struct version {
        std::uint64_t expiry;
        std::uint64_t since; /* last renewed, or completed */
        std::uint64_t lease;
        std::uint64_t keep;
        std::uint64_t response_size;
        std::uint32_t response; /* its first block */
        std::uint32_t attempt;
        token owner;
        record_state state;
    };

    struct record {
        std::uint32_t next_in_bucket;
        std::uint32_t heap_position;
        record_id name;
        digest fingerprint;
        version versions[2];
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
        std::uint32_t block_count;
        std::uint32_t bucket_bits;
        std::size_t heap_offset;
        std::size_t blocks_offset;
    };

    zone() = default;

    /* Where everything lies: zone_layout.h, but for measure(). */
    static bool measure(const void *region, std::size_t size, layout &l);
    unsigned char *base();
    std::uint32_t *buckets();
    std::size_t bucket_count() const;
    std::uint32_t *heap();
    block &block_at(std::uint32_t index);
    record &record_at(std::uint32_t index);
    version &current(std::uint32_t index);

    /* Steps of the operations: zone.cpp */
    void describe(std::uint32_t index, const idempotency::claim &c,
                  std::uint64_t now, zone_answer &answer);
    void take_over(std::uint32_t index, const idempotency::claim &c,
                   std::uint64_t now, zone_answer &answer);
    template <typename Edit>
    settle_result edit_owned(const ownership &whose, std::uint64_t now,
                             Edit edit);

    /* Records and the buckets they are found in: zone_records.cpp */
    std::uint32_t find(const record_id &name);
    std::uint32_t find_owned(const ownership &whose, std::uint64_t now);
    void create(const idempotency::claim &c, std::uint64_t now);
    void update(std::uint32_t index, const version &next);
    void switch_version(std::uint32_t index, const version &next);
    void erase(std::uint32_t index);
    std::uint32_t &bucket_of(const record_id &name);
    void add_to_bucket(std::uint32_t index);
    void remove_from_bucket(std::uint32_t index);

    /* Blocks, and the responses in them: zone_blocks.cpp */
    bool write_response(pieces response, version &v, std::uint64_t now);
    void read_response(const version &v, std::uint8_t *out);
    bool make_room(std::size_t blocks, std::uint64_t now);
    std::uint32_t allocate_block();
    void return_block(std::uint32_t index);

    /* Expired records, and a heap that has the next one: zone_expiry.cpp */
    std::size_t reclaim(std::uint64_t now, std::size_t max);
    bool reclaim_one(std::uint64_t now);
    void schedule(std::uint32_t index);
    void unschedule(std::uint32_t index);
    void sift(std::uint32_t position);
    void set_heap(std::uint32_t position, std::uint32_t index);

    /* Steps of recover(): zone_recovery.cpp */
    void recover_record(std::uint32_t index, zone_recovery &found);
    bool has_whole_response(const version &v);

    std::uint64_t seed_;
    std::uint64_t heap_offset_;
    std::uint64_t blocks_offset_;
    std::uint32_t block_count_;
    std::uint32_t bucket_bits_;
    std::uint32_t dirty_;

    /* Blocks from here on were never used; the system need not give them. */
    std::uint32_t touched_;

    /* All below is derived: recover() makes it from the head blocks. */
    std::uint32_t free_list_;
    std::uint32_t used_blocks_;
    std::uint32_t records_;
    std::uint32_t heap_size_;
};

}
