#include "store/zone_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#if __has_include(<lmdb.h>)
#include <lmdb.h>
#endif

/*
 * What one request costs in the store, a claim and an outcome: a zone in
 * memory, the same in a file, and LMDB (if liblmdb-dev is there), one after
 * the other, the best of some rounds.  It is the time of the CPU, but for
 * "synced", which waits for the disk after each of the two.
 *
 *     g++ -std=c++20 -O2 -I src bench/zone-file.cpp src/store/zone*.cpp \
 *         src/contract/{record,summary}.cpp -o zone-file -llmdb
 *     ./zone-file [FOLDER]
 */

using namespace idempotency;

namespace {

constexpr std::size_t size = 256 * 1024 * 1024;
constexpr unsigned many = 200'000, few = 500, rounds = 5;
constexpr clockid_t cpu = CLOCK_PROCESS_CPUTIME_ID, wall = CLOCK_MONOTONIC;
constexpr std::uint64_t day = 24 * 60 * 60 * 1000;

std::vector<std::uint8_t> response(600, 'x');


claim
claim_of(std::uint32_t number)
{
    claim c{};

    /* As digests are: spread, and all different. */
    for (std::uint64_t i = 0, x = number; i < 4; ++i) {
        x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
        x ^= x >> 31;
        std::memcpy(c.name.data() + i * 8 % c.name.size(), &x, 8);
    }

    std::memcpy(c.owner.data(), &number, sizeof(number));
    c.lease = 30'000;
    c.keep = day;

    return c;
}


/* Microseconds for each of n requests, of a clock. */
template <typename Request>
double
time_of(unsigned n, clockid_t clock, Request request)
{
    timespec from, to;

    clock_gettime(clock, &from);

    for (unsigned i = 0; i < n; ++i) {
        request(i);
    }

    clock_gettime(clock, &to);

    return (static_cast<double>(to.tv_sec - from.tv_sec) * 1e6
            + static_cast<double>(to.tv_nsec - from.tv_nsec) / 1e3)
           / n;
}


void
serve(zone &z, std::uint32_t number, std::uint64_t now)
{
    claim c = claim_of(number);
    std::span<const std::uint8_t> whole[] = {response};

    if (z.claim(c, now, {}).result != claim_result::claimed
        || z.complete({c.name, c.owner},
                      {record_state::completed, day, whole, {}, day}, now)
               != settle_result::done)
    {
        std::abort();
    }
}


/* First in memory that was never used, then in memory that was. */
struct measured {
    double fresh = 1e9;
    double used = 1e9;
    double synced = 1e9;

