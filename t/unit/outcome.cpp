#include "contract/outcome.h"
#include "contract/verdict.h"

#include <catch2/catch.hpp>

#include <ostream>
#include <string>
#include <vector>

using namespace idempotency;

namespace idempotency {

static std::ostream &
operator<<(std::ostream &out, ending end)
{
    switch (end) {
    case ending::released: return out << "released";
    case ending::unknown: return out << "unknown";
    case ending::completed: return out << "completed";
    case ending::not_kept: return out << "not_kept";
    }

    return out << "?";
}

}

namespace {

constexpr std::uint64_t second = 1000;
constexpr std::uint64_t hour = 3600 * second;
constexpr std::uint64_t day = 24 * hour;

using ttl_rules = std::vector<ttl_rule>;
using codes = std::vector<std::uint16_t>;

const codes gateway = {502, 504};

const app_word nothing = {};
const app_word release = {true, false, false, 0};
const app_word discard = {false, true, false, 0};


app_word
for_seconds(std::uint64_t seconds, bool discarded = false)
{
    return {false, discarded, true, seconds * second};
}


/* A peer's whole answer. */
evidence
answer(unsigned status)
{
    return {true, false, false, true, status, false, -1};
}


evidence
grpc_answer(int grpc_status, unsigned status = 200)
{
    return {true, false, false, true, status, true, grpc_status};
}


struct end_row {
    const char *claim;
    evidence seen;
    app_word word;
    ttl_rules ttl;
    codes unknown;
    ending end;
    std::uint64_t lasts;
};


void
check_rows(const std::vector<end_row> &rows)
{
    for (const auto &row : rows) {
        INFO(row.claim);
        outcome got = decide(row.seen, row.word, {row.ttl, row.unknown});
        CHECK(got.end == row.end);
        CHECK(got.ttl == row.lasts);
    }
}

}


TEST_CASE("outcome: which rule gives the ttl", "[outcome]")
{
    const ttl_rule any = {100, 599, 5};
    const ttl_rule ok = {200, 299, 7};
    const ttl_rule created = {201, 201, 9};

    struct {
        const char *claim;
        ttl_rules rules;
        unsigned status;
        std::uint64_t ttl;
        bool exact;
    } rows[] = {
        {"no rule: 200", {}, 200, day, false},
        {"no rule: 299", {}, 299, day, false},
        {"no rule: 300", {}, 300, day, false},
        {"no rule: 399", {}, 399, day, false},
        {"no rule: 199", {}, 199, 0, false},
        {"no rule: 400", {}, 400, 0, false},
        {"no rule: 500", {}, 500, 0, false},
        {"no rule: no status", {}, 0, 0, false},

        {"a class covers its first", {ok}, 200, 7, false},
        {"a class covers its last", {ok}, 299, 7, false},
        {"a class ends", {ok}, 300, day, false},
        {"a class begins", {ok}, 199, 0, false},
        {"one line leaves other 3xx as they were", {ok}, 302, day, false},
        {"a code is exact", {created}, 201, 9, true},
        {"a code covers no neighbour", {created}, 200, day, false},
        {"any covers the rest", {any, ok}, 404, 5, false},
        {"any covers 3xx, the default is gone", {any}, 302, 5, false},

        {"a code beats a class, before it", {created, ok}, 201, 9, true},
        {"a code beats a class, after it", {ok, created}, 201, 9, true},
        {"a class beats any, before it", {ok, any}, 200, 7, false},
        {"a class beats any, after it", {any, ok}, 200, 7, false},
        {"a code beats any", {any, created}, 201, 9, true},
        {"a code beats both", {any, created, ok}, 201, 9, true},
        {"a code of 0 beats a class", {ok, {201, 201, 0}}, 201, 0, true},
        {"a class of 0 beats any", {any, {200, 299, 0}}, 200, 0, false},
        {"a class of 0 beats the default", {{200, 299, 0}}, 200, 0, false},
        {"of two equals the first counts", {ok, {200, 299, 8}}, 200, 7, false},
        {"forever", {{200, 200, forever}}, 200, forever, true},
    };

    for (const auto &row : rows) {
        INFO(row.claim);
        ttl_match got = ttl_of(row.rules, row.status);
        CHECK(got.ttl == row.ttl);
        CHECK(got.exact == row.exact);
    }
}


