#include "zone_kit.h"

using namespace zone_kit;

TEST_CASE("zone: format")
{
    region memory(zone::minimum_size() + 4096);
    void *start = memory.start();
    std::size_t size = memory.size();

    SECTION("too small or misaligned")
    {
        CHECK(!zone::format(start, zone::minimum_size() - 1, 1));
        CHECK(!zone::format(start, 0, 1));
        CHECK(!zone::format(static_cast<char *>(start) + 4, size - 4, 1));
    }

    SECTION("as small as may be")
    {
        zone *z = zone::format(start, zone::minimum_size(), 1);

        REQUIRE(z);
        CHECK(z->stats().blocks_total == 8);
    }

    SECTION("nothing is written behind the end, whatever was there")
    {
        std::memset(start, 0x01, size);

        std::size_t less = size - 97;
        zone *z = zone::format(start, less, UINT64_MAX);
        ended end(payload * 2, 10);

        REQUIRE(z);

        for (unsigned i = 0; i < z->stats().blocks_total; ++i) {
            z->claim(claim_of(i, i), 0, {});
            z->complete(owner_of(i / 3, i / 3), end.how, 0);
        }

        CHECK(z->stats().blocks_used == z->stats().blocks_total);
        CHECK(inspect{*z}.wrong() == "");

        auto *tail = static_cast<char *>(start) + less;
        CHECK(std::count(tail, tail + 97, 1) == 97);
    }
}


TEST_CASE("zone: the way of a record")
{
    fixture f;
    zone &z = f.z;
    bytes out(4096);
    ended end(500, 2000);

    auto a = z.claim(claim_of(1, 1), 5000, out);

    CHECK(a.result == claim_result::claimed);
    CHECK(a.attempt == 1);

    SECTION("pending for others, and only for this name")
    {
        a = z.claim(claim_of(1, 2, true), 5100, out);
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::pending);
        CHECK(a.same_fingerprint);
        CHECK(a.attempt == 1);
        CHECK(a.age == 0);
        CHECK(a.remaining == 1000);
        CHECK(a.response.empty());
        CHECK(z.claim(claim_of(2, 2), 5100, out).result
              == claim_result::claimed);
    }

    SECTION("completed")
    {
        CHECK(z.complete(owner_of(1, 1), end.how, 5050)
              == settle_result::done);
        CHECK(f.used() == 4);

        a = z.claim(claim_of(1, 2, true), 5080, out);
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::completed);
        CHECK(a.attempt == 1);
        CHECK(a.age == 30);
        CHECK(a.remaining == 1970);
        CHECK(a.response_size == 500);
        CHECK(same(a.response, part(0, 500)));
        CHECK(a.response.data() == out.data());

        /* Nobody does anything to it any more, its owner neither. */
        CHECK(z.complete(owner_of(1, 1), end.how, 5080)
              == settle_result::lost);
        CHECK(z.release(owner_of(1, 1), 5080) == settle_result::lost);
        CHECK(z.mark_unknown(owner_of(1, 1), 1, 5080) == settle_result::lost);
        CHECK(z.renew(owner_of(1, 1), 5080) == settle_result::lost);
    }

    SECTION("not kept, with the response it is given")
    {
        ended summary(40, 2000, record_state::not_kept);

        CHECK(z.complete(owner_of(1, 1), summary.how, 5050)
              == settle_result::done);

        a = z.claim(claim_of(1, 2, true), 5051, out);
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::not_kept);
        CHECK(a.age == 1);
        CHECK(same(a.response, part(0, 40)));
    }

    SECTION("another fingerprint learns the state and no more")
    {
        z.complete(owner_of(1, 1), end.how, 5050);

        claim other = claim_of(1, 2, true);
        other.fingerprint = print_of(1);

        a = z.claim(other, 5080, out);
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::completed);
        CHECK(!a.same_fingerprint);
        CHECK(a.response.empty());
        CHECK(a.response_size == 0);
    }

    SECTION("released")
    {
        CHECK(z.release(owner_of(1, 1), 5050) == settle_result::done);
        CHECK(f.used() == 0);
        CHECK(z.release(owner_of(1, 1), 5050) == settle_result::lost);

        a = z.claim(claim_of(1, 2), 5050, out);
        CHECK(a.result == claim_result::claimed);
        CHECK(a.attempt == 1);
    }

    SECTION("held")
    {
        CHECK(z.mark_unknown(owner_of(1, 1), 300, 5050)
              == settle_result::done);

        a = z.claim(claim_of(1, 2), 5060, out);
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::unknown);
        CHECK(a.age == 0);
        CHECK(a.remaining == 290);

        /* It gave the record up: its own word counts no more. */
        CHECK(z.complete(owner_of(1, 1), end.how, 5060)
              == settle_result::lost);
        CHECK(z.renew(owner_of(1, 1), 5060) == settle_result::lost);
        CHECK(z.release(owner_of(1, 1), 5060) == settle_result::lost);
        CHECK(z.mark_unknown(owner_of(1, 1), 9, 5060) == settle_result::lost);

        CHECK(z.claim(claim_of(1, 2), 5349, out).result
              == claim_result::found);
        CHECK(z.claim(claim_of(1, 2), 5350, out).result
              == claim_result::claimed);
    }

    SECTION("renewed")
    {
        CHECK(z.renew(owner_of(1, 1), 5090) == settle_result::done);

        a = z.claim(claim_of(1, 2, true), 5190, out);
        CHECK(a.state == record_state::pending);
        CHECK(a.remaining == 1000);
        CHECK(z.claim(claim_of(1, 2), 5191, out).state
              == record_state::unknown);
    }

    SECTION("the token is compared whole, the name too")
    {
        token near = token_of(1);
        near[15] ^= 0x80;
        ownership thief{name_of(1), near};

        CHECK(z.complete(thief, end.how, 5001) == settle_result::lost);
        CHECK(z.release(thief, 5001) == settle_result::lost);
        CHECK(z.mark_unknown(thief, 1, 5001) == settle_result::lost);
        CHECK(z.renew(thief, 5001) == settle_result::lost);
        CHECK(z.release(owner_of(2, 1), 5001) == settle_result::lost);
        CHECK(z.claim(claim_of(1, 2), 5001, out).state
              == record_state::pending);

        claim twin = claim_of(1, 2);
        twin.name.back() ^= 0x80;
        CHECK(z.claim(twin, 5001, out).result == claim_result::claimed);
    }

    CHECK(f.wrong() == "");
    CHECK(!z.dirty());
}


