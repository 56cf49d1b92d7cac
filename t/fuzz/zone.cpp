#include "check.h"
#include "store/zone_layout.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace idempotency;

/*
 * A damaged file: bytes of a zone with records are overwritten as the input
 * says, in portions of a place, a length and bytes.  If the first byte is
 * odd, the checksums are made to fit again, so that what is behind them is
 * tried, too.
 */

namespace idempotency {

struct zone_inspector {
    zone &z;

    void seal_all(std::uint32_t blocks)
    {
        for (std::uint32_t i = 0; i < std::min(z.touched_, blocks); ++i) {

            for (auto &v : z.record_at(i).versions) {

                if (z.block_at(i).kind == zone::head_block) {
                    v.check = z.check_of(i, v);
                }
            }
        }
    }

    /* The blocks that are in use, counted once more. */
    std::size_t count_used()
    {
        std::size_t n = 0;

        for (std::uint32_t i = 0; i < z.touched_; ++i) {
            n += z.block_at(i).kind != zone::free_block;
        }

        /* Those of free chains are used no more. */
        for (auto c = z.free_chains_; c != zone::none; c = z.chain_after(c)) {

            for (auto i = c; i != zone::none; i = z.block_at(i).next) {
                --n;
            }
        }

        return n;
    }
};

}


namespace {

constexpr std::size_t size = 20000;
constexpr unsigned keys = 20;


record_id
name_of(unsigned n)
{
    record_id id{};

    id[0] = static_cast<std::uint8_t>(n);
    return id;
}


claim
claim_of(unsigned n)
{
    claim c{};

    c.name = name_of(n);
    c.owner[0] = static_cast<std::uint8_t>(n);
    c.lease = 100;
    c.keep = 5000;
    return c;
}


void
populate(zone &z)
{
    std::vector<std::uint8_t> bytes(600, 'x');

    for (unsigned n = 0; n < keys; ++n) {
        std::array<std::span<const std::uint8_t>, 1> response{
            std::span(bytes).first(n * 31)};
        std::array<std::span<const std::uint8_t>, 1> summary{
            std::span(bytes).first(n % 3 ? 30 : 200)};
        completion how{n % 4 ? record_state::completed
                             : record_state::not_kept,
                       5000, response, summary, 5000};

        z.claim(claim_of(n), 100 + n, {});

        if (n % 5 != 1) {
            z.complete({name_of(n), claim_of(n).owner}, how, 100 + n);
        }
    }
}


void
damage(std::uint8_t *region, const std::uint8_t *data, std::size_t left)
{
    while (left >= 3) {
        std::size_t at = (data[0] | data[1] << 8) % size;
        std::size_t n = std::min<std::size_t>(data[2] % 16, left - 3);

        n = std::min(n, size - at);
        std::memcpy(region + at, data + 3, n);
        data += 3 + n;
        left -= 3 + n;
    }
}


void
use(zone &z)
{
    std::vector<std::uint8_t> out(1000);
    std::array<std::span<const std::uint8_t>, 1> response{out};
    completion how{record_state::completed, 5000, response, {}, 5000};

    for (unsigned n = 0; n < keys + 60; ++n) {
        auto a = z.claim(claim_of(n), 200 + n, out);

        z.complete({name_of(n), claim_of(n).owner}, how, 200 + n);
        z.notice(200 + n);
        check(a.response.size() <= out.size(), "a response is in its room");
    }

    z.recover();
    z.expire(300, 10);
    z.each_record([](const zone_entry &e) {
        check(e.state <= record_state::unknown, "a record has a state");
    });
    check(zone_inspector{z}.count_used() == z.stats().blocks_used,
          "all blocks are counted");
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t length)
{
    if (length < 1) {
        return 0;
    }

    /* Of this size and no more, so that nothing behind it is read. */
    auto *region = static_cast<std::uint8_t *>(std::malloc(size));
    zone_damage found{};

    std::memset(region, 0, size);

    zone *z = zone::format(region, size, 1, true);
    auto blocks = static_cast<std::uint32_t>(z->stats().blocks_total);

    populate(*z);
    damage(region, data + 1, length - 1);

    if (data[0] % 2) {
        zone_inspector{*z}.seal_all(blocks);
    }

    if (zone::examine(region, size) == zone_content::records
        && z->size() <= size
        && zone::reopen(region, size, data[0] & 2, found) != nullptr)
    {
        use(*z);
    }

    std::free(region);

    return 0;
}
