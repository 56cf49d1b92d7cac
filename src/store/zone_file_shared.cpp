#include "store/zone_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace idempotency {

/* What processes share beside the records: a mutex and a clock. */

namespace {

constexpr std::uint64_t longest_absence = 60 * 60 * 1000;


struct shared {
    pthread_mutex_t mutex;
    std::uint64_t offset;    /* from the host's clock since its boot */
    std::uint64_t last_time; /* by our clock, and by the wall's */
    std::uint64_t last_wall;
    char boot[40];
};

static_assert(sizeof(shared) <= sizeof(zone_extra));


shared &
shared_of(zone *z)
{
    return *reinterpret_cast<shared *>(z->extra().bytes);
}


std::uint64_t read_clock(clockid_t which);
void read_boot(char (&out)[sizeof(shared::boot)]);
std::uint64_t load(std::uint64_t &where);
void store_number(std::uint64_t &where, std::uint64_t value);

}


/* Freed by the system when its owner dies; the next to come repairs. */
bool
zone_file::make_mutex()
{
    pthread_mutexattr_t kind;

    if (pthread_mutexattr_init(&kind) != 0) {
        return false;
    }

    bool good = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED)
                    == 0
                && pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST)
                       == 0
                && pthread_mutex_init(&shared_of(zone_).mutex, &kind) == 0;

    pthread_mutexattr_destroy(&kind);

    return good;
}


void
zone_file::lock()
{
    pthread_mutex_t &mutex = shared_of(zone_).mutex;

    if (pthread_mutex_lock(&mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&mutex);
    }
}


void
zone_file::unlock()
{
    pthread_mutex_unlock(&shared_of(zone_).mutex);
}


std::uint64_t
zone_file::now() const
{
    return read_clock(CLOCK_BOOTTIME) + load(shared_of(zone_).offset);
}


void
zone_file::note_time()
{
    shared &s = shared_of(zone_);

    store_number(s.last_time, now());
    store_number(s.last_wall, read_clock(CLOCK_REALTIME));
}


/*
 * While the host runs, its own clock goes on.  After a boot only the wall's
 * clock can tell how long it was off, and that may be wrong: backwards it
 * counts as no time, and forwards as an hour at most.  True: it was booted.
 */
bool
zone_file::set_clock()
{
    shared &s = shared_of(zone_);
    char boot[sizeof(s.boot)] = {};

    read_boot(boot);

    bool same = boot[0] != '\0'
                && std::memcmp(boot, s.boot, sizeof(boot)) == 0;
    bool fresh = s.last_time == 0;

    if (!same && !fresh) {
        std::uint64_t wall = read_clock(CLOCK_REALTIME);
        std::uint64_t away = wall > s.last_wall ? wall - s.last_wall : 0;

        s.offset = s.last_time + std::min(away, longest_absence)
                   - read_clock(CLOCK_BOOTTIME);
    }

    std::memcpy(s.boot, boot, sizeof(boot));
    note_time();

    return !same && !fresh;
}


namespace {

std::uint64_t
read_clock(clockid_t which)
{
    timespec ts;

    clock_gettime(which, &ts);

    return static_cast<std::uint64_t>(ts.tv_sec) * 1000
           + static_cast<std::uint64_t>(ts.tv_nsec) / 1000000;
}


/* Empty where it cannot be told: then every start counts as a boot. */
void
read_boot(char (&out)[sizeof(shared::boot)])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return;
    }

    if (read(fd, out, sizeof(out) - 1) <= 0) {
        out[0] = '\0';
    }

    close(fd);
}


std::uint64_t
load(std::uint64_t &where)
{
    return std::atomic_ref(where).load(std::memory_order_relaxed);
}


void
store_number(std::uint64_t &where, std::uint64_t value)
{
    std::atomic_ref(where).store(value, std::memory_order_relaxed);
}

}

}
