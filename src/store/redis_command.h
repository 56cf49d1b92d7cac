#pragma once

#include "ngx.h"
#include "store/redis_reply.h"

namespace idempotency {

/* What is known of a command that was not answered. */
enum class unanswered : std::uint8_t {
    not_sent, /* it surely had no effect */
    lost,     /* it may have had one, or may yet have */
};


/*
 * A command on its way.  It belongs to the caller, who keeps it until it is
 * answered; its bytes belong to the link, but for large parts of it.
 */
struct command {
    ngx_queue_t queue;
    std::uint64_t position; /* of its first byte in the link's output */
    ngx_msec_t deadline;
    bool is_overdue; /* and its owner knows */

    /* An error of the server is a reply; no reply: see why. */
    void (*answered)(command &, const redisReply *reply, unanswered why);

    /* It takes longer than it may; it may yet be answered. */
    void (*overdue)(command &);
};


inline command &
command_at(ngx_queue_t *q)
{
    return *ngx_queue_data(q, command, queue);
}

}