    void add(const measured &other)
    {
        fresh = std::min(fresh, other.fresh);
        used = std::min(used, other.used);
        synced = std::min(synced, other.synced);
    }
};


measured
in_memory()
{
    void *region = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    zone *z = zone::format(region, size, 7);
    measured m;

    m.fresh = time_of(many, cpu, [&](unsigned i) { serve(*z, i, 1); });
    z->expire(2 * day, many);
    m.used = time_of(many, cpu, [&](unsigned i) { serve(*z, i, 2 * day); });
    munmap(region, size);

    return m;
}


measured
in_file(const std::string &folder)
{
    std::string path = folder + "/zone";
    zone_file_error e;
    zone_file_report report;
    zone_file *file = zone_file::open(
        {path.c_str(), size, geteuid(), getegid()}, e, report);

    if (file == nullptr) {
        std::printf("%s\n", e.reason);
        std::exit(1);
    }

    auto one = [&](unsigned i, std::uint64_t now) {
        file->lock();
        serve(*file->records(), i, now);
        file->unlock();
    };
    measured m;

    m.fresh = time_of(many, cpu, [&](unsigned i) { one(i, 1); });
    file->records()->expire(2 * day, many);
    m.used = time_of(many, cpu, [&](unsigned i) { one(i, 2 * day); });
    msync(file->records(), size, MS_SYNC);
    m.synced = time_of(few, wall, [&](unsigned i) {
        claim c = claim_of(many + i);
        std::span<const std::uint8_t> whole[] = {response};

        file->records()->claim(c, 2 * day, {});
        msync(file->records(), size, MS_SYNC);
        file->records()->complete(
            {c.name, c.owner}, {record_state::completed, day, whole, {}, day},
            2 * day);
        msync(file->records(), size, MS_SYNC);
    });
    file->release();
    unlink(path.c_str());

    return m;
}


#if __has_include(<lmdb.h>)

/* A transaction for the claim, which looks first, and one for the outcome. */
void
serve(MDB_env *env, MDB_dbi dbi, std::uint32_t number)
{
    claim c = claim_of(number);
    std::uint8_t head[80] = {};
    std::vector<std::uint8_t> whole(sizeof(head) + response.size());
    MDB_val key{c.name.size(), c.name.data()}, found;
    MDB_val pending{sizeof(head), head}, ended{whole.size(), whole.data()};
    MDB_txn *t;
    int code = mdb_txn_begin(env, nullptr, 0, &t);

    if (code == 0 && mdb_get(t, dbi, &key, &found) == MDB_NOTFOUND) {
        code = mdb_put(t, dbi, &key, &pending, 0);
    }

    code = code != 0 ? code : mdb_txn_commit(t);
    code = code != 0 ? code : mdb_txn_begin(env, nullptr, 0, &t);
    code = code != 0 ? code : mdb_put(t, dbi, &key, &ended, 0);
    code = code != 0 ? code : mdb_txn_commit(t);

    if (code != 0) {
        std::printf("%s\n", mdb_strerror(code));
        std::exit(1);
    }
}


measured
in_lmdb(const std::string &folder)
{
    std::string path = folder + "/lmdb";
    MDB_env *env;
    MDB_txn *t;
    MDB_dbi dbi;
    measured m;

    mdb_env_create(&env);
    mdb_env_set_mapsize(env, 4 * size);

    if (mdb_env_open(env, path.c_str(),
                     MDB_NOSUBDIR | MDB_WRITEMAP | MDB_NOSYNC, 0600)
        != 0)
    {
        std::exit(1);
    }

    mdb_txn_begin(env, nullptr, 0, &t);
    mdb_dbi_open(t, nullptr, 0, &dbi);
    mdb_txn_commit(t);

    m.fresh = time_of(many, cpu, [&](unsigned i) { serve(env, dbi, i); });
    mdb_txn_begin(env, nullptr, 0, &t);
    mdb_drop(t, dbi, 0);
    mdb_txn_commit(t);
    m.used = time_of(many, cpu, [&](unsigned i) { serve(env, dbi, i); });
    mdb_env_set_flags(env, MDB_NOSYNC, 0);
    mdb_env_sync(env, 1);
    m.synced = time_of(few, wall,
                       [&](unsigned i) { serve(env, dbi, many + i); });
    mdb_env_close(env);
    unlink(path.c_str());
    unlink((path + "-lock").c_str());

    return m;
}

#endif


void
show(const char *name, const measured &m)
{
    std::printf("%-8s %8.2f %8.2f", name, m.fresh, m.used);
    m.synced < 1e9 ? std::printf(" %10.0f\n", m.synced) : std::printf("\n");
}

}


int
main(int count, char **arguments)
{
    std::string folder = count > 1 ? arguments[1] : "/tmp";
    measured memory, file, lmdb;

    for (unsigned i = 0; i < rounds; ++i) {
        memory.add(in_memory());
        file.add(in_file(folder));
#if __has_include(<lmdb.h>)
        lmdb.add(in_lmdb(folder));
#endif
    }

    std::printf("microseconds per request\n%-8s %8s %8s %10s\n", "", "fresh",
                "used", "synced");
    show("memory", memory);
    show("file", file);
    lmdb.fresh < 1e9 ? show("LMDB", lmdb) : void();
    std::printf("file to memory: %.2f fresh, %.2f used\n",
                file.fresh / memory.fresh, file.used / memory.used);
}
