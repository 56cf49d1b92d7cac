#pragma once

/* What the tests of the zone share: they look at its inside. */

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
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace zone_kit {

using namespace idempotency;

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
    using view = zone_kit::view;
    using seen = zone_kit::seen;
    using bytes = zone_kit::bytes;

    static constexpr auto payload = zone::payload_size;
    static constexpr auto inside = zone::inline_size;

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

            seen what{l.state, l.attempt, z.record_at(i).fingerprint,
                      {},      0,         0,
                      l.since, l.expiry,  {}};

            if (l.state == record_state::pending) {
                what.owner = l.run.owner;
                what.lease = l.run.lease;
                what.keep = l.expiry == forever
                                ? forever
                                : l.expiry - l.since - l.run.lease;

            } else if (l.state != record_state::unknown) {
                what.response.resize(z.shown_size(i));
                z.show(i, what.response.data());
            }

            bool fresh = v.emplace(z.record_at(i).name, what).second;

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

            if (!is_ended(i)) {
                continue;
            }

            auto has = z.current(i).has;
            std::string found = follow(has.response, has.response_size,
                                       owners);

            if (found == "") {
                found = follow(has.summary, has.summary_size, owners);
            }

            if (found != "") {
                return found;
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

        for (auto c = z.free_chains_; c != zone::none; c = z.chain_after(c)) {

            for (auto i = c; i != zone::none; i = z.block_at(i).next) {

                if (i >= z.touched_ || z.block_at(i).kind != zone::data_block
                    || owners[i]++ != 0)
                {
                    return "a free chain is wrong";
                }

                ++unused;
            }
        }

        if (unused + in_use != z.touched_) {
            return "blocks are lost";
        }

        if (std::count(owners.begin(), owners.end(), 1) != z.touched_) {
            return "a block has two owners";
        }

        auto found = wrong_order();

        return found == "" ? wrong_queues() : found;
    }

    bool is_ended(std::uint32_t index)
    {
        auto state = z.current(index).state;

        return state == record_state::completed
               || state == record_state::not_kept;
    }

    /* A list of blocks; what has a size but no block is in the record. */
    std::string follow(std::uint32_t first, std::size_t size,
                       std::vector<int> &owners)
    {
        auto left = first == zone::none ? 0 : (size + payload - 1) / payload;

        if (first == zone::none && size > inside) {
            return "a record holds too much";
        }

        for (/* void */; left > 0; --left) {

            if (first >= z.touched_
                || z.block_at(first).kind != zone::data_block) {
                return "a response is broken";
            }

            ++owners[first];
            first = z.block_at(first).next;
        }

        return first == zone::none ? "" : "a response does not end";
    }

    /* All that can be dropped is in a queue, in both directions. */
    std::string wrong_queues()
    {
        std::array<std::size_t, 2> blocks{}, members{}, listed{};

        for (std::uint32_t i = 0; i < z.touched_; ++i) {

            if (z.block_at(i).kind == zone::head_block && is_ended(i)
                && z.queue_of(z.current(i)) != zone::queue_count)
            {
                auto which = z.queue_of(z.current(i));

                blocks[which] += z.droppable(z.current(i));
                ++members[which];
            }
        }

        for (unsigned which : {0, 1}) {
            auto &q = z.queues_[which];
            auto before = zone::none;

            for (auto i = q.oldest; i != zone::none; i = z.record_at(i).newer)
            {

                if (z.record_at(i).older != before
                    || z.queue_of(z.current(i)) != which
                    || ++listed[which] > members[which])
                {
                    return "a queue is out of order";
                }

                before = i;
            }

            if (q.newest != before || listed[which] != members[which]
                || q.blocks != blocks[which])
            {
                return "a queue is miscounted";
            }
        }

        return "";
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
        z.free_chains_ = 4;
        z.used_blocks_ = 77;
        z.records_ = 99;
        z.heap_size_ = 5;
        z.queues_[0] = {7, 7, 7};
        z.queues_[1] = {8, 8, 8};
        std::fill_n(z.buckets(), 1u << z.bucket_bits_, 1u);
        std::fill_n(z.heap(), z.block_count_, 2u);
    }

    bool has_checks() const { return z.with_checks_ != 0; }

    void cut_response(const record_id &name)
    {
        z.block_at(z.current(z.find(name)).has.response).next = zone::none;
        z.dirty_ = 1;
    }

    void share_response(const record_id &from, const record_id &with)
    {
        z.current(z.find(from)).has.response =
            z.current(z.find(with)).has.response;
        z.dirty_ = 1;
    }
};

}


