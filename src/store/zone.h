#pragma once

#include "store/admin.h"
#include "store/store.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

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
    std::size_t blocks_of_responses; /* of the used ones: may make room */
    std::uint64_t dropped;           /* responses that made room, ever */
    std::uint64_t refused;           /* claims that found none, ever */
};


/* Milliseconds at the present rate until all of it is used, or forever. */
struct zone_forecast {
    std::uint64_t full_in;
    std::uint64_t facts_full_in; /* by what cannot make room */
};


enum class zone_event : std::uint8_t {
    none,
    filling,     /* 80 % are used */
    dropping,    /* responses make room */
    not_fitting, /* a response was not stored: all of it is facts */
    refusing,    /* so was a claim */
};


/* What the log should be told of a zone that fills up, each thing once. */
struct zone_notice {
    zone_event what = zone_event::none;
    std::size_t facts;   /* what cannot make room, in percent */
    std::uint64_t left;  /* milliseconds at the present rate, or forever */
    std::uint64_t count; /* of dropped responses since it was last told */
};


/* What recover() found. */
struct zone_recovery {
    std::size_t records;
    std::size_t without_response; /* of these: records that lost theirs */
    std::size_t twins;            /* records of a name that had two */
};


enum class zone_content : std::uint8_t {
    records,
    older_layout, /* that can be converted */
    other_layout, /* of another build of the module */
    something_else,
};


/*
 * How a zone of one layout becomes one of the next.  Head blocks have a number
 * of their own for what is in them: those of this format are converted, each
 * in its place, and have another one afterwards.
 */
struct zone_conversion {
    std::uint32_t from;
    std::uint32_t to;
    std::uint8_t format;
    void (*convert)(std::span<std::uint8_t, 256> head);
};


/* What reopen() found. */
struct zone_damage {
    std::size_t records;
    std::size_t without_response; /* of these: records that lost theirs */
    std::size_t lost;
};


/* Kept in the region for whoever opens it: the zone does not look at it. */
struct zone_extra {
    alignas(8) std::uint8_t bytes[256];
};


/* Of a record, for people to look at. */
struct zone_entry {
    record_id name;
    record_state state;
    std::uint32_t attempt;
    std::uint64_t since;
    std::uint64_t expiry;
    std::uint64_t lease; /* of a pending one */
    std::uint64_t response_size;
    std::uint64_t summary_size;
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

    /*
     * Null: too small, or not aligned to 8; 64 is best.  With checks a record
     * can be verified after a loss of power.
     */
    static zone *format(void *region, std::size_t size, std::uint64_t seed,
                        bool with_checks = false);

    /* Of the layouts before this one; none was released yet. */
    static std::span<const zone_conversion> conversions() { return {}; }

    /* What a region from outside the process holds, of this many bytes. */
    static zone_content
    examine(const void *region, std::size_t available,
            std::span<const zone_conversion> older = conversions());

    /* All of one that examine() found to be older is there. */
    static void convert(void *region, std::span<const zone_conversion> older);

    /*
     * For whoever is alone with a region that examine() accepted.  All of
     * size bytes are there; what is behind those it had before is new.  All:
     * pages may have been lost, so nothing counts that is not verified.
     */
    static zone *reopen(void *region, std::size_t size, bool all,
                        zone_damage &found);

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

    /* For administrators: zone_admin.cpp */
    bool look_up(const record_id &name, std::uint64_t now, admin_record &out);
    admin_result settle_unknown(const record_id &name,
                                const admin_settlement &how,
                                std::uint64_t now);

    /*
     * Looks for unknown outcomes in so many blocks from this one on, until
     * out is full.  Returns how many there are; from is then where to go on,
     * 0 at the end.
     */
    std::size_t list_unknown(std::uint64_t &from, std::size_t blocks,
                             std::uint64_t now, std::span<admin_record> out);

    /* Reclaims up to max expired records; returns how many. */
    std::size_t expire(std::uint64_t now, std::size_t max);

    [[nodiscard]] bool dirty() const;
    zone_recovery recover();

    /*
     * Whether all records are there as they were written, although pages may
     * have been read again from a file.  It writes to every page in use.
     */
    [[nodiscard]] bool is_intact();

    /* Grows.  A zone that had fewer than were seen before is an old one. */
    [[nodiscard]] std::uint64_t changes() const { return changes_; }

    [[nodiscard]] zone_stats stats() const;
    zone_forecast forecast(std::uint64_t now);

    [[nodiscard]] std::size_t size() const { return size_; }
    zone_extra &extra() { return extra_; }

