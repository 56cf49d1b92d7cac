#include "store/redis_record.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <vector>

using namespace idempotency;

namespace {

redis_record
some_record()
{
    redis_record record = {record_state::completed, 0x01020304,         {}, {},
                           0x1112131415161718,      0x2122232425262728, {}};

    record.owner.fill(0xaa);
    record.fingerprint.fill(0xbb);

    return record;
}

}


TEST_CASE("redis record: the bytes of version 1", "[redis]")
{
    auto head = encode_redis_head(some_record());
    std::vector<std::uint8_t> expected = {1, 2, 4, 3, 2, 1};

    expected.insert(expected.end(), 16, 0xaa);
    expected.insert(expected.end(), 32, 0xbb);

    for (std::uint8_t last : {0x18, 0x28}) {
        for (std::uint8_t i = 0; i < 8; i++) {
            expected.push_back(static_cast<std::uint8_t>(last - i));
        }
    }

    REQUIRE(expected.size() == redis_record_head);
    REQUIRE(std::equal(head.begin(), head.end(), expected.begin()));
}


TEST_CASE("redis record: round trip", "[redis]")
{
    redis_record record = some_record();
    auto head = encode_redis_head(record);
    std::vector<std::uint8_t> bytes(head.begin(), head.end());

    bytes.insert(bytes.end(), {7, 8, 9});

    auto read = decode_redis_record(bytes);

    REQUIRE(read);
    CHECK(read->state == record.state);
    CHECK(read->attempt == record.attempt);
    CHECK(read->owner == record.owner);
    CHECK(read->fingerprint == record.fingerprint);
    CHECK(read->expiry == record.expiry);
    CHECK(read->mark == record.mark);
    CHECK(read->response.size() == 3);
    CHECK(read->response.data() == bytes.data() + redis_record_head);
}


TEST_CASE("redis record: what is none", "[redis]")
{
    auto head = encode_redis_head(some_record());

    for (std::size_t size = 0; size < head.size(); size++) {
        CHECK_FALSE(decode_redis_record(std::span(head).first(size)));
    }

    for (int version = 0; version < 256; version++) {
        head[0] = static_cast<std::uint8_t>(version);
        CHECK(decode_redis_record(head).has_value() == (version == 1));
    }

    head[0] = 1;

    for (int state = 0; state < 256; state++) {
        head[1] = static_cast<std::uint8_t>(state);
        CHECK(decode_redis_record(head).has_value()
              == (state >= 1 && state <= 4));
    }
}


TEST_CASE("redis record: no time to live is longer than Redis has", "[redis]")
{
    CHECK(redis_expiry(1) == 1);
    CHECK(redis_expiry(redis_longest) == redis_longest);
    CHECK(redis_expiry(redis_longest + 1) == redis_never);
    CHECK(redis_expiry(forever) == redis_never);
}


TEST_CASE("redis record: an outcome that is not kept has an expiry", "[redis]")
{
    CHECK(redis_expiry(0) == 1);
}


TEST_CASE("redis record: a pending record always expires", "[redis]")
{
    CHECK(redis_pending_expiry(30, 12) == 42);
    CHECK(redis_pending_expiry(30, redis_longest) == redis_longest);
    CHECK(redis_pending_expiry(30, redis_longest - 1) == redis_longest);
    CHECK(redis_pending_expiry(30, forever) == redis_longest);
}
