#include "contract/record.h"
#include "zone_kit.h"

using namespace zone_kit;

/* A zone that fills up: what makes room, in which order, and what is told. */

namespace {

constexpr std::uint64_t hour = 60 * 60 * 1000;


void
run(zone &z, unsigned key, const completion &how, std::uint64_t now)
{
    claim c = claim_of(key, 1);

    c.keep = 100 * hour;
    z.claim(c, now, {});
    z.complete(owner_of(key, 1), how, now);
}


record_state
state_of(zone &z, unsigned key, std::uint64_t now)
{
    return z.claim(claim_of(key, 99), now, {}).state;
}

}


TEST_CASE("zone: the oldest responses make room, facts do not")
{
    fixture f(64);
    zone &z = f.z;
    ended end(3 * payload, 100 * hour, record_state::completed, 20);

    /* Four blocks each. */
    for (unsigned i = 0; i < 16; ++i) {
        run(z, i, end.how, 1000 + i);
    }

    CHECK(z.stats().blocks_used == 64);
    CHECK(z.stats().blocks_of_responses == 48);
    CHECK(z.stats().dropped == 0);

    SECTION("the oldest, and no more than is needed")
    {
        CHECK(z.claim(claim_of(20, 1), 2000, {}).result
              == claim_result::claimed);
        CHECK(z.stats().dropped == 1);
        CHECK(state_of(z, 0, 2000) == record_state::not_kept);
        CHECK(state_of(z, 1, 2000) == record_state::completed);

        CHECK(z.complete(owner_of(20, 1), end.how, 2000)
              == settle_result::done);
        CHECK(z.stats().dropped == 2);
        CHECK(state_of(z, 1, 2000) == record_state::not_kept);
        CHECK(state_of(z, 2, 2000) == record_state::completed);
        CHECK(state_of(z, 20, 2000) == record_state::completed);
    }

    SECTION("a retry is told what there is, as long as before")
    {
        bytes out(1000);

        z.claim(claim_of(20, 1), 2000, {});

        auto a = z.claim(claim_of(0, 99), 2000, out);
        CHECK(a.state == record_state::not_kept);
        CHECK(same(a.response, part(50000, 20)));
        CHECK(a.age == 1000);
        CHECK(a.remaining == 100 * hour - 1000);
    }

    SECTION("the expired go before any response")
    {
        ended brief(3 * payload, 10);

        z.claim(claim_of(20, 1), 2000, {});
        z.complete(owner_of(20, 1), brief.how, 2000);
        auto dropped = z.stats().dropped;

        z.claim(claim_of(21, 1), 2010, {});
        z.complete(owner_of(21, 1), end.how, 2010);
        CHECK(z.stats().dropped == dropped);
    }

    SECTION("until there is nothing but facts")
    {
        unsigned key = 100;

        while (z.claim(claim_of(++key, 1), 2000, {}).result
               == claim_result::claimed) {
            z.complete(owner_of(key, 1), end.how, 2000);
        }

        CHECK(z.stats().records == 64);
        CHECK(z.stats().blocks_of_responses == 0);
        CHECK(z.stats().refused == 1);

        for (unsigned i = 0; i < 16; ++i) {
            CHECK(state_of(z, i, 2000) == record_state::not_kept);
        }
    }

    SECTION("not for a response that would not fit anyway")
    {
        ended huge(63 * payload, hour);

        z.claim(claim_of(20, 1), 2000, {});
        auto dropped = z.stats().dropped;

        CHECK(z.complete(owner_of(20, 1), huge.how, 2000)
              == settle_result::kept_without_response);
        CHECK(z.stats().dropped == dropped);
    }

    SECTION("in the same order after a repair")
    {
        inspect{z}.spoil();
        z.recover();
        z.claim(claim_of(20, 1), 2000, {});
        CHECK(state_of(z, 0, 2000) == record_state::not_kept);
        CHECK(state_of(z, 1, 2000) == record_state::completed);
    }

    CHECK(f.wrong() == "");
}


TEST_CASE("zone: status and Location lie in the record")
{
    fixture f(16);
    response_head head;
    field location{"Location", "/orders/8e03978e-40d5-43dd-bc93-6894a57f9324"};

    head.status = 201;

    bytes summary(encoded_size(head) + encoded_size(location));
    encode(encode(summary.data(), head, 1), location);

    std::array<std::span<const std::uint8_t>, 1> shown{summary};
    ended response(3 * payload, hour);
    bytes out(1000);

    REQUIRE(summary.size() > inside);
    response.how.summary = shown;
    run(f.z, 1, response.how, 1000);
    CHECK(f.used() == 4);

    for (unsigned i = 2; i < 15; ++i) {
        f.z.claim(claim_of(i, 1), 1000, {});
    }

    auto a = f.z.claim(claim_of(1, 9), 1000, out);
    CHECK(a.state == record_state::not_kept);
    CHECK(same(a.response, summary));

    completion not_kept{record_state::not_kept, hour, shown, shown, hour};
    f.z.complete(owner_of(2, 1), not_kept, 1000);
    a = f.z.claim(claim_of(2, 9), 1000, out);
    CHECK(same(a.response, summary));
    CHECK(f.used() == 14);
    CHECK(f.wrong() == "");
}


TEST_CASE("zone: what is told of a zone that fills up, once each")
{
    fixture f(1000);
    zone &z = f.z;
    ended end(payload, 100 * hour);
    std::map<zone_event, unsigned> told;
    std::vector<zone_notice> notices;
    unsigned key = 0;
    std::uint64_t now = hour;

    auto go_on = [&](unsigned count) {
        while (count-- > 0) {
            now += 1000;
            run(z, ++key, end.how, now);

            if (auto n = z.notice(now); n.what != zone_event::none) {
                ++told[n.what];
                notices.push_back(n);
            }
        }
    };

    z.notice(now);
    go_on(399);
    CHECK(notices.empty());

    /* Two blocks a second: 200 are left. */
    go_on(1);
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].what == zone_event::filling);
    CHECK(notices[0].left == 100 * 1000);

    /* Half of it facts, and one more each second. */
    go_on(101);
    REQUIRE(notices.size() == 2);
    CHECK(notices[1].what == zone_event::dropping);
    CHECK(notices[1].facts == 50);
    CHECK(notices[1].left > 480 * 1000);
    CHECK(notices[1].left < 500 * 1000);

    go_on(600);
    REQUIRE(notices.size() == 3);
    CHECK(notices[2].what == zone_event::refusing);
    CHECK(notices[2].facts == 100);

    SECTION("and again after an hour, with a count")
    {
        now += 101 * hour;
        z.expire(now, 10000);
        go_on(700);
        CHECK(told[zone_event::dropping] == 2);
        CHECK(told[zone_event::filling] == 2);
        CHECK(notices.back().count > 400);
    }

    SECTION("nothing of a quiet zone")
    {
        now += 101 * hour;
        z.expire(now, 10000);
        go_on(10);
        CHECK(notices.size() == 3);
    }
}


TEST_CASE("zone: a response that never fits is told of")
{
    fixture f(16);
    ended huge(20 * payload, hour);

    f.z.notice(1000);

    for (unsigned i = 1; i < 4; ++i) {
        run(f.z, i, huge.how, 1000);
        CHECK(f.z.notice(1000).what
              == (i == 1 ? zone_event::not_fitting : zone_event::none));
    }
}
