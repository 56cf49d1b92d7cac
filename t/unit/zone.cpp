#include "store/zone_layout.h"

#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

using bytes = std::vector<std::uint8_t>;


/* A record as it lies in the zone. */
struct seen {
    record_state state{};
    std::uint32_t attempt = 0;
    digest fingerprint{};
    token owner{};
    std::uint64_t lease = 0;
    std::uint64_t keep = 0;
    std::uint64_t since = 0;
    std::uint64_t expiry = 0;
    bytes response;

    bool operator==(const seen &) const = default;
};


using view = std::map<record_id, seen>;

}


namespace idempotency {

struct zone_inspector {
    static constexpr auto payload = zone::payload_size;

    zone &z;

    /* All that is not expired. */
    view look(std::uint64_t now)
    {
        view v;

        for (std::uint32_t i = 0; i < z.touched_; ++i) {

            if (z.block_at(i).kind != zone::head_block) {
                continue;
            }

            const auto &l = z.current(i);

            if (l.expiry != forever && l.expiry <= now) {
                continue;
            }

            bytes response(l.response_size);
            z.read_response(l, response.data());

            bool fresh = v.emplace(z.block_at(i).head.name,
                                   seen{l.state, l.attempt,
                                        z.block_at(i).head.fingerprint,
                                        l.owner, l.lease, l.keep, l.since,
                                        l.expiry, response})
                             .second;

            REQUIRE(fresh);
        }

        return v;
    }

    /* What is wrong, or nothing. */
    std::string wrong()
    {
        std::vector<int> owners(z.touched_);
        std::size_t heads = 0;

        for (std::uint32_t i = 0; i < z.touched_; ++i) {

            if (z.block_at(i).kind != zone::head_block) {
                continue;
            }

            ++heads;
            ++owners[i];

            if (z.find(z.block_at(i).head.name) != i) {
                return "a record is not in its bucket";
            }

            auto d = z.current(i).response;
            auto left = (z.current(i).response_size + payload - 1) / payload;

            for (/* void */; left > 0; --left) {

                if (d >= z.touched_ || z.block_at(d).kind != zone::data_block)
                {
                    return "a response is broken";
                }

                ++owners[d];
                d = z.block_at(d).next;
            }

            if (d != zone::none) {
                return "a response does not end";
            }
        }

        auto in_use = static_cast<std::size_t>(
            std::count(owners.begin(), owners.end(), 1));

        if (heads != z.records_) {
            return "records are miscounted";
        }

        if (in_use != z.used_blocks_) {
            return "blocks are miscounted";
        }

        std::size_t unused = 0;

        for (auto i = z.free_list_; i != zone::none; i = z.block_at(i).next) {

            if (i >= z.touched_ || z.block_at(i).kind != zone::free_block
                || owners[i]++ != 0)
            {
                return "the free list is wrong";
            }

            ++unused;
        }

        if (unused + in_use != z.touched_) {
            return "blocks are lost";
        }

        if (std::count(owners.begin(), owners.end(), 1) != z.touched_) {
            return "a block has two owners";
        }

        return wrong_order();
    }

    std::string wrong_order()
    {
        std::size_t scheduled = 0;

        for (std::uint32_t i = 0; i < z.touched_; ++i) {

            if (z.block_at(i).kind == zone::head_block
                && z.current(i).expiry != forever) {
                ++scheduled;
            }
        }

        if (scheduled != z.heap_size_) {
            return "the heap is miscounted";
        }

        for (std::uint32_t i = 0; i < z.heap_size_; ++i) {
            auto index = z.heap()[i];

            if (z.block_at(index).kind != zone::head_block
                || z.block_at(index).head.heap_position != i
                || z.current(index).expiry
                       < z.current(z.heap()[(i + !i - 1) / 2]).expiry)
            {
                return "the heap is out of order";
            }
        }

        return "";
    }

    /* What is not a record, or not led to by one, becomes nonsense. */
    void spoil()
    {
        z.dirty_ = 1;
        z.free_list_ = 3;
        z.used_blocks_ = 77;
        z.records_ = 99;
        z.heap_size_ = 5;
        std::fill_n(z.buckets(), 1u << z.bucket_bits_, 1u);
        std::fill_n(z.heap(), z.block_count_, 2u);
    }

    void cut_response(const record_id &name)
    {
        z.block_at(z.current(z.find(name)).response).next = zone::none;
        z.dirty_ = 1;
    }

    void share_response(const record_id &from, const record_id &with)
    {
        z.current(z.find(from)).response = z.current(z.find(with)).response;
        z.dirty_ = 1;
    }
};

}


namespace {

using inspect = zone_inspector;

constexpr std::size_t payload = inspect::payload;


/* Shared with children and page aligned, as in nginx. */
class region {
public:
    explicit region(std::size_t size)
        : size_(size), start_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0))
    {
        REQUIRE(start_ != MAP_FAILED);
    }

    ~region() { munmap(start_, size_); }

    region(const region &) = delete;
    region &operator=(const region &) = delete;

    void *start() const { return start_; }
    std::size_t size() const { return size_; }

