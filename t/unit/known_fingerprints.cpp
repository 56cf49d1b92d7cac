#include "contract/byte_tag.h"
#include "contract/known_fingerprints.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>

using namespace idempotency;

namespace {

constexpr tag_key one_key = {1, 2, 3};
constexpr tag_key other_key = {1, 2, 4};


byte_tag
tag_of(const tag_key &key, const std::function<void(framed &)> &fill)
{
    static tagger tags;
    byte_tag tag;

    tags.start(key);
    fill(tags);
    REQUIRE(tags.finish(tag));

    return tag;
}


/* Zero, as shared memory is. */
std::unique_ptr<known_fingerprints>
nothing_known()
{
    return std::make_unique<known_fingerprints>();
}


/* All of these share a group. */
byte_tag
numbered(std::uint8_t number)
{
    byte_tag tag = {};

    tag.back() = number;
    return tag;
}

}


TEST_CASE("tag: what is tagged, by which key", "[tag]")
{
    std::string large(5000, 'x');
    std::set<byte_tag> all;
    std::function<void(framed &)> fills[] = {
        [](framed &) {},
        [](framed &out) { out.bytes("a", 1); },
        [](framed &out) { out.bytes("a\0", 2); },
        [](framed &out) { out.field("a"); },
        [](framed &out) { out.field(""); },
        [](framed &out) {
            out.field("ab");
            out.field("c");
        },
        [](framed &out) {
            out.field("a");
            out.field("bc");
        },
        [&](framed &out) { out.bytes(large.data(), large.size()); },
        [&](framed &out) { out.bytes(large.data(), large.size() - 1); },
    };

    for (const auto &fill : fills) {
        CHECK(all.insert(tag_of(one_key, fill)).second);
        CHECK(all.insert(tag_of(other_key, fill)).second);
        CHECK(tag_of(one_key, fill) == tag_of(one_key, fill));
    }
}


/* GMAC by AES-128, 96 zero bits as nonce: test case 1 of GCM's authors. */
TEST_CASE("tag: it is GMAC", "[tag]")
{
    constexpr byte_tag expected = {0x58, 0xe2, 0xfc, 0xce, 0xfa, 0x7e,
                                   0x30, 0x61, 0x36, 0x7f, 0x1d, 0x57,
                                   0xa4, 0xe7, 0x45, 0x5a};

    CHECK(tag_of({}, [](framed &) {}) == expected);
}


TEST_CASE("tag: pieces do not matter", "[tag]")
{
    std::string text;

    for (int i = 0; i < 3000; i++) {
        text += static_cast<char>(i * 7);
    }

    byte_tag whole = tag_of(
        one_key, [&](framed &out) { out.bytes(text.data(), text.size()); });

    for (std::size_t piece : {1, 15, 16, 17, 255, 256, 257, 1000}) {
        CHECK(tag_of(one_key,
                     [&](framed &out) {
                         for (std::size_t at = 0; at < text.size();
                              at += piece) {
                             out.bytes(text.data() + at,
                                       std::min(piece, text.size() - at));
                         }
                     })
              == whole);
    }
}


TEST_CASE("tag: what was not ended leaves nothing behind", "[tag]")
{
    tagger tags;
    byte_tag tag;

    tags.start(one_key);
    tags.bytes("left", 4);
    tags.start(one_key);
    tags.bytes("a", 1);
    REQUIRE(tags.finish(tag));
    CHECK(tag == tag_of(one_key, [](framed &out) { out.bytes("a", 1); }));
    CHECK_FALSE(tags.finish(tag));
}


TEST_CASE("known fingerprints: found by their tag alone", "[known]")
{
    auto known = nothing_known();
    digest found;

    CHECK_FALSE(known->find(numbered(0), found));
    known->add(numbered(1), digest{1});
    REQUIRE(known->find(numbered(1), found));
    CHECK(found == digest{1});
    CHECK_FALSE(known->find(numbered(0), found));
    CHECK_FALSE(known->find(numbered(2), found));
}


TEST_CASE("known fingerprints: the oldest make room", "[known]")
{
    auto known = nothing_known();
    digest found;

    for (std::uint8_t i = 1; i <= 6; i++) {
        known->add(numbered(i), digest{i});
    }

    for (std::uint8_t i = 1; i <= 6; i++) {
        CHECK(known->find(numbered(i), found) == (i > 2));
        CHECK((i <= 2 || found == digest{i}));
    }
}


TEST_CASE("known fingerprints: what a process died in is not used", "[known]")
{
    auto known = nothing_known();
    digest found;
    std::uint32_t taken = 1;

    known->add(numbered(1), digest{1});

    /* The first group comes right behind the key. */
    std::memcpy(reinterpret_cast<char *>(known.get()) + sizeof(tag_key),
                &taken, sizeof(taken));

    CHECK_FALSE(known->find(numbered(1), found));
    known->add(numbered(2), digest{2});
    CHECK_FALSE(known->find(numbered(2), found));

    byte_tag elsewhere = {1};

    known->add(elsewhere, digest{3});
    CHECK(known->find(elsewhere, found));
}
