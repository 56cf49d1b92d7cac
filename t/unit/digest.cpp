#include "contract/digest.h"
#include "contract/fingerprint.h"

#include <catch2/catch.hpp>

#include <functional>
#include <set>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

std::string
hex(const digest &d)
{
    static const char digits[] = "0123456789abcdef";
    std::string text;

    for (std::uint8_t byte : d) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }

    return text;
}


std::string
finished(hasher &hash)
{
    digest d;

    return hash.finish(d) ? hex(d) : "failed";
}


std::string
fingerprint(const request_line &line, body_kind kind, std::string_view body,
            const admission &how = {})
{
    hasher hash;

    start_fingerprint(hash, line, how, kind);
    hash.bytes(body.data(), body.size());

    return finished(hash);
}

}


/* The expected digests are Python's: hashlib over struct.pack('<Q', len). */

TEST_CASE("digest: the bytes that are hashed", "[digest]")
{
    struct {
        const char *claim;
        std::function<void(hasher &)> fill;
        const char *expected;
    } rows[] = {
        {"an empty domain is a field", [](hasher &h) { h.start(""); },
         "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"},
        {"lengths and numbers are eight bytes, little-endian",
         [](hasher &h) {
             h.start("d");
             h.field("abc");
             h.field("");
             h.number(0x0102030405060708);
             h.bytes("tail", 4);
         },
         "2fadb59d50edf5f2100015792a403f9a8a45686ef2130d5a3deccb09d0e93d4e"},
        {"bytes in pieces are bytes at once",
         [](hasher &h) {
             h.start("d");
             h.field(std::string(1000, 'x'));
             for (int i = 0; i < 100; i++) {
                 h.bytes(std::string(1000, 'y').data(), 1000);
             }
         },
         "7a9919c6a006edd9b6e7a3f24852cb1894bf208159c74ab25cd03dab3cde8263"},
        {"no bytes from nowhere are none",
         [](hasher &h) {
             h.start("");
             h.bytes(nullptr, 0);
         },
         "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"},
    };

    for (const auto &row : rows) {
        INFO(row.claim);
        hasher hash;
        row.fill(hash);
        CHECK(finished(hash) == row.expected);
    }
}


TEST_CASE("digest: different lists of fields differ", "[digest]")
{
    const std::vector<std::vector<std::string>> lists = {
        {},
        {""},
        {"", ""},
        {"ab"},
        {"a", "b"},
        {"b", "a"},
        {"ab", ""},
        {"", "ab"},
        {std::string(1, '\0')},
        {std::string(8, '\0')},
        {"a", "", "b"},
    };
    std::set<std::string> seen;

    for (const auto &list : lists) {
        hasher hash;

        hash.start("d");
        for (const auto &value : list) {
            hash.field(value);
        }
        seen.insert(finished(hash));
    }

    hasher other;
    other.start("e");
    seen.insert(finished(other));

    CHECK(seen.size() == lists.size() + 1);
    CHECK(seen.count("failed") == 0);
}


TEST_CASE("digest: the life of a hasher", "[digest]")
{
    hasher hash;
    digest d;

    SECTION("never started: fails")
    {
        CHECK_FALSE(hash.finish(d));
    }

    SECTION("filled, but never started: fails")
    {
        hash.field("x");
        CHECK_FALSE(hash.finish(d));
    }

    SECTION("filled too early does not spoil a start")
    {
        hasher fresh;

        hash.field("x");
        hash.start("a");
        fresh.start("a");
        CHECK(finished(hash) == finished(fresh));
    }

    SECTION("finished twice: fails the second time")
    {
        hash.start("a");
        CHECK(hash.finish(d));
        CHECK_FALSE(hash.finish(d));
    }

    SECTION("started again: as if new, finished before or not")
    {
        hasher fresh;

        hash.start("a");
        hash.field("left behind");
        hash.start("b");
        fresh.start("b");
        std::string expected = finished(fresh);

        CHECK(finished(hash) == expected);
        hash.start("b");
        CHECK(finished(hash) == expected);
    }
}


TEST_CASE("fingerprint: the bytes that are hashed", "[digest]")
{
    const admission by_other_way = {false, false, '@', "@app"};

    CHECK(
        fingerprint({"POST", "/pay", "a=1"}, body_kind::raw, "{\"amount\":1}")
        == "494984cdb29b0d5d6f1f8ee4bf5e631fe9c4469d778f7f1086487cec5c8ff662");
    CHECK(
        fingerprint({"POST", "/pay", ""}, body_kind::none, "", by_other_way)
        == "557ff8ce3815a1ec4432e9e1a410a8a060a13f9934fe7ec5d67a389278a5f8ab");
}


TEST_CASE("fingerprint: different requests differ", "[digest]")
{
    struct {
        request_line line;
        body_kind kind;
        std::string_view body;
        admission how = {};
    } rows[] = {
        {{"POST", "/a", ""}, body_kind::raw, ""},
        {{"POST", "/a", ""}, body_kind::raw, "", {false, true, 0, ""}},
        {{"POST", "/a", ""}, body_kind::raw, "", {true, false, 'p', ""}},
        {{"POST", "/a", ""}, body_kind::raw, "", {true, false, 'p', "/b"}},
        {{"POST", "/a", ""}, body_kind::raw, "", {true, false, '=', "/b"}},
        {{"POST", "/a", ""}, body_kind::raw, "", {true, false, '@', "@b"}},
        {{"POST", "/a", ""}, body_kind::raw, "b", {true, false, '@', "@"}},
        {{"POST", "/a", ""},
         body_kind::raw,
         "",
         {true, false, '@', "@b", "c"}},
        {{"POST", "/a", ""},
         body_kind::raw,
         "",
         {true, false, '@', "@b", "d"}},
        {{"POST", "/a", ""}, body_kind::raw, "", {true, false, '@', "@", "b"}},
        {{"POST", "/a", "@b"}, body_kind::raw, ""},
        {{"PUT", "/a", ""}, body_kind::raw, ""},
        {{"POST", "/A", ""}, body_kind::raw, ""},
        {{"POST", "/%61", ""}, body_kind::raw, ""},
        {{"POST", "/a", "x"}, body_kind::raw, ""},
        {{"POST", "/a", ""}, body_kind::raw, "x"},
        {{"POST", "/ax", ""}, body_kind::raw, ""},
        {{"POST/", "a", ""}, body_kind::raw, ""},
        {{"POST", "/a", ""}, body_kind::none, ""},
        {{"POST", "/a", ""}, body_kind::raw, "n"},
        {{"POST", "/a", "r"}, body_kind::none, ""},
    };
    std::set<std::string> seen;

    for (const auto &row : rows) {
        seen.insert(fingerprint(row.line, row.kind, row.body, row.how));
    }

    CHECK(seen.size() == std::size(rows));
    CHECK(seen.count("failed") == 0);
}