TEST_CASE("zone: a lapsed lease")
{
    fixture f;
    zone &z = f.z;
    ended end(500, 2000);

    z.claim(claim_of(1, 1), 5000, {});

    SECTION("is unknown a millisecond after the lease, not before")
    {
        CHECK(z.claim(claim_of(1, 2, true), 5100, {}).state
              == record_state::pending);

        auto a = z.claim(claim_of(1, 2), 5101, {});
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::unknown);
        CHECK(a.remaining == 999);
    }

    SECTION("is its owner's still, while nobody took over")
    {
        z.claim(claim_of(1, 2), 5500, {});

        SECTION("to complete")
        {
            CHECK(z.complete(owner_of(1, 1), end.how, 5500)
                  == settle_result::done);
        }

        SECTION("to release")
        {
            CHECK(z.release(owner_of(1, 1), 5500) == settle_result::done);
        }

        SECTION("to mark_unknown")
        {
            CHECK(z.mark_unknown(owner_of(1, 1), 7, 5500)
                  == settle_result::done);
        }

        SECTION("to renew")
        {
            CHECK(z.renew(owner_of(1, 1), 5500) == settle_result::done);
            CHECK(z.claim(claim_of(1, 2, true), 5600, {}).state
                  == record_state::pending);
        }
    }

    SECTION("is taken over once, and fenced from then on")
    {
        claim other = claim_of(1, 2, true);
        other.fingerprint = print_of(1);

        auto a = z.claim(other, 5101, {});
        CHECK(a.result == claim_result::found);
        CHECK(!a.same_fingerprint);

        claim second = claim_of(1, 2, true);
        second.lease = 50;
        second.keep = 70;

        a = z.claim(second, 5101, {});
        CHECK(a.result == claim_result::claimed);
        CHECK(a.attempt == 2);

        a = z.claim(claim_of(1, 3, true), 5101, {});
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::pending);
        CHECK(a.attempt == 2);
        CHECK(a.remaining == 120);

        CHECK(z.complete(owner_of(1, 1), end.how, 5102)
              == settle_result::lost);
        CHECK(z.release(owner_of(1, 1), 5102) == settle_result::lost);
        CHECK(z.mark_unknown(owner_of(1, 1), 9, 5102) == settle_result::lost);
        CHECK(z.renew(owner_of(1, 1), 5102) == settle_result::lost);

        a = z.claim(claim_of(1, 3, true), 5152, {});
        CHECK(a.result == claim_result::claimed);
        CHECK(a.attempt == 3);
        CHECK(z.complete(owner_of(1, 2), end.how, 5153)
              == settle_result::lost);
        CHECK(z.complete(owner_of(1, 3), end.how, 5153)
              == settle_result::done);
        CHECK(z.stats().records == 1);
    }

    SECTION("a held record is taken over as well")
    {
        z.mark_unknown(owner_of(1, 1), 300, 5001);

        auto a = z.claim(claim_of(1, 2, true), 5001, {});
        CHECK(a.result == claim_result::claimed);
        CHECK(a.attempt == 2);
        CHECK(z.claim(claim_of(1, 3, true), 5001, {}).result
              == claim_result::found);
    }

    SECTION("is gone after lease and keep")
    {
        CHECK(z.claim(claim_of(1, 2), 6099, {}).result == claim_result::found);
        CHECK(z.complete(owner_of(1, 1), end.how, 6100)
              == settle_result::lost);

        auto a = z.claim(claim_of(1, 2), 6100, {});
        CHECK(a.result == claim_result::claimed);
        CHECK(a.attempt == 1);
    }

    SECTION("is not seen by a clock that is a little behind")
    {
        auto a = z.claim(claim_of(1, 2, true), 4990, {});
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::pending);

        z.complete(owner_of(1, 1), end.how, 5000);
        CHECK(z.claim(claim_of(1, 2, true), 4990, {}).age == 0);
    }

    CHECK(f.wrong() == "");
}


