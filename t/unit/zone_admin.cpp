#include "contract/record.h"
#include "zone_kit.h"

using namespace zone_kit;

/* What administrators may see and do. */

namespace {

constexpr std::uint64_t hour = 60 * 60 * 1000;


admin_settlement
complete_with(const completion &how)
{
    return {admin_act::complete, token_of(77), how.ttl, how.response,
            how.summary};
}


constexpr admin_settlement release{admin_act::release, {}, 0, {}, {}};
constexpr admin_settlement forget{admin_act::remove, {}, 0, {}, {}};


/* The outcome of key is unknown since then. */
void
make_unknown(zone &z, unsigned key, std::uint64_t now)
{
    z.claim(claim_of(key, 1), now, {});
    z.mark_unknown(owner_of(key, 1), 100 * hour, now);
}

}


TEST_CASE("zone: an unknown outcome is settled once")
{
    fixture f;
    zone &z = f.z;
    ended end(3 * payload, hour, record_state::completed, 20);

    make_unknown(z, 1, 1000);

    SECTION("released: the next retry runs")
    {
        CHECK(z.settle_unknown(name_of(1), release, 1500)
              == admin_result::done);
        CHECK(z.claim(claim_of(1, 2), 1600, {}).result
              == claim_result::claimed);
    }

    SECTION("removed: the next retry runs")
    {
        CHECK(z.settle_unknown(name_of(1), forget, 1500)
              == admin_result::done);
        CHECK(z.stats().records == 0);
    }

    SECTION("completed: retries get the response")
    {
        bytes out(1000);

        CHECK(z.settle_unknown(name_of(1), complete_with(end.how), 1500)
              == admin_result::done);

        auto a = z.claim(claim_of(1, 2), 1600, out);
        CHECK(a.state == record_state::completed);
        CHECK(same(a.response, part(0, 3 * payload)));
        CHECK(a.age == 100);
        CHECK(a.remaining == hour - 100);

        CHECK(z.settle_unknown(name_of(1), release, 1700)
              == admin_result::not_unknown);
        CHECK(z.settle_unknown(name_of(1), complete_with(end.how), 1700)
              == admin_result::not_unknown);
        CHECK(z.settle_unknown(name_of(1), forget, 1700)
              == admin_result::done);
        CHECK(f.used() == 0);
    }

    SECTION("its former owner comes too late")
    {
        z.settle_unknown(name_of(1), complete_with(end.how), 1500);
        CHECK(z.release(owner_of(1, 1), 1600) == settle_result::lost);
        CHECK(z.complete(owner_of(1, 1), end.how, 1600)
              == settle_result::lost);
        CHECK(z.claim(claim_of(1, 2), 1600, {}).state
              == record_state::completed);
    }

    CHECK(z.settle_unknown(name_of(9), release, 1800)
          == admin_result::not_found);
    CHECK(f.wrong() == "");
}


TEST_CASE("zone: nobody settles what its owner runs")
{
    fixture f;
    zone &z = f.z;
    ended end(20, hour);

    z.claim(claim_of(1, 1), 1000, {});

    for (const auto &how : {release, forget, complete_with(end.how)}) {
        CHECK(z.settle_unknown(name_of(1), how, 1100)
              == admin_result::owner_lives);
    }

    CHECK(z.renew(owner_of(1, 1), 1100) == settle_result::done);

    /* Its lease has expired now. */
    CHECK(z.settle_unknown(name_of(1), complete_with(end.how), 1201)
          == admin_result::done);
    CHECK(z.renew(owner_of(1, 1), 1210) == settle_result::lost);
    CHECK(f.wrong() == "");
}


