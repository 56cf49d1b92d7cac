#include "store/zone.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <sys/mman.h>

/*
 * How the time of an operation grows with the number of records in a memory
 * store, and with the size of responses.  The zone is in a steady state: for
 * each record that is new, the oldest expires.  Then how long the lock is held
 * by what takes longest: one expired record of a sweep, a zone that is
 * repaired after a worker died, and one that is verified after a write error.
 *
 *     g++ -std=c++20 -O2 -I src -o zone-time bench/zone-time.cpp \
 *         src/store/zone{,_blocks,_expiry,_records,_recovery}.cpp \
 *         src/store/zone_{responses,room,verify}.cpp \
 *         src/contract/{record,summary}.cpp
 *     ./zone-time 10000000
 *
 * The argument is the largest number of records; a record takes 264 bytes.
 */

using namespace idempotency;

namespace {

struct world {
    zone *z = nullptr;
    std::uint64_t next = 0; /* key */
    std::uint64_t now = 1;
    std::uint64_t ttl = 0;
    std::vector<std::uint8_t> response;
    std::vector<std::uint8_t> room;
};


claim
claim_of(std::uint64_t key)
{
    claim c{};
    std::uint64_t mixed = (key + 1) * 0x9e3779b97f4a7c15;

    std::memcpy(c.name.data(), &mixed, sizeof(mixed));
    c.lease = 30000;
    c.keep = 1000;

    return c;
}


/* One millisecond for each request. */
void
run_one(world &w)
{
    std::array<std::span<const std::uint8_t>, 1> body{w.response};
    claim c = claim_of(w.next++);

    ++w.now;
    w.z->expire(w.now, 2);

    if (w.z->claim(c, w.now, {}).result != claim_result::claimed) {
        std::fprintf(stderr, "the zone is full\n");
        std::exit(1);
    }

    w.z->complete({c.name, c.owner},
                  {record_state::completed, w.ttl, body, {}, w.ttl}, w.now);
}


void
replay_one(world &w, std::uint64_t number)
{
    std::uint64_t back = number * 0x9e3779b97f4a7c15 % (w.ttl - 2);
    claim c = claim_of(w.next - 1 - back);

    if (w.z->claim(c, w.now, w.room).result != claim_result::found) {
        std::fprintf(stderr, "a record is missing\n");
        std::exit(1);
    }
}


double
cpu_time()
{
    timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);

    return static_cast<double>(ts.tv_sec) * 1e9
           + static_cast<double>(ts.tv_nsec);
}


void
measure(std::uint64_t records, std::size_t size)
{
    std::size_t blocks = 2 + (size > 80 ? size / 248 + 1 : 0);
    std::size_t bytes = (records + 1000) * blocks * 270 + (1 << 20);
    void *region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    world w;
    std::uint64_t times = 200000 / blocks;

    w.z = zone::format(region, bytes, 0x9fb21c651e98df25, true);
    w.ttl = records;
    w.response.assign(size, 'x');
    w.room.resize(size);

    for (std::uint64_t i = 0; i < records + records / 4; ++i) {
        run_one(w);
    }

    double start = cpu_time();

    for (std::uint64_t i = 0; i < times; ++i) {
        run_one(w);
    }

    double middle = cpu_time();

    for (std::uint64_t i = 0; i < times; ++i) {
        replay_one(w, i);
    }

    double end = cpu_time();

    /* All have expired; a part is enough. */
    double longest = 0, sweep = cpu_time(), before = sweep;

    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(records, 10000); ++i)
    {
        w.z->expire(w.now + w.ttl, 1);
        double now = cpu_time();
        longest = std::max(longest, now - before);
        before = now;
    }

    double recovery = cpu_time();
    w.z->recover();
    double check = cpu_time();
    zone_damage damage;
    bool intact = w.z->is_intact();
    zone::reopen(region, bytes, false, damage);
    double last = cpu_time();

    std::printf("| %llu | %zu | %.0f | %.0f | %.0f | %.0f | %.0f |%s\n",
                static_cast<unsigned long long>(records), size,
                (middle - start) / static_cast<double>(times),
                (end - middle) / static_cast<double>(times), longest,
                (check - recovery) / 1e6, (last - check) / 1e6,
                intact && damage.lost == 0 ? "" : " not intact");
    munmap(region, bytes);
}

}


int
main(int count, char **words)
{
    std::uint64_t most = count > 1 ? std::strtoull(words[1], nullptr, 10)
                                   : 1000000;

    std::printf("| records | response, bytes | new, ns | replay, ns | longest "
                "step of a sweep, ns | repair, ms | verification, ms |\n"
                "| --- | --- | --- | --- | --- | --- | --- |\n");

    for (std::uint64_t records = 1000; records <= most; records *= 10) {
        measure(records, 80);
    }

    for (std::size_t size : {300, 4096, 65536, 1048576}) {
        measure(1000, size);
    }
}