TEST_CASE("zone: expiry")
{
    fixture f;
    zone &z = f.z;
    ended end(500, 2000);

    SECTION("to the millisecond")
    {
        z.claim(claim_of(1, 1), 5000, {});
        z.complete(owner_of(1, 1), end.how, 6000);

        auto a = z.claim(claim_of(1, 2), 7999, {});
        CHECK(a.result == claim_result::found);
        CHECK(a.remaining == 1);
        CHECK(z.expire(7999, 10) == 0);
        CHECK(z.claim(claim_of(1, 2), 8000, {}).result
              == claim_result::claimed);
        CHECK(f.used() == 1);
        CHECK(z.complete(owner_of(1, 2), end.how, 8000)
              == settle_result::done);
    }

    SECTION("nothing can be done to what has expired")
    {
        z.claim(claim_of(1, 1), 5000, {});
        CHECK(z.release(owner_of(1, 1), 6100) == settle_result::lost);
        CHECK(z.mark_unknown(owner_of(1, 1), 9, 6100) == settle_result::lost);
        CHECK(z.renew(owner_of(1, 1), 6100) == settle_result::lost);
        CHECK(z.complete(owner_of(1, 1), end.how, 6100)
              == settle_result::lost);
        CHECK(z.expire(6100, 10) == 1);
        CHECK(f.used() == 0);
    }

    SECTION("a TTL of nothing")
    {
        ended gone(10, 0);

        z.claim(claim_of(1, 1), 5000, {});
        CHECK(z.complete(owner_of(1, 1), gone.how, 5000)
              == settle_result::done);
        CHECK(z.claim(claim_of(1, 2), 5000, {}).result
              == claim_result::claimed);
    }

    SECTION("forever")
    {
        ended kept(500, forever);

        z.claim(claim_of(1, 1), 5000, {});
        z.complete(owner_of(1, 1), kept.how, 5000);

        claim long_claim = claim_of(2, 1);
        long_claim.keep = forever;
        z.claim(long_claim, 5000, {});

        z.claim(claim_of(3, 1), 5000, {});
        z.mark_unknown(owner_of(3, 1), forever, 5000);

        CHECK(z.expire(forever - 1, 10) == 0);
        CHECK(z.expire(forever, 10) == 0);

        for (unsigned key : {1, 2, 3}) {
            auto a = z.claim(claim_of(key, 2), forever - 1, {});
            CHECK(a.result == claim_result::found);
            CHECK(a.remaining == forever);
        }

        CHECK(z.renew(owner_of(2, 1), 5001) == settle_result::done);
        CHECK(z.claim(claim_of(2, 2), 5001, {}).remaining == forever);
        CHECK(f.wrong() == "");
        CHECK(z.release(owner_of(2, 1), 5001) == settle_result::done);
        CHECK(z.stats().records == 2);
    }

    SECTION("a sum that overflows is forever, too")
    {
        ended kept(0, forever - 10);

        z.claim(claim_of(1, 1), 5000, {});
        z.complete(owner_of(1, 1), kept.how, 5000);
        CHECK(z.claim(claim_of(1, 2), 6000, {}).remaining == forever);

        claim big = claim_of(2, 1);
        big.lease = forever / 2 + 1;
        big.keep = forever / 2 + 1;
        z.claim(big, 5000, {});
        CHECK(z.claim(claim_of(2, 2), forever - 1, {}).remaining == forever);
    }

    SECTION("a claim reclaims two")
    {
        for (unsigned i = 0; i < 10; ++i) {
            z.claim(claim_of(i, 1), 5000, {});
        }

        z.claim(claim_of(20, 1), 9000, {});
        CHECK(z.stats().records == 9);
        CHECK(z.expire(9000, 3) == 3);
        CHECK(z.expire(9000, 100) == 5);
        CHECK(z.stats().records == 1);
    }

    CHECK(f.wrong() == "");
}


TEST_CASE("zone: expired in the order of expiry")
{
    std::uint64_t used_seed = seed();
    INFO("ZONE_SEED=" << used_seed);
    std::mt19937_64 random(used_seed);
    fixture f(1000);
    std::vector<std::uint64_t> expiries;

    for (unsigned i = 0; i < 1000; ++i) {
        ended end(0, 1 + random() % 500);

        f.z.claim(claim_of(i, 1), 1000, {});
        f.z.complete(owner_of(i, 1), end.how, 1000);
        expiries.push_back(1000 + end.how.ttl);
    }

    REQUIRE(f.wrong() == "");
    std::sort(expiries.begin(), expiries.end());

    for (std::size_t n = 0; n < expiries.size(); ++n) {
        REQUIRE(f.z.expire(expiries[n] - 1, 1) == 0);
        REQUIRE(f.z.expire(expiries[n], 1) == 1);
    }

    CHECK(f.used() == 0);
    CHECK(f.wrong() == "");
}


TEST_CASE("zone: responses of any size")
{
    fixture f(1000);
    zone &z = f.z;
    std::vector<std::span<const std::uint8_t>> parts;
    auto size = GENERATE(std::size_t{0}, 1, inside, inside + 1, payload - 1,
                         payload, payload + 1, 2 * payload, 2 * payload + 1,
                         100000);

    INFO("size " << size);

    /* In pieces of growing size, empty ones among them. */
    parts.emplace_back();

    for (std::size_t at = 0, n = 1; at < size; n = n * 3 + 1) {
        n = std::min(n, size - at);
        parts.push_back(part(at, n));
        parts.emplace_back();
        at += n;
    }

    completion how{record_state::completed, 1000, parts, {}, 1000};
    z.claim(claim_of(1, 1), 0, {});
    REQUIRE(z.complete(owner_of(1, 1), how, 0) == settle_result::done);

    CHECK(f.used()
          == 1 + (size <= inside ? 0 : (size + payload - 1) / payload));

    bytes out(size + 1, 0xee);
    auto a = z.claim(claim_of(1, 2), 1, out);

    CHECK(a.response_size == size);
    CHECK(same(a.response, part(0, size)));
    CHECK(out[size] == 0xee);

    a = z.claim(claim_of(1, 2), 1, std::span(out).first(size));
    CHECK(same(a.response, part(0, size)));

    if (size > 0) {
        bytes before(static_cast<std::uint8_t *>(f.memory.start()),
                     static_cast<std::uint8_t *>(f.memory.start())
                         + f.memory.size());
        std::fill(out.begin(), out.end(), 0xee);

        a = z.claim(claim_of(1, 2), 1, std::span(out).first(size - 1));
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::completed);
        CHECK(a.response.empty());
        CHECK(a.response_size == size);
        CHECK(std::count(out.begin(), out.end(), 0xee)
              == static_cast<std::ptrdiff_t>(out.size()));

        a = z.claim(claim_of(1, 2), 1, {});
        CHECK(a.response_size == size);
        CHECK(!std::memcmp(before.data(), f.memory.start(), before.size()));
    }

    CHECK(f.wrong() == "");
    CHECK(z.expire(1000, 1) == 1);
    CHECK(f.used() == 0);
    CHECK(f.wrong() == "");
}


