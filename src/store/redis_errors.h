#pragma once

#include "store/redis_reply.h"

namespace idempotency {

/*
 * The code of an error reply, such as OOM: its first word.  Redis 6 reports an
 * error inside a script as "ERR Error running script …", with the code further
 * on.
 */
std::string_view error_code(const redisReply &reply);

inline bool
has_code(const redisReply &reply, std::string_view code)
{
    return error_code(reply) == code;
}


/*
 * Whether the command is known to have had no effect.  Any other error may
 * come from a proxy that has lost the connection to Redis, after Redis has
 * executed the command.
 */
bool means_not_executed(std::string_view code);

/* Redis accepts no writes at the moment, but can be read. */
bool refuses_writes(std::string_view code);

/* A node of a cluster does not have the slot of the key, or not now. */
bool is_about_slots(std::string_view code);

}
