#include "store/redis_slots.h"

#include <catch2/catch.hpp>

#include <string>

using namespace idempotency;

namespace {

std::string
redirected(std::string_view error)
{
    redirection to;

    if (!read_redirection(error, to)) {
        return "no";
    }

    return std::string(to.ask ? "ask " : "moved ") + std::to_string(to.slot)
           + " " + to.where.host.data() + " " + std::to_string(to.where.port);
}

}


TEST_CASE("redis slots: as CLUSTER KEYSLOT says", "[redis]")
{
    CHECK(crc16("123456789") == 0x31c3);
    CHECK(slot_of("foo") == 12182);
    CHECK(slot_of("") == 0);
    CHECK(crc16("789", crc16("123456")) == 0x31c3);
}


TEST_CASE("redis slots: redirections", "[redis]")
{
    CHECK(redirected("MOVED 3999 10.0.0.5:6379")
          == "moved 3999 10.0.0.5 6379");
    CHECK(redirected("ASK 0 redis.test:1") == "ask 0 redis.test 1");
    CHECK(redirected("MOVED 16383 :7000") == "moved 16383  7000");
    CHECK(redirected("MOVED 1 ::1:7000") == "moved 1 ::1 7000");

    for (const char *bad :
         {"ERR no", "MOVED", "MOVED ", "MOVED 1", "MOVED x h:1",
          "MOVED 16384 h:1", "MOVED 1 h:", "MOVED 1 h:0", "MOVED 1 h:65536",
          "MOVED 1 h:1x", "ASK -1 h:1", "MOVED 1:2 h"})
    {
        CHECK(redirected(bad) == "no");
    }

    CHECK(redirected("MOVED 1 " + std::string(256, 'h') + ":1") == "no");
}