private:
    std::size_t size_;
    void *start_;
};


std::size_t
size_for(std::size_t blocks)
{
    return zone::minimum_size() + (blocks - 8) * (256 + 4 + 4);
}


/* In memory that is full of blocks that look like records. */
struct fixture {
    region memory;
    zone &z;

    explicit fixture(std::size_t blocks = 64)
        : memory(size_for(blocks)),
          z(*zone::format(std::memset(memory.start(), 1, memory.size()),
                          memory.size(), 0x9e3779b97f4a7c15))
    {
        REQUIRE(z.stats().blocks_total == blocks);
    }

    std::string wrong() { return inspect{z}.wrong(); }
    std::size_t used() { return z.stats().blocks_used; }
};


record_id
name_of(unsigned n)
{
    record_id d{};

    d[0] = static_cast<std::uint8_t>(n);
    d[1] = static_cast<std::uint8_t>(n >> 8);
    d.back() = 7;
    return d;
}


digest
print_of(unsigned n)
{
    digest d{};

    d[5] = static_cast<std::uint8_t>(n);
    return d;
}


token
token_of(std::uint64_t n)
{
    token t{};

    std::memcpy(t.data(), &n, sizeof(n));
    t[15] = 1;
    return t;
}


claim
claim_of(unsigned key, std::uint64_t owner, bool take_over = false)
{
    return {name_of(key), print_of(0), token_of(owner), 100, 1000, take_over};
}


ownership
owner_of(unsigned key, std::uint64_t owner)
{
    return {name_of(key), token_of(owner)};
}


const bytes &
noise()
{
    static const bytes all = [] {
        std::mt19937 random(5);
        bytes b(200000);

        for (auto &x : b) {
            x = static_cast<std::uint8_t>(random());
        }

        return b;
    }();

    return all;
}


std::span<const std::uint8_t>
part(std::size_t offset, std::size_t size)
{
    return std::span(noise()).subspan(offset, size);
}


/* A completion with one piece for the response and one for the summary. */
struct ended {
    std::array<std::span<const std::uint8_t>, 1> response;
    std::array<std::span<const std::uint8_t>, 1> summary;
    completion how;

    ended(std::size_t size, std::uint64_t ttl,
          record_state state = record_state::completed,
          std::size_t summary_size = 0)
        : response{part(0, size)}, summary{part(50000, summary_size)},
          how{state, ttl, response, summary, ttl}
    {}

    ended(const ended &) = delete;
    ended &operator=(const ended &) = delete;
};


std::uint64_t
seed()
{
    const char *given = std::getenv("ZONE_SEED");

    return given ? std::strtoull(given, nullptr, 10) : 1;
}


bool
same(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b)
{
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}


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
    auto size = GENERATE(std::size_t{0}, 1, payload - 1, payload, payload + 1,
                         2 * payload, 2 * payload + 1, 100000);

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

    CHECK(f.used() == 1 + (size + payload - 1) / payload);

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
        ended small(5 * payload, 2000, record_state::completed, 20);

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
        CHECK(r.orphans == 0);
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
        CHECK(r.orphans == 3);
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
        CHECK(r.orphans == 3);
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
constexpr unsigned keys = 40;
constexpr std::size_t model_blocks = 64;


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
    std::size_t size;
};


struct model {
    std::uint64_t now;
    std::uint64_t tokens;
    std::array<entry, keys> entries;

    bool lives(const entry &e) const
    {
        return e.present && (e.expiry == forever || now < e.expiry);
    }

    std::size_t used() const
    {
        std::size_t n = 0;

        for (const entry &e : entries) {
            n += lives(e) ? 1 + (e.size + payload - 1) / payload : 0;
        }

        return n;
    }