TEST_CASE("zone: full")
{
    fixture f(16);
    zone &z = f.z;
    bytes out(10000);
    ended end(5 * payload, 2000);

    for (unsigned i = 0; i < 16; ++i) {
        REQUIRE(z.claim(claim_of(i, 1), 0, {}).result
                == claim_result::claimed);
    }

    SECTION("no claim more, and nothing evicted")
    {
        view before = inspect{z}.look(0);

        CHECK(z.claim(claim_of(16, 1), 1099, {}).result
              == claim_result::unavailable);
        CHECK(before == inspect{z}.look(0));

        /* What is there goes on. */
        CHECK(z.claim(claim_of(3, 2), 50, {}).state == record_state::pending);
        CHECK(z.claim(claim_of(3, 2, true), 101, {}).result
              == claim_result::claimed);
    }

    SECTION("room after a release")
    {
        z.release(owner_of(5, 1), 1);
        CHECK(z.claim(claim_of(16, 1), 1, {}).result == claim_result::claimed);
        CHECK(z.claim(claim_of(17, 1), 1, {}).result
              == claim_result::unavailable);
    }

    SECTION("room after expiry")
    {
        CHECK(z.claim(claim_of(16, 1), 1100, {}).result
              == claim_result::claimed);
        CHECK(z.stats().records == 15);
    }

    SECTION("the name's own expired record makes room")
    {
        for (unsigned i = 0; i < 16; ++i) {

            if (i != 7) {
                z.renew(owner_of(i, 1), 1000);
            }
        }

        CHECK(z.claim(claim_of(7, 2), 1100, {}).result
              == claim_result::claimed);
        CHECK(z.claim(claim_of(16, 2), 1100, {}).result
              == claim_result::unavailable);
    }

    SECTION("an outcome is kept without its response")
    {
        ended small(5 * payload, 2000, record_state::completed, inside);

        CHECK(z.complete(owner_of(1, 1), small.how, 10)
              == settle_result::kept_without_response);

        auto a = z.claim(claim_of(1, 2), 11, out);
        CHECK(a.state == record_state::not_kept);
        CHECK(a.response_size == 0);
        CHECK(a.remaining == 1999);

        z.release(owner_of(0, 1), 10);
        CHECK(z.complete(owner_of(2, 1), small.how, 10)
              == settle_result::kept_without_response);

        a = z.claim(claim_of(2, 2), 11, out);
        CHECK(a.state == record_state::not_kept);
        CHECK(same(a.response, part(50000, inside)));
        CHECK(f.used() == 16);
    }

    SECTION("a short summary needs no room")
    {
        ended small(5 * payload, 2000, record_state::completed, 20);

        CHECK(z.complete(owner_of(1, 1), small.how, 10)
              == settle_result::kept_without_response);

        auto a = z.claim(claim_of(1, 2), 11, out);
        CHECK(a.state == record_state::not_kept);
        CHECK(same(a.response, part(50000, 20)));
        CHECK(f.used() == 16);
    }

    SECTION("an empty response needs no room")
    {
        ended nothing(0, 2000);

        CHECK(z.complete(owner_of(1, 1), nothing.how, 10)
              == settle_result::done);
        CHECK(z.claim(claim_of(1, 2), 11, out).state
              == record_state::completed);
    }

    SECTION("the expired make room for a response, no more than needed")
    {
        for (unsigned i = 8; i < 16; ++i) {
            z.renew(owner_of(i, 1), 1000);
        }

        CHECK(z.complete(owner_of(8, 1), end.how, 1100)
              == settle_result::done);
        CHECK(z.stats().records == 11);
        CHECK(same(z.claim(claim_of(8, 2), 1100, out).response,
                   part(0, 5 * payload)));
    }

    SECTION("a response larger than the zone")
    {
        ended huge(150000, 2000);

        CHECK(z.complete(owner_of(1, 1), huge.how, 10)
              == settle_result::kept_without_response);
        CHECK(z.stats().records == 16);
    }

    CHECK(f.wrong() == "");
}


TEST_CASE("zone: recovery")
{
    fixture f;
    zone &z = f.z;
    ended end(3 * payload, 5000), kept(10, forever);
    bytes out(2000);

    for (unsigned i = 0; i < 12; ++i) {
        z.claim(claim_of(i, i), i, {});
    }

    z.complete(owner_of(0, 0), end.how, 20);
    z.complete(owner_of(1, 1), end.how, 21);
    z.complete(owner_of(2, 2), kept.how, 21);
    z.mark_unknown(owner_of(3, 3), 77, 22);
    z.release(owner_of(4, 4), 22);

    auto before = inspect{z}.look(23);
    auto stats = z.stats();

    SECTION("of a healthy zone changes nothing")
    {
        auto r = z.recover();

        CHECK(r.records == 11);
        CHECK(r.without_response == 0);
    }

    SECTION("makes all that is derived anew")
    {
        inspect{z}.spoil();
        CHECK(z.dirty());
        CHECK(z.recover().records == 11);
    }

    CHECK(!z.dirty());
    CHECK(before == inspect{z}.look(23));
    CHECK(stats.records == z.stats().records);
    CHECK(stats.blocks_used == z.stats().blocks_used);
    CHECK(f.wrong() == "");

    SECTION("a broken response does not take the record with it")
    {
        inspect{z}.cut_response(name_of(1));

        auto r = z.recover();
        CHECK(r.without_response == 1);
        CHECK(z.stats().blocks_used == stats.blocks_used - 3);
        CHECK(r.records == 11);

        auto a = z.claim(claim_of(1, 50, true), 24, out);
        CHECK(a.result == claim_result::found);
        CHECK(a.state == record_state::not_kept);
        CHECK(a.response_size == 0);
        CHECK(a.age == 3);
    }

    SECTION("two records never share a response")
    {
        inspect{z}.share_response(name_of(1), name_of(0));

        auto r = z.recover();
        CHECK(r.without_response == 1);
        CHECK(z.stats().blocks_used == stats.blocks_used - 3);
        CHECK(z.claim(claim_of(0, 50), 24, out).state
              != z.claim(claim_of(1, 50), 24, out).state);
    }

    CHECK(f.wrong() == "");
}