TEST_CASE("outcome: the ttl of a record without a response", "[outcome]")
{
    struct {
        const char *claim;
        ttl_rules rules;
        std::uint64_t ttl;
    } rows[] = {
        {"the default", {}, day},
        {"as a 200 by its class", {{200, 299, hour}}, hour},
        {"as a 200 by its code", {{200, 299, hour}, {200, 200, 5}}, 5},
        {"as a 200 by any", {{100, 599, 6}}, 6},
        {"not as a 201", {{201, 201, 5}}, day},
        {"24h where a 200 is not kept", {{200, 299, 0}}, day},
        {"forever", {{200, 299, forever}}, forever},
    };

    for (const auto &row : rows) {
        INFO(row.claim);
        CHECK(ttl_without_response(row.rules) == row.ttl);
    }
}


TEST_CASE("outcome: nothing was sent", "[outcome]")
{
    /* sent, unanswered, own_handler, complete, status, grpc, grpc_status */

    check_rows({
        {"nothing at all", {}, nothing, {}, gateway, ending::released, 0},
        {"refused, with nginx's 502",
         {false, false, false, true, 502, false, -1},
         nothing,
         {},
         gateway,
         ending::released,
         0},
        {"nginx's error page has a ttl",
         {false, false, false, true, 502, false, -1},
         nothing,
         {{502, 502, hour}},
         {},
         ending::released,
         0},
        {"error_page made it a 200",
         {false, false, false, true, 200, false, -1},
         nothing,
         {},
         gateway,
         ending::released,
         0},
        {"the word of a page that is not the application's",
         {false, false, false, true, 200, false, -1},
         discard,
         {},
         gateway,
         ending::released,
         0},
        {"unanswered says nothing if nothing was sent",
         {false, true, false, true, 504, false, -1},
         nothing,
         {},
         gateway,
         ending::released,
         0},
        {"gRPC alike",
         {false, false, false, true, 200, true, 2},
         nothing,
         {},
         gateway,
         ending::released,
         0},
    });
}