TEST_CASE("zone: a settlement makes room, or changes nothing")
{
    fixture f(16);
    zone &z = f.z;
    ended others(3 * payload, 100 * hour, record_state::completed, 20);
    ended fits(8 * payload, hour, record_state::completed, 20);
    ended not_fitting(20 * payload, hour, record_state::completed, 300);

    make_unknown(z, 1, 1000);

    for (unsigned i = 2; i < 5; ++i) {
        claim c = claim_of(i, 1);

        c.keep = 100 * hour;
        z.claim(c, 1000, {});
        z.complete(owner_of(i, 1), others.how, 1000);
    }

    CHECK(z.settle_unknown(name_of(1), complete_with(not_fitting.how), 1500)
          == admin_result::no_room);
    CHECK(z.claim(claim_of(1, 2), 1500, {}).state == record_state::unknown);
    CHECK(f.wrong() == "");

    CHECK(z.settle_unknown(name_of(1), complete_with(fits.how), 1500)
          == admin_result::done);
    CHECK(z.claim(claim_of(1, 2), 1500, {}).state == record_state::completed);
    CHECK(z.stats().dropped > 0);
    CHECK(f.wrong() == "");

    SECTION("and its response makes room for others, its summary stays")
    {
        bytes out(1000);
        ended large(8 * payload, hour);

        z.claim(claim_of(5, 1), 2000, {});
        z.complete(owner_of(5, 1), large.how, 2000);

        auto a = z.claim(claim_of(1, 2), 2000, out);
        CHECK(a.state == record_state::not_kept);
        CHECK(same(a.response, part(50000, 20)));
        CHECK(f.wrong() == "");
    }
}


TEST_CASE("zone: the head of a response is shown, wherever it lies")
{
    fixture f;
    zone &z = f.z;
    auto state = GENERATE(record_state::completed, record_state::not_kept);
    auto size = GENERATE(std::size_t{4}, std::size_t{20}, inside - 1, inside,
                         inside + 1, 3 * payload);
    ended end(size, hour, state);
    admin_record seen = {};

    z.claim(claim_of(1, 1), 1000, {});
    z.complete(owner_of(1, 1), end.how, 1200);

    REQUIRE(z.look_up(name_of(1), 1500, seen));
    CHECK(seen.state == state);
    CHECK(seen.name == name_of(1));
    CHECK(seen.attempt == 1);
    CHECK(seen.age == 300);
    CHECK(seen.remaining == hour - 300);
    CHECK(seen.response_size == size);
    CHECK(same(seen.response_head, part(0, 4)));
}


TEST_CASE("zone: so is that of a summary in its short form")
{
    fixture f;
    zone &z = f.z;
    response_head head;
    field target{"Location", "/orders/17"};
    bytes summary;
    admin_record seen = {};

    head.status = 201;
    summary.resize(encoded_size(head) + encoded_size(target));
    encode(encode(summary.data(), head, 1), target);

    std::array<std::span<const std::uint8_t>, 1> one{summary};

    z.claim(claim_of(1, 1), 1000, {});
    z.complete(owner_of(1, 1), {record_state::not_kept, hour, one, one, hour},
               1200);

    REQUIRE(z.look_up(name_of(1), 1500, seen));
    CHECK(seen.response_size == summary.size());
    CHECK(seen.response_head[2] + 256 * seen.response_head[3] == 201);
}


TEST_CASE("zone: unknown outcomes are listed page by page")
{
    fixture f;
    zone &z = f.z;
    std::array<admin_record, 3> page{};
    std::vector<unsigned> found;
    std::uint64_t from = 0;

    for (unsigned i = 0; i < 20; ++i) {
        z.claim(claim_of(i, 1), 1000, {});

        if (i % 2 == 0) {
            z.mark_unknown(owner_of(i, 1), 100 * hour, 1000);
        }
    }

    do {
        auto count = z.list_unknown(from, 7, 1010, page);

        for (std::size_t i = 0; i < count; ++i) {
            CHECK(page[i].state == record_state::unknown);
            found.push_back(page[i].name[0]);
        }
    } while (from != 0);

    CHECK(found == std::vector<unsigned>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18});

    /* So is what was abandoned. */
    from = 0;
    std::vector<admin_record> all(30);
    CHECK(z.list_unknown(from, 100, 1200, all) == 20);
    CHECK(from == 0);
}


TEST_CASE("zone: a settlement that is cut short has happened or not")
{
    fixture f;
    zone &z = f.z;
    ended end(3 * payload, hour, record_state::completed, 20);
    /* Not a settlement itself: it would outlive the response it points to. */
    auto completes = GENERATE(false, true);
    auto how = completes ? complete_with(end.how) : release;

    make_unknown(z, 1, 1000);
    z.claim(claim_of(2, 1), 1000, {});

    die_everywhere(f, 1500, [&](zone &dying) {
        dying.settle_unknown(name_of(1), how, 1500);
    });
}