namespace {

/*
 * A model of a zone, plain enough to lie in shared memory.  Room is what the
 * unexpired leave, so it knows every answer.
 */
constexpr unsigned keys = 100;
constexpr std::size_t model_blocks = 64;


std::size_t
blocks_of(std::size_t size)
{
    return (size + payload - 1) / payload;
}


enum kind { in_responses, in_summaries, in_none };


struct entry {
    bool present;
    record_state state;
    unsigned print;
    std::uint32_t attempt;
    token owner;
    std::uint64_t lease;
    std::uint64_t keep;
    std::uint64_t since;
    std::uint64_t expiry;
    std::size_t offset;
    std::size_t size;    /* of the response */
    std::size_t summary; /* its size */
    std::uint64_t rank;  /* in its queue */

    std::size_t response_blocks() const
    {
        return state == record_state::completed && size > inside
                   ? blocks_of(size)
                   : 0;
    }

    std::size_t summary_blocks() const
    {
        return summary < inside ? 0 : blocks_of(summary);
    }

    std::size_t blocks() const
    {
        return 1 + response_blocks() + summary_blocks();
    }

    kind queue() const
    {
        return response_blocks() ? in_responses
               : state == record_state::not_kept && summary_blocks()
                   ? in_summaries
                   : in_none;
    }

    std::size_t shown() const
    {
        return state == record_state::completed  ? size
               : state == record_state::not_kept ? summary
                                                 : 0;
    }
};


struct model {
    std::uint64_t now;
    std::uint64_t tokens;
    std::uint64_t ranks;
    std::array<entry, keys> entries;

    bool lives(const entry &e) const
    {
        return e.present && (e.expiry == forever || now < e.expiry);
    }

    std::size_t used() const
    {
        std::size_t n = 0;

        for (const entry &e : entries) {
            n += lives(e) ? e.blocks() : 0;
        }

        return n;
    }

    /* The key whose turn it is, or keys. */
    unsigned oldest(kind which) const
    {
        unsigned found = keys;

        for (unsigned i = 0; i < keys; ++i) {

            if (lives(entries[i]) && entries[i].queue() == which
                && (found == keys || entries[i].rank < entries[found].rank))
            {
                found = i;
            }
        }

        return found;
    }

    void drop(unsigned key)
    {
        entry &e = entries[key];

        if (e.queue() == in_responses) {
            e.state = record_state::not_kept;
            e.size = 0;

        } else {
            e.summary = 0;
        }

        e.rank = ++ranks;
    }

    /* A repair puts the queues in the order of time. */
    void repair()
    {
        std::array<unsigned, keys> order;

        for (unsigned i = 0; i < keys; ++i) {
            order[i] = i;
        }

        std::sort(order.begin(), order.end(), [this](unsigned a, unsigned b) {
            return entries[a].since < entries[b].since;
        });

        for (unsigned i : order) {
            entries[i].rank = ++ranks;
        }
    }
};


enum class act {
    claim,
    complete,
    release,
    mark_unknown,
    renew,
    expire,
    recover
};


struct plan {
    act what;
    unsigned key;
    unsigned print;
    bool take_over;
    token owner;
    std::uint64_t lease;
    std::uint64_t keep; /* or TTL */
    record_state state;
    std::size_t offset;
    std::size_t size;
    std::size_t cut; /* where its two pieces meet */
    std::size_t summary;
};


/* What is expected: the answer, and the entry after it. */
struct forecast {
    model after;
    std::array<unsigned, 2 * keys> dropped; /* on the way, in this order */
    unsigned drops;
    claim_result claimed;
    record_state state;
    settle_result settled;