TEST_CASE("outcome: no whole answer came", "[outcome]")
{
    const ttl_rules kept_502 = {{502, 502, hour}};

    check_rows({
        {"sent, then nothing",
         {true, true, false, false, 0, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"timed out, nginx's 504",
         {true, true, false, true, 504, false, -1},
         nothing,
         {},
         {},
         ending::unknown,
         day},
        {"a ttl for nginx's 502 does not help",
         {true, true, false, true, 502, false, -1},
         nothing,
         kept_502,
         gateway,
         ending::unknown,
         day},
        {"error_page made it a 200",
         {true, true, false, true, 200, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"a later word does not help: release",
         {true, true, false, true, 200, false, -1},
         release,
         {},
         gateway,
         ending::unknown,
         day},
        {"a later word does not help: discard",
         {true, true, false, true, 200, false, -1},
         discard,
         {},
         gateway,
         ending::unknown,
         day},
        {"a later word does not help: ttl",
         {true, true, false, true, 200, false, -1},
         for_seconds(5),
         {},
         gateway,
         ending::unknown,
         day},
        {"truncated 200",
         {true, false, false, false, 200, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"truncated 400 is no word",
         {true, false, false, false, 400, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"truncated, its word does not count",
         {true, false, false, false, 200, false, -1},
         release,
         {},
         gateway,
         ending::unknown,
         day},
        {"an own handler's truncated answer",
         {false, false, true, false, 200, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"an own handler that asked a peer in vain",
         {true, true, true, true, 200, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"gRPC, trailers missing",
         {true, false, false, false, 200, true, 0},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"lasts as long as a 200",
         {true, true, false, false, 0, false, -1},
         nothing,
         {{200, 299, hour}},
         gateway,
         ending::unknown,
         hour},
        {"lasts 24h where a 200 is not kept",
         {true, true, false, false, 0, false, -1},
         nothing,
         {{200, 200, 0}},
         gateway,
         ending::unknown,
         day},
    });
}


TEST_CASE("outcome: the application spoke", "[outcome]")
{
    const ttl_rules hourly = {{200, 299, hour}};

    check_rows({
        {"release a 200",
         answer(200),
         release,
         {},
         gateway,
         ending::released,
         0},
        {"release beats an exact ttl",
         answer(200),
         release,
         {{200, 200, hour}},
         gateway,
         ending::released,
         0},
        {"release beats unknown_status",
         answer(502),
         release,
         {},
         gateway,
         ending::released,
         0},
        {"release beats grpc-status",
         grpc_answer(2),
         release,
         {},
         gateway,
         ending::released,
         0},
        {"an own handler may speak",
         {false, false, true, true, 200, false, -1},
         release,
         {},
         gateway,
         ending::released,
         0},

        {"discard a 200",
         answer(200),
         discard,
         {},
         gateway,
         ending::not_kept,
         day},
        {"discard lasts as long as a 200",
         answer(201),
         discard,
         {{200, 200, hour}, {201, 201, 5}},
         gateway,
         ending::not_kept,
         hour},
        {"discard keeps the fact where a 200 is not kept",
         answer(200),
         discard,
         {{200, 200, 0}},
         gateway,
         ending::not_kept,
         day},
        {"discard keeps the fact of a 500",
         answer(500),
         discard,
         {},
         gateway,
         ending::not_kept,
         day},
        {"discard beats unknown_status",
         answer(502),
         discard,
         {},
         gateway,
         ending::not_kept,
         day},
        {"discard beats grpc-status",
         grpc_answer(3),
         discard,
         {},
         gateway,
         ending::not_kept,
         day},
        {"discard, shortened",
         answer(200),
         for_seconds(60, true),
         {},
         gateway,
         ending::not_kept,
         60 * second},
        {"discard, never lengthened",
         answer(200),
         for_seconds(100000, true),
         {},
         gateway,
         ending::not_kept,
         day},
        {"discard for no time",
         answer(200),
         for_seconds(0, true),
         {},
         gateway,
         ending::released,
         0},

        {"ttl shortens", answer(200), for_seconds(60), hourly, gateway,
         ending::completed, 60 * second},
        {"ttl shortens forever",
         answer(200),
         for_seconds(60),
         {{200, 200, forever}},
         gateway,
         ending::completed,
         60 * second},
        {"ttl never lengthens", answer(200), for_seconds(3601), hourly,
         gateway, ending::completed, hour},
        {"ttl as it is", answer(200), for_seconds(3600), hourly, gateway,
         ending::completed, hour},
        {"ttl=0 releases", answer(200), for_seconds(0), hourly, gateway,
         ending::released, 0},
        {"ttl does not keep what is not kept",
         answer(500),
         for_seconds(60),
         {},
         gateway,
         ending::released,
         0},
        {"ttl says nothing about an unknown outcome",
         answer(502),
         for_seconds(60),
         {},
         gateway,
         ending::unknown,
         day},
        {"ttl=0 does not free an unknown outcome",
         answer(502),
         for_seconds(0),
         {},
         gateway,
         ending::unknown,
         day},
        {"ttl says nothing about a gRPC outcome",
         grpc_answer(4),
         for_seconds(60),
         {},
         gateway,
         ending::unknown,
         day},
        {"ttl shortens a gRPC answer",
         grpc_answer(0),
         for_seconds(60),
         {},
         gateway,
         ending::completed,
         60 * second},
    });
}


TEST_CASE("outcome: gRPC", "[outcome]")
{
    for (int status = -1; status <= 20; status++) {
        outcome got = decide(grpc_answer(status), nothing, {{}, gateway});

        INFO(status);

        switch (status) {
        case 0:
            CHECK(got.end == ending::completed);
            CHECK(got.ttl == day);
            break;

        case -1:
        case 1:
        case 2:
        case 4:
            CHECK(got.end == ending::unknown);
            CHECK(got.ttl == day);
            break;

        default: CHECK(got.end == ending::released); CHECK(got.ttl == 0);
        }
    }

    const ttl_rules all = {{100, 599, hour}, {200, 200, hour}};

    check_rows({
        {"0 goes by the HTTP status: 500",
         grpc_answer(0, 500),
         nothing,
         {},
         gateway,
         ending::released,
         0},
        {"0 goes by the HTTP status: 504",
         grpc_answer(0, 504),
         nothing,
         {},
         gateway,
         ending::unknown,
         day},
        {"0 goes by the HTTP status: exact",
         grpc_answer(0, 201),
         nothing,
         {{201, 201, 5}},
         gateway,
         ending::completed,
         5},
        {"an error is released whatever ttl its 200 has", grpc_answer(3),
         nothing, all, gateway, ending::released, 0},
        {"no word is unknown whatever ttl its 200 has", grpc_answer(2),
         nothing, all, gateway, ending::unknown, hour},
        {"a status without gRPC is nothing",
         {true, false, false, true, 200, false, 2},
         nothing,
         {},
         gateway,
         ending::completed,
         day},
    });
}


TEST_CASE("outcome: the status decides", "[outcome]")
{
    const ttl_rule any = {100, 599, 5};
    const ttl_rule server_error = {500, 599, 6};
    const ttl_rule exact = {502, 502, 7};
    const ttl_rule exact_none = {502, 502, 0};

    check_rows({
        {"200", answer(200), nothing, {}, gateway, ending::completed, day},
        {"303", answer(303), nothing, {}, gateway, ending::completed, day},
        {"400", answer(400), nothing, {}, gateway, ending::released, 0},
        {"500", answer(500), nothing, {}, gateway, ending::released, 0},
        {"503", answer(503), nothing, {}, gateway, ending::released, 0},
        {"502", answer(502), nothing, {}, gateway, ending::unknown, day},
        {"504", answer(504), nothing, {}, gateway, ending::unknown, day},
        {"502, unknown_status off",
         answer(502),
         nothing,
         {},
         {},
         ending::released,
         0},
        {"an own handler's 200",
         {false, false, true, true, 200, false, -1},
         nothing,
         {},
         gateway,
         ending::completed,
         day},
        {"an own handler's 502",
         {false, false, true, true, 502, false, -1},
         nothing,
         {},
         gateway,
         ending::unknown,
         day},

        {"exact beats unknown_status",
         answer(502),
         nothing,
         {exact},
         gateway,
         ending::completed,
         7},
        {"exact beats unknown_status beside Nxx and any",
         answer(502),
         nothing,
         {any, server_error, exact},
         gateway,
         ending::completed,
         7},
        {"unknown_status beats Nxx",
         answer(502),
         nothing,
         {server_error},
         gateway,
         ending::unknown,
         day},
        {"unknown_status beats any",
         answer(502),
         nothing,
         {any},
         gateway,
         ending::unknown,
         5},
        {"unknown_status beats the default",
         answer(200),
         nothing,
         {},
         {200},
         ending::unknown,
         day},
        {"unknown_status beats an exact 0",
         answer(502),
         nothing,
         {exact_none},
         gateway,
         ending::unknown,
         day},
        {"an exact 0 beats Nxx",
         answer(502),
         nothing,
         {exact_none, server_error},
         {},
         ending::released,
         0},
        {"an exact 0 beats any",
         answer(502),
         nothing,
         {any, exact_none},
         {},
         ending::released,
         0},
        {"an exact 0 beats the default",
         answer(200),
         nothing,
         {{200, 200, 0}},
         gateway,
         ending::released,
         0},
        {"an Nxx 0 beats any",
         answer(404),
         nothing,
         {any, {400, 499, 0}},
         gateway,
         ending::released,
         0},
        {"Nxx keeps",
         answer(503),
         nothing,
         {server_error},
         gateway,
         ending::completed,
         6},
        {"Nxx beats any",
         answer(503),
         nothing,
         {any, server_error},
         gateway,
         ending::completed,
         6},
        {"any keeps",
         answer(404),
         nothing,
         {any},
         gateway,
         ending::completed,
         5},
        {"forever",
         answer(200),
         nothing,
         {{200, 200, forever}},
         gateway,
         ending::completed,
         forever},
    });
}


TEST_CASE("outcome: only a lasting record has a ttl", "[outcome]")
{
    /* all that can be seen, with every word */

    const ttl_rules rules = {{404, 404, 5}, {201, 201, 0}};
    const std::vector<app_word> words = {
        nothing,
        release,
        discard,
        for_seconds(0),
        for_seconds(60),
        for_seconds(0, true),
        for_seconds(60, true),
    };

    for (unsigned bits = 0; bits < 32; bits++) {
        for (unsigned status : {0u, 200u, 201u, 404u, 500u, 502u}) {
            for (const app_word &word : words) {
                evidence seen = {(bits & 1) != 0,
                                 (bits & 2) != 0,
                                 (bits & 4) != 0,
                                 (bits & 8) != 0,
                                 status,
                                 (bits & 16) != 0,
                                 0};
                outcome got = decide(seen, word, {rules, gateway});

                INFO(bits << " " << status);
                REQUIRE((got.end == ending::released) == (got.ttl == 0));

                if (seen.sent && (seen.unanswered || !seen.complete)) {
                    REQUIRE(got.end == ending::unknown);
                }
            }
        }
    }
}


TEST_CASE("outcome: what the application may say", "[outcome]")
{
    struct {
        std::string value;
        bool good;
        app_word word;
    } rows[] = {
        {"release", true, release},
        {"discard", true, discard},
        {"ttl=60", true, for_seconds(60)},
        {"ttl=0", true, for_seconds(0)},
        {"ttl=007", true, for_seconds(7)},
        {"RELEASE", true, release},
        {"Discard", true, discard},
        {"TTL=60", true, for_seconds(60)},
        {" release ", true, release},
        {"\trelease\t", true, release},
        {",release,", true, release},
        {"release, release", true, release},
        {"discard, ttl=60", true, for_seconds(60, true)},
        {"discard,ttl=60", true, for_seconds(60, true)},
        {"ttl=60 discard", true, for_seconds(60, true)},
        {"ttl=60 , discard", true, for_seconds(60, true)},
        {"ttl=60, ttl=30", true, for_seconds(30)},
        {"ttl=30, ttl=60", true, for_seconds(30)},
        {"ttl=18446744073709551", true, for_seconds(18446744073709551)},

        {"", false, {}},
        {" ", false, {}},
        {",", false, {}},
        {"keep", false, {}},
        {"releas", false, {}},
        {"released", false, {}},
        {"release!", false, {}},
        {"release=1", false, {}},
        {"release;discard", false, {}},
        {"discarded", false, {}},
        {"ttl", false, {}},
        {"ttl=", false, {}},
        {"ttl =60", false, {}},
        {"ttl= 60", false, {}},
        {"ttl=-1", false, {}},
        {"ttl=+1", false, {}},
        {"ttl=1s", false, {}},
        {"ttl=1.5", false, {}},
        {"ttl=0x10", false, {}},
        {"ttl=60\n", false, {}},
        {"xttl=60", false, {}},
        {"ttl=18446744073709552", false, {}},
        {"ttl=18446744073709551615", false, {}},
        {"ttl=18446744073709551616", false, {}},
        {"ttl=99999999999999999999999999", false, {}},
        {"release, discard", false, {}},
        {"discard release", false, {}},
        {"release, ttl=60", false, {}},
        {"ttl=60, release", false, {}},
        {"discard, keep", false, {}},
        {"keep, discard", false, {}},
        {std::string("release\0", 8), false, {}},
    };

    for (const auto &row : rows) {
        std::vector<char> in(row.value.begin(), row.value.end());
        app_word word;

        INFO(row.value);
        CHECK(parse_app_word({in.data(), in.size()}, word) == row.good);
        CHECK(word.release == row.word.release);
        CHECK(word.discard == row.word.discard);
        CHECK(word.has_ttl == row.word.has_ttl);
        CHECK(word.ttl == row.word.ttl);
    }
}


TEST_CASE("outcome: a header sent twice is one list", "[outcome]")
{
    app_word word;

    REQUIRE(parse_app_word("discard", word));
    REQUIRE(parse_app_word("ttl=60", word));
    CHECK(word.discard);
    CHECK(word.ttl == 60 * second);

    CHECK_FALSE(parse_app_word("release", word));
    CHECK_FALSE(parse_app_word("ttl=5, keep", word));
    CHECK_FALSE(word.release);
    CHECK(word.discard);
    CHECK(word.ttl == 60 * second);
}


TEST_CASE("verdict: what a request gets that met a record", "[outcome]")
{
    struct {
        record_state state;
        verdict expected;
    } rows[] = {
        {record_state::pending, verdict::wait},
        {record_state::completed, verdict::replay},
        {record_state::not_kept, verdict::not_kept},
        {record_state::unknown, verdict::unknown},
        {static_cast<record_state>(0), verdict::unknown},
        {static_cast<record_state>(200), verdict::unknown},
    };

    for (const auto &row : rows) {
        INFO(static_cast<int>(row.state));
        CHECK((judge(row.state, true) == row.expected));
        CHECK((judge(row.state, false) == verdict::reused));
    }
}


TEST_CASE("outcome: an interim status tells nothing", "[outcome]")
{
    for (unsigned status : {0u, 100u, 101u, 103u, 199u}) {
        evidence seen;
        seen.sent = true;
        seen.complete = true;
        seen.status = status;

        CHECK(decide(seen, {}, {}).end == ending::unknown);
    }
}


TEST_CASE("outcome: nothing is released while a subrequest is under way",
          "[outcome]")
{
    evidence seen;
    seen.own_handler = true;
    seen.unfinished = true;
    seen.complete = true;
    seen.status = 500;
    CHECK(decide(seen, {}, {}).end == ending::unknown);

    seen.status = 200;
    CHECK(decide(seen, {}, {}).end == ending::completed);

    app_word word;
    word.release = true;
    CHECK(decide(seen, word, {}).end == ending::released);
}


TEST_CASE("outcome: nothing is released whose first run is unknown",
          "[outcome]")
{
    evidence seen;
    seen.again = true;

    CHECK(decide(seen, {}, {}).end == ending::unknown);
    CHECK(decide(seen, {}, {}).ttl == default_ttl);

    seen.sent = true;
    seen.complete = true;
    seen.status = 500;
    CHECK(decide(seen, {}, {}).end == ending::unknown);

    app_word word;
    word.release = true;
    CHECK(decide(seen, word, {}).end == ending::released);

    seen.status = 200;
    CHECK(decide(seen, {}, {}).end == ending::completed);
}


TEST_CASE("outcome: a JSON-RPC error releases, if its status tells",
          "[outcome]")
{
    const ttl_rule kept[] = {{200, 200, 1000}, {504, 504, 1000}};
    evidence seen;
    seen.sent = true;
    seen.complete = true;
    seen.status = 200;
    seen.rpc_error = true;

    CHECK(decide(seen, {}, {kept, gateway}).end == ending::released);

    seen.status = 502;
    CHECK(decide(seen, {}, {kept, gateway}).end == ending::unknown);

    app_word word;
    word.discard = true;
    CHECK(decide(seen, word, {kept, gateway}).end == ending::not_kept);
}