    bool fits(std::size_t size) const
    {
        return used() + (size + payload - 1) / payload <= model_blocks;
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
    entry after;
    claim_result claimed;
    record_state state;
    settle_result settled;
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
    m.now += random() % 200 ? 0 : random() % 2000;

    return p;
}


void
foresee_claim(const model &m, const plan &p, forecast &f)
{
    entry &e = f.after;

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

        if (!m.fits(1)) {
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


void
foresee_settle(const model &m, const plan &p, forecast &f)
{
    entry &e = f.after;

    if (!m.lives(e) || e.state != record_state::pending || e.owner != p.owner)
    {
        f.settled = settle_result::lost;
        return;
    }

    f.settled = settle_result::done;

    if (p.what == act::release) {
        e = entry{};
        return;
    }

    e.since = m.now;

    if (p.what == act::renew) {
        e.expiry = add(add(m.now, e.lease), e.keep);
        return;
    }

    e.expiry = add(m.now, p.keep);
    e.state = record_state::unknown;

    if (p.what == act::complete) {
        e.state = p.state;
        e.offset = p.offset;
        e.size = p.size;

        if (!m.fits(p.size)) {
            f.settled = settle_result::kept_without_response;
            e.state = record_state::not_kept;
            e.size = m.fits(p.summary) ? p.summary : 0;
        }
    }
}


forecast
foresee(const model &m, const plan &p)
{
    forecast f{};

    f.after = m.entries[p.key];

    if (p.what == act::claim) {
        foresee_claim(m, p, f);

    } else if (p.what != act::expire && p.what != act::recover) {
        foresee_settle(m, p, f);
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
    const entry &e = f.after;

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
           && same(a.response, part(e.offset, shown ? e.size : 0));
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
        auto r = z.recover();
        return r.orphans == 0 && r.without_response == 0;
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

    auto response = part(e.offset, e.size);

    return found->second
           == seen{
               e.state, e.attempt, print_of(e.print),
               e.owner, e.lease,   e.keep,
               e.since, e.expiry,  bytes(response.begin(), response.end())};
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

    for (unsigned i = 0; i < 100000; ++i) {
        plan p = choose(m, random);
        forecast expected = foresee(m, p);

        if (!as_foreseen(f.z, m, p, expected)) {
            FAIL("operation " << i << ", kind " << static_cast<int>(p.what));
        }

        m.entries[p.key] = expected.after;

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
    std::uint32_t busy; /* with this key, between these entries */
    unsigned key;
    entry before;
    entry after;
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
        forecast f = foresee(j.m, p);

        j.key = p.key;
        j.before = j.m.entries[p.key];
        j.after = f.after;
        note(j.busy, 1);

        if (!as_foreseen(z, j.m, p, f)) {
            note(j.surprised, 1);
        }

        j.m.entries[p.key] = f.after;
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

    for (unsigned round = 0; round < 300; ++round) {
        INFO("round " << round);
        kill_one(f.z, j, random);

        if (f.z.dirty()) {
            ++dirty;
            REQUIRE(f.z.recover().without_response == 0);
        }

        REQUIRE(!j.surprised);
        REQUIRE(f.wrong() == "");

        if (j.busy) {
            view v = inspect{f.z}.look(j.m.now);
            bool after = agrees(v, j.m, j.key, j.after);

            REQUIRE((after || agrees(v, j.m, j.key, j.before)));
            j.m.entries[j.key] = after ? j.after : j.before;
            note(j.busy, 0);
        }

        REQUIRE(agrees(f.z, j.m));
    }

    /* About one death in five comes inside a change. */
    INFO(dirty << " dirty, " << j.operations << " operations");
    CHECK(dirty > 15);
    CHECK(j.operations > 10000);
}


namespace {

void
copy_of(const fixture &from, fixture &to)
{
    std::memcpy(to.memory.start(), from.memory.start(), to.memory.size());
}


/* Stopped before its first instruction; 0 where that cannot be had. */
template <typename operation>
pid_t
start_stopped(zone &z, operation run)
{
    pid_t child = fork();

    REQUIRE(child >= 0);

    if (child == 0) {

        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
            _exit(1);
        }

        raise(SIGSTOP);
        run(z);
        raise(SIGKILL);
    }

    int status = 0;

    REQUIRE(waitpid(child, &status, 0) == child);

    return WIFSTOPPED(status) ? child : 0;
}


bool
step(pid_t child)
{
    int status = 0;

    REQUIRE(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0);
    REQUIRE(waitpid(child, &status, 0) == child);

    return WIFSTOPPED(status);
}


/*
 * Runs the operation one instruction at a time and, wherever the zone has
 * changed, looks what a process that finds it like this would make of it:
 * first all as before, then, from some instruction on, all as after.
 */
template <typename operation>
void
die_everywhere(fixture &f, std::uint64_t now, operation run)
{
    fixture last(f.z.stats().blocks_total), found(f.z.stats().blocks_total);

    copy_of(f, last);
    copy_of(f, found);
    run(found.z);

    view before = inspect{f.z}.look(now);
    view after = inspect{found.z}.look(now);
    bool changed = before == after;
    unsigned states = 0;
    pid_t child = start_stopped(f.z, run);

    if (child == 0) {
        WARN("no ptrace here: not tested");
        return;
    }

    while (step(child)) {

        if (!std::memcmp(f.memory.start(), last.memory.start(),
                         f.memory.size())) {
            continue;
        }

        ++states;
        copy_of(f, last);
        copy_of(f, found);

        if (found.z.dirty()) {
            REQUIRE(found.z.recover().without_response == 0);
        }

        REQUIRE(found.wrong() == "");

        view v = inspect{found.z}.look(now);

        changed = changed || v != before;
        REQUIRE(v == (changed ? after : before));
    }

    CHECK(changed);
    CHECK(states > 3);
    CHECK(!f.z.dirty());
    CHECK(inspect{f.z}.look(now) == after);
}

}


TEST_CASE("zone: killed at each instruction, a change is whole or not at all")
{
    fixture f(24);
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
    z.complete(owner_of(8, 1), ended(700, 900).how, 950);
    z.renew(owner_of(9, 1), 990);
    REQUIRE(z.stats().records == 6);

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
        z.expire(1000, 100);

        for (unsigned i = 20; z.stats().blocks_used < 23; ++i) {
            z.claim(claim_of(i, 1), 990, {});
        }

        die_everywhere(f, 1000, finish);
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