    /* Calls see(const zone_entry &) for each record. */
    template <typename See>
    void each_record(See see);

    /* To be asked after each claim and completion. */
    zone_notice notice(std::uint64_t now);

private:
    friend struct zone_inspector; /* the tests' */
    class change;

    static constexpr std::uint32_t none = UINT32_MAX;
    static constexpr std::size_t block_size = 256;
    static constexpr std::size_t payload_size = 248;

    /* Blocks begin here, so that none lies across two pages. */
    static constexpr std::size_t header_size = 1024;

    static constexpr std::uint8_t record_format = 1;

    enum block_kind : std::uint8_t {
        free_block,
        head_block, /* holds a record */
        data_block, /* holds a part of a response */
    };

    /* Of a record that has no outcome yet, or an unknown one. */
    struct running {
        token owner;
        std::uint64_t lease;
    };

    /*
     * Of one that was completed: how much of it is kept, and its first block.
     * What has a size but no block lies in the record.
     */
    struct kept {
        std::uint64_t response_size;
        std::uint32_t response;
        std::uint32_t summary;
        std::uint32_t response_check;
        std::uint16_t summary_size;
        std::uint16_t unused;
    };

    static_assert(std::has_unique_object_representations_v<kept>);

    /* What changes while a record lives. */
    struct version {
        std::uint64_t expiry;
        std::uint64_t since; /* last renewed, or completed */
        union {
            running run;
            kept has;
        };
        std::uint32_t attempt : 24;
        record_state state : 8;
        std::uint32_t check;
    };

    static_assert(sizeof(version) == 48);

    /* What is left of a block, for what is small enough. */
    static constexpr std::size_t inline_size = payload_size
                                               - 4 * sizeof(std::uint32_t)
                                               - sizeof(record_id)
                                               - sizeof(digest)
                                               - 2 * sizeof(version);

    /*
     * What is looked at in records of others, by their buckets and the heap,
     * is at the beginning: one line of the cache.  Of the versions the first
     * is there, so a record begins with the second and ends with the first.
     */
    struct record {
        std::uint32_t next_in_bucket;
        std::uint32_t heap_position;
        std::uint32_t older; /* in its queue */
        std::uint32_t newer;
        record_id name;
        version versions[2];
        digest fingerprint;
        std::uint8_t bytes[inline_size];
    };

    /* kind is outside the payload: no response can pass for a record. */
    struct block {
        std::uint8_t kind;
        std::uint8_t reached; /* used by recover() only */
        std::uint8_t active;  /* of a record: which version counts */
        std::uint8_t format;  /* of a record: see zone_conversion */
        std::uint32_t next;   /* of the free list, chain or response */
        union {
            record head;
            std::uint8_t bytes[payload_size];
        };
    };

    static_assert(sizeof(block) == block_size);
    static_assert(offsetof(block, head) + offsetof(record, versions)
                      + sizeof(std::uint64_t)
                  <= 64);

    /* Records whose blocks may make room for others, the oldest first. */
    struct queue {
        std::uint32_t oldest;
        std::uint32_t newest;
        std::uint64_t blocks;
    };

    enum queue_kind : std::uint8_t {
        responses, /* completed, with a response in blocks */
        summaries, /* not kept, with a summary in blocks */
        queue_count,
    };

    /* How full it was, and when. */
    struct sample {
        std::uint64_t time;
        std::uint64_t used;
        std::uint64_t facts;
    };

    struct layout {
        std::uint32_t block_count;
        std::uint32_t bucket_bits;
    };

    zone() = default;

    static const zone_conversion *
    find_conversion(std::uint64_t layout,
                    std::span<const zone_conversion> older);

    /* Where everything lies: zone_layout.h, but for measure(). */
    static bool measure(const void *region, std::size_t size, layout &l);
    unsigned char *base();
    std::uint32_t *buckets();
    std::size_t bucket_count() const;
    std::uint32_t *heap();
    block &block_at(std::uint32_t index);
    record &record_at(std::uint32_t index);
    version &current(std::uint32_t index);
    std::size_t free_blocks() const;
    std::size_t facts() const;

    /* Steps of the operations: zone.cpp */
    void describe(std::uint32_t index, const idempotency::claim &c,
                  std::uint64_t now, zone_answer &answer);
    void take_over(std::uint32_t index, const idempotency::claim &c,
                   std::uint64_t now, zone_answer &answer);
    template <typename Edit>
    settle_result edit_owned(const ownership &whose, std::uint64_t now,
                             Edit edit);

