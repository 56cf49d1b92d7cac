#pragma once

#include "store/redis_operation.h"

namespace idempotency {

/*
 * What this worker knows of one record, so that it can be put back.  The
 * response follows in memory.
 */
struct kept_record {
    ngx_queue_t bucket;
    ngx_queue_t list;
    std::uint16_t slot;
    ownership whose;
    purpose why; /* renew: the request runs; else how it was settled */
    record_state state;
    std::uint64_t expiry;
    std::uint64_t mark;
    ngx_msec_t since;
    ngx_msec_t written; /* when the server last had it for certain */
    bool is_aside;      /* in doubt, or its server is away */
    bool in_doubt;      /* the server may have lost it */
    bool is_sent;       /* it is being put back */
    std::size_t size;

    bool runs() const { return why == purpose::renew; }
    bytes response() const
    {
        return {reinterpret_cast<const std::uint8_t *>(this + 1), size};
    }
};

static_assert(std::is_standard_layout_v<kept_record>);


/* Knows which link leads to a record, which can change: a store. */
class record_homes {
public:
    virtual redis_link &home_of(const record_id &name, std::uint16_t slot) = 0;

protected:
    ~record_homes() = default;
};


/*
 * The records that a worker has written to Redis and that Redis may lose: of
 * running requests, and of those that were settled a short time ago.  Begins
 * and ends with the worker.  Without memory a record is not kept.
 */
class kept_records {
public:
    kept_records(ngx_msec_t age, record_homes &homes)
        : longest_age_(age), homes_(homes)
    {}

    void start();
    void stop();

    /* A request runs from now on. */
    void claimed(const operation &op);

    /* Redis has stored how it ended, or that there is no claim any more. */
    void settled(const operation &op);

    /* Somebody else takes care of it. */
    void forget(const token &owner);

    /* Null: not kept. */
    kept_record *find(const token &owner);

    /* The server has or may not have what it had. */
    void doubt(redis_link &link);
    void doubt(const token &owner);
    void is_back(redis_link &link);
    void send_again(redis_link &link);
    kept_record *next_in_doubt(redis_link &link);
    bool any_in_doubt(const redis_link &link) const;
    void confirm(kept_record &record);

private:
    static constexpr std::size_t buckets = 1024;

    bool keeps() const { return longest_age_ != 0; }
    kept_record *add(const operation &op, purpose why, std::size_t size);
    void remove(kept_record &record);
    void move(kept_record &record, ngx_queue_t *before, bool aside);
    std::size_t &bytes_of(const kept_record &record);
    void drop_old();
    bool is_old(const kept_record &record) const;
    void doubt_all(ngx_queue_t &list, const redis_link &link);
    void doubt(kept_record &record);
    redis_link &home_of(const kept_record &record) const;
    ngx_queue_t &bucket_of(const token &owner);

    ngx_msec_t longest_age_;
    record_homes &homes_;
    std::array<ngx_queue_t, buckets> buckets_ = {};

    /* Each record is in one of these. */
    ngx_queue_t running_ = {};
    ngx_queue_t settled_ = {}; /* the oldest first */
    ngx_queue_t away_ = {};    /* so too: had no room while it was away */
    ngx_queue_t in_doubt_ = {};

    /* Of those that do not run; aside are those away or in doubt. */
    std::size_t bytes_ = 0;
    std::size_t bytes_aside_ = 0;
};

}