    bool make_room(std::size_t blocks, kind last)
    {
        model then = after;
        unsigned before = drops;

        for (int which = in_responses; which <= last; ++which) {
            while (then.used() + blocks > model_blocks) {
                unsigned key = then.oldest(static_cast<kind>(which));

                if (key == keys) {
                    break;
                }

                dropped[drops++] = key;
                then.drop(key);
            }
        }

        if (then.used() + blocks > model_blocks) {
            drops = before;
            return false;
        }

        after = then;

        return true;
    }
};


std::uint64_t
add(std::uint64_t a, std::uint64_t b)
{
    return b > forever - a ? forever : a + b;
}


plan
choose(model &m, std::mt19937_64 &random)
{
    plan p{};
    auto dice = random() % 100;

    p.key = static_cast<unsigned>(random() % keys);
    p.what = dice < 50      ? act::claim
             : dice < 75    ? act::complete
             : dice < 82    ? act::release
             : dice < 88    ? act::mark_unknown
             : dice < 97    ? act::renew
             : dice < 98    ? act::expire
             : random() % 4 ? act::claim
                            : act::recover;
    p.print = random() % 8 == 0;
    p.take_over = random() % 2;
    p.owner = p.what == act::claim || random() % 8 == 0
                  ? token_of(++m.tokens)
                  : m.entries[p.key].owner;
    p.lease = random() % 100;
    p.keep = random() % 64 == 0 && m.tokens < 500 ? forever : random() % 2000;
    p.state = random() % 4 ? record_state::completed : record_state::not_kept;
    p.offset = random() % 90000;
    p.size = random() % 4 ? random() % 1500 : random() % 3 * payload;
    p.cut = p.size ? random() % p.size : 0;
    p.summary = random() % 100;
    m.now += random() % 4;
    m.now += p.what == act::complete; /* no two at the same time */
    m.now += random() % 200 ? 0 : random() % 2000;

    return p;
}


void
foresee_claim(const plan &p, forecast &f)
{
    model &m = f.after;
    entry &e = m.entries[p.key];

    if (m.lives(e)) {
        f.claimed = claim_result::found;
        f.state = e.state == record_state::pending && m.now - e.since > e.lease
                      ? record_state::unknown
                      : e.state;

        if (f.state != record_state::unknown || !p.take_over
            || p.print != e.print) {
            return;
        }

        ++e.attempt;

    } else {

        if (!f.make_room(1, in_summaries)) {
            f.claimed = claim_result::unavailable;
            return;
        }

        e = entry{};
        e.attempt = 1;
    }

    f.claimed = claim_result::claimed;
    e.present = true;
    e.state = record_state::pending;
    e.print = p.print;
    e.owner = p.owner;
    e.lease = p.lease;
    e.keep = p.keep;
    e.since = m.now;
    e.expiry = add(add(m.now, p.lease), p.keep);
}


/* What is written, when the entry is the last of its queue. */
void
foresee_complete(const plan &p, forecast &f)
{
    entry done = f.after.entries[p.key];

    done.since = f.after.now;
    done.expiry = add(f.after.now, p.keep);
    done.state = p.state;
    done.offset = p.offset;
    done.owner = {};
    done.lease = 0;

    bool kept = p.state == record_state::completed;

    done.size = kept ? p.size : 0;
    done.summary = !kept ? p.size : p.size <= inside ? 0 : p.summary;

    if (!f.make_room(done.blocks() - 1, in_responses)) {
        f.settled = settle_result::kept_without_response;
        done.state = record_state::not_kept;
        done.size = 0;
        done.summary = p.summary;

        if (!f.make_room(done.blocks() - 1, in_responses)) {
            done.summary = 0;
        }
    }

    done.rank = ++f.after.ranks;
    f.after.entries[p.key] = done;
}


void
foresee_settle(const plan &p, forecast &f)
{
    model &m = f.after;
    entry &e = m.entries[p.key];

    if (!m.lives(e) || e.state != record_state::pending || e.owner != p.owner)
    {
        f.settled = settle_result::lost;
        return;
    }

    f.settled = settle_result::done;

    switch (p.what) {

    case act::release: e = entry{}; break;

    case act::renew:
        e.since = m.now;
        e.expiry = add(add(m.now, e.lease), e.keep);
        break;

    case act::complete: foresee_complete(p, f); break;

    default:
        e.since = m.now;
        e.expiry = add(m.now, p.keep);
        e.state = record_state::unknown;
    }
}


forecast
foresee(const model &m, const plan &p)
{
    forecast f{};

    f.after = m;

    if (p.what == act::claim) {
        foresee_claim(p, f);

    } else if (p.what == act::recover) {
        f.after.repair();

    } else if (p.what != act::expire) {
        foresee_settle(p, f);
    }

    return f;
}


bool
claim_as_foreseen(zone &z, const model &m, const plan &p, const forecast &f)
{
    static std::array<std::uint8_t, 4000> out;
    claim c{name_of(p.key), print_of(p.print), p.owner, p.lease,
            p.keep,         p.take_over};
    auto a = z.claim(c, m.now, out);
    const entry &e = f.after.entries[p.key];

    if (a.result != f.claimed) {
        return false;
    }

    if (a.result == claim_result::unavailable) {
        return true;
    }

    if (a.attempt != e.attempt
        || a.remaining != (e.expiry == forever ? forever : e.expiry - m.now))
    {
        return false;
    }

    if (a.result == claim_result::claimed) {
        return a.same_fingerprint && a.response.empty();
    }

    bool ended = f.state == record_state::completed
                 || f.state == record_state::not_kept;
    bool shown = ended && p.print == e.print;

    return a.state == f.state && a.same_fingerprint == (p.print == e.print)
           && a.age == (ended ? m.now - e.since : 0)
           && same(a.response, part(e.offset, shown ? e.shown() : 0));
}


bool
as_foreseen(zone &z, const model &m, const plan &p, const forecast &f)
{
    ownership whose{name_of(p.key), p.owner};
    std::array parts{part(p.offset, p.cut),
                     part(p.offset + p.cut, p.size - p.cut)};
    std::array summary{part(p.offset, p.summary)};
    completion how{p.state, p.keep, parts, summary, p.keep};

    switch (p.what) {

    case act::claim: return claim_as_foreseen(z, m, p, f);

    case act::complete: return z.complete(whose, how, m.now) == f.settled;

    case act::release: return z.release(whose, m.now) == f.settled;

    case act::mark_unknown:
        return z.mark_unknown(whose, p.keep, m.now) == f.settled;

    case act::renew: return z.renew(whose, m.now) == f.settled;

    case act::expire: z.expire(m.now, 5); return true;

    case act::recover: {
        auto used = z.stats().blocks_used;
        auto r = z.recover();
        return z.stats().blocks_used == used && r.without_response == 0;
    }
    }

    return false;
}


/* Whether the zone shows of a key what the model says. */
bool
agrees(const view &v, const model &m, unsigned key, const entry &e)
{
    auto found = v.find(name_of(key));

    if (!m.lives(e) || found == v.end()) {
        return !m.lives(e) && found == v.end();
    }

    auto response = part(e.offset, e.shown());
    bool owned = e.state == record_state::pending;

    return found->second
           == seen{e.state,
                   e.attempt,
                   print_of(e.print),
                   owned ? e.owner : token{},
                   owned ? e.lease : 0,
                   owned ? e.keep : 0,
                   e.since,
                   e.expiry,
                   bytes(response.begin(), response.end())};
}


bool
agrees(zone &z, const model &m)
{
    view v = inspect{z}.look(m.now);

    for (unsigned key = 0; key < keys; ++key) {

        if (!agrees(v, m, key, m.entries[key])) {
            return false;
        }
    }

    return true;
}

}