    /* zone_admin.cpp */
    admin_record describe(std::uint32_t index, std::uint64_t now);
    void show_head(std::uint32_t index, std::span<std::uint8_t> out);

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

    /* What is kept of a response: zone_responses.cpp */
    bool keep(std::uint32_t index, const completion &how, version &v,
              std::uint64_t now);
    bool keep_response(std::uint32_t index, const completion &how, version &v,
                       std::uint64_t now);
    bool keep_summary(std::uint32_t index, pieces summary, version &v,
                      std::uint64_t now);
    void put_summary(std::uint32_t index, pieces summary, version &v);
    bool keep_inside(std::uint32_t index, pieces summary, version &v);
    std::size_t shown_size(std::uint32_t index);
    void show(std::uint32_t index, std::uint8_t *out);

    /* Blocks, and bytes in them: zone_blocks.cpp */
    void fetch_ahead(std::uint32_t index, std::uint32_t next);
    std::uint32_t write_blocks(pieces bytes);
    void read_blocks(std::uint32_t first, std::size_t size, std::uint8_t *out);
    void return_chain(std::uint32_t first, std::uint64_t size);
    std::uint32_t allocate_block();
    std::uint32_t take_from_chain();
    void return_block(std::uint32_t index);
    std::uint32_t chain_after(std::uint32_t first);
    void set_chain_after(std::uint32_t first, std::uint32_t chain);

    /* How room is made, and when there is none: zone_room.cpp */
    bool make_room(std::size_t blocks, std::uint64_t now,
                   queue_kind last = responses);
    void drop_oldest(queue_kind which);
    void enlist(std::uint32_t index);
    void delist(std::uint32_t index);
    static queue_kind queue_of(const version &v);
    static std::size_t droppable(const version &v);
    std::uint64_t time_left(std::uint64_t sample::*what, std::uint64_t now);
    void take_sample(std::uint64_t now);

    /* Expired records, and a heap that has the next one: zone_expiry.cpp */
    std::size_t reclaim(std::uint64_t now, std::size_t max);
    bool reclaim_one(std::uint64_t now);
    void schedule(std::uint32_t index);
    void unschedule(std::uint32_t index);
    void sift(std::uint32_t position);
    void set_heap(std::uint32_t position, std::uint32_t index);

    /* Steps of recover(): zone_recovery.cpp */
    void forget_derived();
    void recover_record(std::uint32_t index, zone_recovery &found);
    bool has_earlier_twin(std::uint32_t index);
    void abandon(std::uint32_t index);
    void recover_queues();
    bool reach(std::uint32_t first, std::size_t size, std::uint8_t mark);

    /* Records that can be verified: zone_verify.cpp */
    void verify(std::uint32_t index, zone_damage &found);
    bool is_sound(std::uint32_t index, const version &v);
    bool has_sound_blocks(std::uint32_t first, std::size_t size,
                          std::uint32_t check);
    std::uint32_t check_of(std::uint32_t index, const version &v);
    std::size_t inside_of(const version &v);
    void seal(std::uint32_t index, version &v);
    std::uint64_t sum_of_checks();

    /* What other layouts must find: new fields go to the end. */
    char magic_[8];
    std::uint64_t layout_;
    std::uint64_t size_;
    zone_extra extra_;
    std::uint64_t seed_;
    std::uint64_t changes_;
    std::uint32_t with_checks_;
    std::uint32_t block_count_;
    std::uint32_t bucket_bits_;
    std::uint32_t dirty_;

    /* Blocks from here on were never used; the system need not give them. */
    std::uint32_t touched_;

    /* All below is derived: recover() makes it from the head blocks. */
    std::uint32_t free_list_;
    std::uint32_t free_chains_; /* see return_chain() */
    std::uint32_t used_blocks_;
    std::uint32_t records_;
    std::uint32_t heap_size_;
    queue queues_[queue_count];
    std::uint64_t checks_; /* the sum of those of all records */

    /* Told to operators only: counters, and what has been told. */
    std::uint64_t dropped_;
    std::uint64_t dropped_told_;
    std::uint64_t dropped_seen_;
    std::uint64_t refused_;
    std::uint64_t refused_seen_;
    std::uint64_t unfit_;
    std::uint64_t unfit_seen_;
    std::uint64_t told_dropping_; /* when */
    std::uint64_t told_not_fitting_;
    sample before_;
    sample recent_;
    std::uint8_t said_filling_;
    std::uint8_t said_refusing_;
};

}
