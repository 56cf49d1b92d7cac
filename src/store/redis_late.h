#pragma once

#include "store/redis_commands.h"
#include "store/redis_health.h"

namespace idempotency {

/*
 * Outcomes that could not be stored yet, and claims that are to be returned,
 * in one worker.  Each is tried again until Redis has answered it, or it is of
 * no more use.  The store hands an operation in when it has failed; it stays
 * ours until it is sent, and its answer goes to the store like any other.
 */
class late_operations {
public:
    late_operations(const redis_commands &commands, server_health &health);

    void start();
    void stop();

    /* It has failed: tries it again later, or gives it up. */
    void put_off(operation &op);

    /* The server is back: nobody waits any longer than needed. */
    void try_all();

    /* Its response has no room: false, if there is nothing smaller. */
    bool use_summary(operation &op);

    /* It was answered for good; the operation itself is the caller's. */
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
    unsigned retried_ = 0;  /* on their way now: */
    std::size_t retried_bytes_ = 0;
    own_event tick_ = {};
};

}