TEST_CASE("zone: a hundred thousand random operations")
{
    std::uint64_t used_seed = seed();
    INFO("ZONE_SEED=" << used_seed);
    std::mt19937_64 random(used_seed);
    fixture f(model_blocks);
    model m{};
    std::array<unsigned, 3> claims{};
    std::array<unsigned, 4> settles{};
    unsigned dropped = 0;

    for (unsigned i = 0; i < 100000; ++i) {
        plan p = choose(m, random);
        forecast expected = foresee(m, p);

        if (!as_foreseen(f.z, m, p, expected)) {
            FAIL("operation " << i << ", kind " << static_cast<int>(p.what));
        }

        m = expected.after;
        dropped += expected.drops;

        if (p.what == act::claim) {
            ++claims[static_cast<unsigned>(expected.claimed)];

        } else if (p.what < act::expire) {
            ++settles[static_cast<unsigned>(expected.settled)];
        }

        if (i % 100 == 0) {
            INFO("operation " << i);
            REQUIRE(f.wrong() == "");
            REQUIRE(agrees(f.z, m));
        }
    }

    /* All of these have been met, or this tests less than it seems. */
    for (auto n : claims) {
        CHECK(n > 1000);
    }

    CHECK(settles[0] > 1000);
    CHECK(settles[1] > 1000);
    CHECK(settles[2] > 1000);
    CHECK(dropped > 1000);

    f.z.expire(m.now, keys);
    CHECK(f.used() == m.used());

    m.now = forever - 1;
    f.z.expire(m.now, keys);
    CHECK(f.used() == m.used());
    CHECK(f.wrong() == "");
}


namespace {

/* What a child that will be killed tells of its doings. */
struct journal {
    model m;
    std::uint64_t operations;
    std::uint32_t started;
    std::uint32_t surprised;
    std::uint32_t busy; /* with this */
    forecast expected;
};


void
note(std::uint32_t &where, std::uint32_t value)
{
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::atomic_ref<std::uint32_t>(where).store(value);
    std::atomic_signal_fence(std::memory_order_seq_cst);
}


[[noreturn]] void
live_until_killed(zone &z, journal &j, std::uint64_t child_seed)
{
    std::mt19937_64 random(child_seed);

    note(j.started, 1);

    for (;;) {
        plan p = choose(j.m, random);
        j.expected = foresee(j.m, p);
        note(j.busy, 1);

        if (!as_foreseen(z, j.m, p, j.expected)) {
            note(j.surprised, 1);
        }

        note(j.busy, 2);
        j.m = j.expected.after;
        note(j.busy, 0);
        ++j.operations;
    }
}


void
kill_one(zone &z, journal &j, std::mt19937_64 &random)
{
    auto child_seed = random();
    auto wait = static_cast<useconds_t>(random() % 3000);

    note(j.started, 0);

    pid_t child = fork();

    REQUIRE(child >= 0);

    if (child == 0) {
        live_until_killed(z, j, child_seed);
    }

    while (std::atomic_ref(j.started).load() == 0) {
        usleep(10);
    }

    usleep(wait);
    kill(child, SIGKILL);

    int status = 0;

    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == SIGKILL);
}

}


namespace {

/* As before the operation, or after some of its steps, or after it. */
model
where_it_died(zone &z, const journal &j)
{
    model m = j.m;

    if (j.busy == 2) {
        return j.expected.after;
    }

    for (unsigned i = 0; i < j.expected.drops && !agrees(z, m); ++i) {
        m.drop(j.expected.dropped[i]);
    }

    return agrees(z, m) ? m : j.expected.after;
}

}


TEST_CASE("zone: killed at any time, no acknowledged record is lost")
{
    std::uint64_t used_seed = seed();
    INFO("ZONE_SEED=" << used_seed);
    std::mt19937_64 random(used_seed);
    fixture f(model_blocks);
    region shared(sizeof(journal));
    auto &j = *new (shared.start()) journal{};
    unsigned dirty = 0;

    noise();

    /* On a busy machine fewer deaths come inside a change. */
    for (unsigned round = 0; round < 300 || (dirty <= 15 && round < 3000);
         ++round) {
        INFO("round " << round);
        kill_one(f.z, j, random);

        bool repaired = f.z.dirty();

        if (repaired) {
            ++dirty;
            REQUIRE(f.z.recover().without_response == 0);
        }

        REQUIRE(!j.surprised);
        REQUIRE(f.wrong() == "");

        if (j.busy) {
            j.m = where_it_died(f.z, j);
            note(j.busy, 0);
        }

        if (repaired) {
            j.m.repair();
        }

        REQUIRE(agrees(f.z, j.m));
    }

    INFO(dirty << " dirty, " << j.operations << " operations");
    CHECK(dirty > 15);
    CHECK(j.operations > 10000);
}


namespace {

bytes
summary_of(std::size_t size)
{
    auto summary = part(50000, size);

    return bytes(summary.begin(), summary.end());
}


/* The zone as it is, but for one response. */
view
without_response(zone &z, unsigned key, std::size_t summary)
{
    view v = inspect{z}.look(1000);

    v[name_of(key)].state = record_state::not_kept;
    v[name_of(key)].response = summary_of(summary);

    return v;
}

}


