#pragma once

#include "ngx.h"
#include "store/flusher.h"
#include "store/memory.h"

namespace idempotency {

class zone_file;


/*
 * When the file of a memory store is written to its disk, and what follows if
 * that fails, also where it is left to the system.  With "always" a claim and
 * an outcome are answered when they are on the disk.  Those who wait are in a
 * list, in the order of the flushes that they wait for; the flusher's
 * descriptor wakes the worker.
 */
class memory_sync {
public:
    memory_sync(store &owner, const memory_settings &how)
        : store_(owner), how_(how)
    {}

    /* In each worker. */
    void start(zone_file &file);
    void stop();

    /* There is something to write that nobody waits for. */
    void changed();

    /* At once, or when it is on the disk. */
    void answer(const claim &what, claim_waiter &waiter,
                const claim_answer &answer);
    void answer(settle_waiter *waiter, settle_result result);

    /* What the zone said cannot be trusted, but may have been a claim. */
    void refuse(const claim &what, claim_waiter &waiter,
                const claim_answer &answer);

    void forget(claim_waiter &waiter);
    void forget(settle_waiter &waiter);

private:
    struct entry;

    bool watch();
    bool is_failing() const;
    bool is_always() const { return how_.sync == sync_when::always; }
    static operation *handle(entry *e);
    entry *enlist();
    entry *oldest();

    static void write_now(ngx_event_t *event);
    static void written(ngx_event_t *event);
    static void look_at_time(ngx_event_t *event);
    static void look_at_disk(ngx_event_t *event);

    void answer_written(const flusher::progress &how_far);
    void end(entry *e, bool on_disk);
    void end_claim(entry &e, bool on_disk);
    bool still_owns(const entry &e);
    void give_back(const ownership &own, std::uint64_t keep,
                   std::uint32_t attempt);
    void tell();

    store &store_;
    const memory_settings &how_;
    zone_file *file_ = nullptr;
    flusher flusher_;
    ngx_connection_t *link_ = nullptr;
    own_event interval_ = {};
    own_event patience_ = {};
    own_event disk_ = {};
    ngx_queue_t waiting_ = {};
    bool stuck_ = false;
};

}
