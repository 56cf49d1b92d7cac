#include "store/copies.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

using namespace idempotency;

/* Copies of finished records in a ring, the newest over the oldest. */

namespace {

using bytes = std::vector<std::uint8_t>;


class fixture {
public:
    explicit fixture(std::size_t size)
        : region_(size / 8), c(*copies::format(region_.data(), size, 12345))
    {}

private:
    std::vector<std::uint64_t> region_;

public:
    copies &c;
};


record_id
name_of(unsigned n)
{
    record_id name{};

    std::memcpy(name.data(), &n, sizeof(n));

    return name;
}


/* What it says differs with n. */
finished_record
record_of(unsigned n, std::uint64_t as_of)
{
    return {record_state::completed, n, {}, as_of, n + 1, n + 2};
}


bytes
response_of(unsigned n, std::size_t size)
{
    return bytes(size, static_cast<std::uint8_t>(n));
}


void
put(copies &c, unsigned key, unsigned n, std::size_t size, std::uint64_t as_of,
    std::uint64_t now)
{
    bytes response = response_of(n, size);
    std::span<const std::uint8_t> part(response);

    c.put(name_of(key), record_of(n, as_of), {&part, 1}, now);
}


/* Which n is found for the key, all of it sound; -1: none. */
int
found(copies &c, unsigned key)
{
    finished_record record;
    std::span<const std::uint8_t> response;

    if (!c.find(name_of(key), record, response)) {
        return -1;
    }

    unsigned n = record.attempt;

    CHECK(record.state == record_state::completed);
    CHECK(record.age == n + 1);
    CHECK(record.remaining == n + 2);

    CHECK(std::ranges::all_of(response, [&](std::uint8_t byte) {
        return byte == static_cast<std::uint8_t>(n);
    }));

    return static_cast<int>(n);
}

}


TEST_CASE("copies: too small a region")
{
    alignas(8) unsigned char region[4096] = {};

    CHECK(copies::format(region, 4095, 1) == nullptr);
    CHECK(copies::format(region, 4096, 1) != nullptr);
}


TEST_CASE("copies: what was put in is found")
{
    fixture f(65536);

    CHECK(found(f.c, 1) == -1);
    put(f.c, 1, 10, 300, 1000, 1001);
    put(f.c, 2, 20, 0, 1000, 1001);
    CHECK(found(f.c, 1) == 10);
    CHECK(found(f.c, 2) == 20);
    CHECK(found(f.c, 3) == -1);
    CHECK_FALSE(f.c.dirty());
}


TEST_CASE("copies: the later news count")
{
    fixture f(65536);

    put(f.c, 1, 10, 300, 1000, 1005);

    SECTION("asked for before the other was written: as good")
    {
        put(f.c, 1, 11, 300, 1005, 1006);
        CHECK(found(f.c, 1) == 10);
    }

    SECTION("asked for after it")
    {
        put(f.c, 1, 11, 300, 1006, 1007);
        CHECK(found(f.c, 1) == 11);
    }
}


TEST_CASE("copies: what was dropped does not come back")
{
    fixture f(65536);

    put(f.c, 1, 10, 300, 1000, 1001);
    put(f.c, 2, 20, 300, 1000, 1001);
    f.c.drop(name_of(1), 1010);
    CHECK(found(f.c, 1) == -1);
    CHECK(found(f.c, 2) == 20);

    SECTION("by an answer that was under way")
    {
        put(f.c, 1, 10, 300, 1010, 1011);
        CHECK(found(f.c, 1) == -1);
    }

    SECTION("but what was asked for afterwards is news")
    {
        put(f.c, 1, 11, 300, 1011, 1012);
        CHECK(found(f.c, 1) == 11);
    }

    f.c.drop(name_of(3), 1020);
    CHECK(found(f.c, 3) == -1);
}


TEST_CASE("copies: one that is too large is not put in")
{
    fixture f(65536);

    put(f.c, 1, 10, 300, 1000, 1001);
    put(f.c, 2, 20, 65536 / 8, 1000, 1001);
    CHECK(found(f.c, 2) == -1);
    CHECK(found(f.c, 1) == 10);
    CHECK_FALSE(f.c.dirty());
}


TEST_CASE("copies: after clear() all are gone, and new ones are found")
{
    fixture f(65536);

    for (unsigned key = 0; key < 1000; ++key) {
        put(f.c, key, key, 300, 1000, 1001);

        if (key % 100 == 99) {
            f.c.clear();
            CHECK(found(f.c, key) == -1);
        }
    }

    put(f.c, 7, 77, 300, 1000, 1001);
    CHECK(found(f.c, 7) == 77);
    CHECK(found(f.c, 8) == -1);
}


/* The model has all that was ever put in; the ring the newest of it. */
TEST_CASE("copies: for many laps, what is found is the newest of its key")
{
    fixture f(65536);
    std::mt19937 random(1);
    std::map<unsigned, int> model;
    std::uint64_t now = 1000;
    unsigned hits = 0;

    for (unsigned n = 0; n < 50000; ++n) {
        unsigned key = random() % 200;

        now += 2;

        if (random() % 10 == 0) {
            f.c.drop(name_of(key), now);
            model[key] = -1;

        } else {
            put(f.c, key, n, random() % 2000, now - 1, now);
            model[key] = static_cast<int>(n);
        }

        CHECK(found(f.c, key) == model[key]);

        unsigned any = random() % 200;
        int seen = found(f.c, any);

        if (seen != -1) {
            ++hits;
            REQUIRE(seen == model[any]);
        }
    }

    CHECK(hits > 5000);
    CHECK(hits < 40000);
}


TEST_CASE("copies: the oldest go first")
{
    fixture f(65536);
    unsigned first = 0;

    for (unsigned key = 0; key < 500; ++key) {
        put(f.c, key, key, 500, 1000, 1001);
    }

    while (found(f.c, first) == -1) {
        REQUIRE(++first < 500);
    }

    /* As many as there is room for, and not one between them is missing. */
    CHECK(500 - first > 90);

    for (unsigned key = first; key < 500; ++key) {
        CHECK(found(f.c, key) == static_cast<int>(key));
    }
}
