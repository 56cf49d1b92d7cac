#include "store/zone_layout.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

/*
 * Prints the records of a memory store's file: names, states, times and
 * sizes, never a response.  It works on a private copy of the pages, so the
 * file may be in use, and is not changed.
 */

using namespace idempotency;

namespace {

const char *
word_for(record_state state)
{
    switch (state) {

    case record_state::pending: return "pending";

    case record_state::completed: return "completed";

    case record_state::not_kept: return "not_kept";

    case record_state::unknown: return "unknown";
    }

    return "?";
}


/* Times are relative to the newest that the file knows. */
void
print(const zone_entry &e, std::uint64_t now)
{
    for (std::uint8_t byte : e.name) {
        std::printf("%02x", byte);
    }

    std::printf(" %-9s attempt=%u age=%.1fs", word_for(e.state), e.attempt,
                static_cast<double>(elapsed(e.since, now)) / 1000);

    if (e.expiry == forever) {
        std::printf(" expires=never");

    } else {
        std::printf(" expires=%.1fs",
                    (static_cast<double>(e.expiry) - static_cast<double>(now))
                        / 1000);
    }

    if (e.state == record_state::pending) {
        std::printf(" lease=%.1fs", static_cast<double>(e.lease) / 1000);
    }

    std::printf(" response=%" PRIu64 " summary=%" PRIu64 "\n", e.response_size,
                e.summary_size);
}


int
dump(void *region, std::size_t size, const char *path)
{
    zone_damage found{};
    auto *z = static_cast<zone *>(region);

    if (zone::examine(region, size) != zone_content::records
        || z->size() > size
        || (z = zone::reopen(region, z->size(), true, found)) == nullptr)
    {
        std::fprintf(stderr, "%s: not a file that this build can read\n",
                     path);
        return 1;
    }

    std::uint64_t now = 0;

    z->each_record([&](const zone_entry &e) { now = std::max(now, e.since); });
    z->each_record([&](const zone_entry &e) { print(e, now); });

    zone_stats s = z->stats();

    std::printf("%zu records, %zu of %zu blocks in use, %zu by responses; "
                "damaged: %zu lost, %zu without response\n",
                s.records, s.blocks_used, s.blocks_total,
                s.blocks_of_responses, found.lost, found.without_response);

    return 0;
}

}


int
main(int count, char **arguments)
{
    if (count != 2) {
        std::fprintf(stderr, "usage: zone-dump FILE\n");
        return 2;
    }

    const char *path = arguments[1];
    struct stat info;
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fstat(fd, &info) != 0) {
        std::perror(path);
        return 1;
    }

    auto size = static_cast<std::size_t>(info.st_size);
    void *region = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd,
                        0);

    if (region == MAP_FAILED) {
        std::perror(path);
        return 1;
    }

    return dump(region, size, path);
}
