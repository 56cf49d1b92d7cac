#pragma once

#include "ngx.h"
#include "store/redis_reply.h"

namespace idempotency {

/* What is known about a command that got no reply. */
enum class unanswered : std::uint8_t {
    not_sent, /* it had no effect */
    lost,     /* it may have had an effect, or may still have one */
};


/*
 * A command that waits for its reply.  It belongs to the caller and must stay
 * until it is answered.  The link keeps its bytes, except for large parts.
 */
struct command {
    ngx_queue_t queue;
    std::uint64_t position; /* of its first byte in the link's output */
    ngx_msec_t sent_at;
    ngx_msec_t deadline;
    bool is_overdue; /* overdue() was called */

    /*
     * It may be several commands with a reply each, and is answered with the
     * last; the one before is here meanwhile, and belongs to the link.
     */
    unsigned replies;
    redisReply *earlier;

    /* An error is a reply too.  Null: there is no reply, see why. */
    void (*answered)(command &, const redisReply *reply, unanswered why);

    /* It takes longer than the timeout; a reply may still come. */
    void (*overdue)(command &);
};


inline command &
command_at(ngx_queue_t *q)
{
    return *ngx_queue_data(q, command, queue);
}

}
