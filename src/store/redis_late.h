#pragma once

#include "store/redis_commands.h"
#include "store/redis_health.h"

namespace idempotency {

/*
 * Outcomes that could not be stored yet, and claims that must be undone, in
 * one worker.  Each is retried until Redis answers, or until it is too late to
 * be useful.  The store hands over an operation that has failed.  While it
 * waits it belongs to this class; the reply to a retry goes to the store like
 * any other.
 */
class late_operations {
public:
    late_operations(const redis_commands &commands, server_health &health);

    void start();
    void stop();

    /*
     * Retries the operation later, or gives it up if there are too many.  Its
     * link is that of its record.
     */
    void put_off(operation &op);

    /* The server is available again: retry without waiting. */
    void try_all();

    /*
     * The server may have lost its memory: what was claimed there before gives
     * way, and new claims wait for these outcomes.
     */
    void memory_lost(redis_link &link);

    template <class F>
    void each(F call)
    {
        for (ngx_queue_t *q = ngx_queue_head(&waiting_);
             q != ngx_queue_sentinel(&waiting_); q = ngx_queue_next(q))
        {
            late_entry *entry = ngx_queue_data(q, late_entry, queue);

            call(*entry->op);
        }
    }

    /* The response is too large; false: there is no summary either. */
    bool use_summary(operation &op);

    /* The operation is done; the caller frees it. */
    void answered(operation &op, bool stored);

private:
    /* How many there may be, and how many there are. */
    struct allowance {
        std::size_t limit;
        std::size_t count;
    };

    static void on_tick(ngx_event_t *event);

    bool keep(operation &op);
    bool insert(operation &op);
    void remove(operation &op);
    void try_due();
    void retry(operation &op);
    void drop(operation &op);
    void leave(operation &op);
    void end_retry(operation &op);
    bool may_retry_now(const operation &op) const;
    void arm();

    allowance &allowance_of(const operation &op);

    const redis_commands &commands_;
    server_health &health_;

    ngx_queue_t waiting_ = {};
    allowance outcomes_;
    allowance returns_;
    std::size_t bytes_ = 0; /* of responses */
    unsigned retried_ = 0;  /* sent again, not answered yet */
    std::size_t retried_bytes_ = 0;
    own_event tick_ = {};
};

}