namespace zone_kit {

using inspect = zone_inspector;

constexpr std::size_t payload = inspect::payload;
constexpr std::size_t inside = inspect::inside;


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


inline std::size_t
size_for(std::size_t blocks)
{
    return zone::minimum_size() + (blocks - 8) * (256 + 4 + 4);
}


/* In memory that is full of blocks that look like records. */
struct fixture {
    region memory;
    zone &z;

    explicit fixture(std::size_t blocks = 64, bool with_checks = false)
        : memory(size_for(blocks)),
          z(*zone::format(std::memset(memory.start(), 1, memory.size()),
                          memory.size(), 0x9e3779b97f4a7c15, with_checks))
    {
        REQUIRE(z.stats().blocks_total == blocks);
    }

    std::string wrong() { return inspect{z}.wrong(); }
    std::size_t used() { return z.stats().blocks_used; }
};


inline record_id
name_of(unsigned n)
{
    record_id d{};

    d[0] = static_cast<std::uint8_t>(n);
    d[1] = static_cast<std::uint8_t>(n >> 8);
    d.back() = 7;
    return d;
}


inline digest
print_of(unsigned n)
{
    digest d{};

    d[5] = static_cast<std::uint8_t>(n);
    return d;
}


inline token
token_of(std::uint64_t n)
{
    token t{};

    std::memcpy(t.data(), &n, sizeof(n));
    t[15] = 1;
    return t;
}


inline claim
claim_of(unsigned key, std::uint64_t owner, bool take_over = false)
{
    return {name_of(key), print_of(0), token_of(owner), 100, 1000, take_over};
}


inline ownership
owner_of(unsigned key, std::uint64_t owner)
{
    return {name_of(key), token_of(owner)};
}


inline const bytes &
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


inline std::span<const std::uint8_t>
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


inline std::uint64_t
seed()
{
    const char *given = std::getenv("ZONE_SEED");

    return given ? std::strtoull(given, nullptr, 10) : 1;
}


inline bool
same(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b)
{
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}


inline void
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


inline bool
step(pid_t child)
{
    int status = 0;

    REQUIRE(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0);
    REQUIRE(waitpid(child, &status, 0) == child);

    return WIFSTOPPED(status);
}


/* As the next worker does, or the next nginx where it is on a file. */
inline void
repair(fixture &f)
{
    zone_damage damage{};

    if (inspect{f.z}.has_checks()) {
        zone::reopen(f.memory.start(), f.memory.size(), false, damage);

    } else if (f.z.dirty()) {
        damage.without_response = f.z.recover().without_response;
    }

    REQUIRE(damage.without_response == 0);
    REQUIRE(damage.lost == 0);
}


/*
 * Runs the operation one instruction at a time and, wherever the zone has
 * changed, looks what a process that finds it like this would make of it:
 * first all as before, then, from some instruction on, all as after.  Where a
 * change takes several steps, what there is between them, in their order, is
 * given; nothing else may ever be seen.
 */
template <typename operation>
void
die_everywhere(fixture &f, std::uint64_t now, operation run,
               std::vector<view> between = {})
{
    fixture last(f.z.stats().blocks_total), found(f.z.stats().blocks_total);

    copy_of(f, last);
    copy_of(f, found);
    run(found.z);

    std::vector<view> ways{inspect{f.z}.look(now)};
    view after = inspect{found.z}.look(now);

    ways.insert(ways.end(), between.begin(), between.end());

    if (after != ways.back()) {
        ways.push_back(after);
    }

    std::size_t at = 0;
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

        repair(found);

        REQUIRE(found.wrong() == "");

        view v = inspect{found.z}.look(now);

        at += at + 1 < ways.size() && v == ways[at + 1];
        REQUIRE(v == ways[at]);
    }

    CHECK(at + 1 == ways.size());
    CHECK(states > 3);
    CHECK(!f.z.dirty());
    CHECK(inspect{f.z}.look(now) == after);
}

}
