#include "store/redis_slots.h"

#include "check.h"

#include <string>

using namespace idempotency;

namespace {

void
check_server(const server_address &where)
{
    std::string host = where.host.data();

    check(where.port != 0, "a server has a port");
    check(host.size() < where.host.size()
              && host.find_first_of(" \r\n\"\\") == host.npos,
          "a host can stand in the log");
}


void
check_reply(const redisReply &reply)
{
    server_address master;

    if (read_master(reply, master)) {
        check_server(master);
        check(!master.is_empty(), "a Sentinel names a host");
    }

    for (std::size_t i = 0;
         reply.type == REDIS_REPLY_ARRAY && i < reply.elements; i++)
    {
        slot_range range;

        if (read_slot_range(*reply.element[i], "10.0.0.1", range)) {
            check_server(range.master);
            check(!range.master.is_empty(), "a master has a host");
            check(range.first <= range.last && range.last < slot_count,
                  "a range has its slots");
        }
    }
}

}


/* The bytes of a server: replies to CLUSTER SLOTS or of a Sentinel. */
extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    redisReader *reader = redisReaderCreate();
    void *reply = nullptr;

    redisReaderFeed(reader, reinterpret_cast<const char *>(data), size);

    while (redisReaderGetReply(reader, &reply) == REDIS_OK && reply != nullptr)
    {
        owned_reply owned(static_cast<redisReply *>(reply));

        check_reply(*owned);
        reply = nullptr;
    }

    redisReaderFree(reader);

    return 0;
}