TEST_CASE("zone: killed at each instruction, a change is whole or not at all")
{
    auto with_checks = GENERATE(false, true);
    INFO("checks: " << with_checks);
    fixture f(24, with_checks);
    zone &z = f.z;
    ended end(2 * payload + 9, 300, record_state::completed, 20);
    auto finish = [&](zone &which) {
        which.complete(owner_of(9, 1), end.how, 1000);
    };

    /* 1 to 4 expire before 1000, 4 has a response; 9 is the one in work. */
    for (unsigned i : {1, 2, 3, 4, 8, 9}) {
        z.claim(claim_of(i, 1), 0, {});
    }

    for (unsigned i = 1; i < 4; ++i) {
        z.mark_unknown(owner_of(i, 1), 50 * i, 0);
    }

    z.complete(owner_of(4, 1), end.how, 0);
    z.complete(owner_of(8, 1),
               ended(700, 900, record_state::completed, 40).how, 950);
    z.renew(owner_of(9, 1), 990);
    REQUIRE(z.stats().records == 6);

    unsigned more = 100;
    auto fill = [&](std::size_t blocks) {
        z.expire(1000, 100);

        while (z.stats().blocks_used < blocks) {
            z.claim(claim_of(++more, 1), 990, {});
        }
    };

    SECTION("claim, with the expired to be reclaimed")
    {
        die_everywhere(f, 1000, [](zone &which) {
            which.claim(claim_of(10, 1), 1000, {});
        });
    }

    SECTION("claim of a name whose record expired")
    {
        die_everywhere(f, 1000, [](zone &which) {
            which.claim(claim_of(4, 2), 1000, {});
        });
    }

    SECTION("claim that takes over")
    {
        z.mark_unknown(owner_of(9, 1), 500, 990);
        die_everywhere(f, 1000, [](zone &which) {
            which.claim(claim_of(9, 2, true), 1000, {});
        });
    }

    SECTION("complete")
    {
        die_everywhere(f, 1000, finish);
    }

    SECTION("complete, with the expired to be reclaimed")
    {
        for (unsigned i = 20; z.stats().blocks_used < 24; ++i) {
            z.claim(claim_of(i, 1), 1, {});
        }

        die_everywhere(f, 1000, finish);
        CHECK(f.used() == 24);
    }

    SECTION("complete without room")
    {
        ended larger(4 * payload + 9, 300, record_state::completed, 20);
        fill(23);

        die_everywhere(f, 1000, [&](zone &which) {
            which.complete(owner_of(9, 1), larger.how, 1000);
        });
        CHECK(f.used() == 23);
    }

    SECTION("complete, where the oldest response makes room")
    {
        fill(23);
        die_everywhere(f, 1000, finish, {without_response(z, 8, 40)});
        CHECK(f.used() == 23);
        CHECK(z.stats().dropped == 1);
    }

    SECTION("complete, where responses and then a summary make room")
    {
        ended second(700, 900, record_state::completed, payload);
        ended larger(5 * payload + 9, 300, record_state::completed, 20);

        z.claim(claim_of(7, 1), 950, {});
        z.complete(owner_of(7, 1), second.how, 960);
        fill(24);

        view first = without_response(z, 8, 40);
        view both = first;
        both[name_of(7)].state = record_state::not_kept;
        both[name_of(7)].response = summary_of(payload);

        die_everywhere(f, 1000,
                       [&](zone &which) {
                           which.complete(owner_of(9, 1), larger.how, 1000);
                       },
                       {first, both});
        CHECK(f.used() == 24);

        /* 9 has the room now, until others need it. */
        view third = inspect{z}.look(1000);
        third[name_of(9)].state = record_state::not_kept;
        third[name_of(9)].response = summary_of(20);

        die_everywhere(
            f, 1000,
            [](zone &which) { which.claim(claim_of(60, 1), 1000, {}); },
            {third});
    }

    SECTION("claim, where the oldest response makes room")
    {
        fill(24);
        die_everywhere(
            f, 1000,
            [](zone &which) { which.claim(claim_of(60, 1), 1000, {}); },
            {without_response(z, 8, 40)});
        CHECK(f.used() == 22);
    }

    SECTION("claim, where only a summary can make room")
    {
        ended told(payload, 900, record_state::not_kept);

        z.complete(owner_of(9, 1), told.how, 990);
        fill(24);

        while (z.stats().blocks_of_responses != 0) {
            z.claim(claim_of(++more, 1), 990, {});
        }

        fill(24);

        view before = inspect{z}.look(1000);
        before[name_of(9)].response.clear();
        die_everywhere(
            f, 1000,
            [](zone &which) { which.claim(claim_of(200, 1), 1000, {}); },
            {before});
        CHECK(f.used() == 24);
    }

    SECTION("release")
    {
        die_everywhere(
            f, 1000, [](zone &which) { which.release(owner_of(9, 1), 1000); });
    }

    SECTION("mark_unknown")
    {
        die_everywhere(f, 1000, [](zone &which) {
            which.mark_unknown(owner_of(9, 1), 50, 1000);
        });
    }

    SECTION("renew")
    {
        die_everywhere(f, 1000,
                       [](zone &which) { which.renew(owner_of(9, 1), 1000); });
    }

    SECTION("expire")
    {
        die_everywhere(f, 1000, [](zone &which) { which.expire(1000, 100); });
        CHECK(z.stats().records == 2);
        CHECK(f.wrong() == "");
    }

    SECTION("recover")
    {
        inspect{z}.spoil();
        die_everywhere(f, 1000, [](zone &which) { which.recover(); });
    }
}
