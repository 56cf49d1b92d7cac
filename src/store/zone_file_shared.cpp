#include "store/zone_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace idempotency {

/*
 * What processes share beside the records: a clock, what is known of the
 * disk, and a mutex.
 */

namespace {

constexpr std::uint64_t longest_absence = 60 * 60 * 1000;


/*
 * The mutex is last, since its size depends on the processor.  It is made anew
 * at each start, and so is all that is known of the disk.
 */
struct shared {
    std::uint64_t offset;    /* from the host's clock since its boot */
    std::uint64_t last_time; /* by our clock, and by the wall's */
    std::uint64_t last_wall;
    char boot[40];

    std::uint64_t errors;   /* writes that failed, as often as was noticed */
    std::uint64_t verified; /* how many there were when the zone was found */
    std::uint64_t written;  /* intact, and when all of it was written again */
    std::uint32_t lost;     /* it was not intact */
    std::uint32_t code;     /* of the last error */
    std::uint64_t heads;    /* as verified, of the records without responses */
    std::uint64_t unused[3];

    pthread_mutex_t mutex;
};

static_assert(offsetof(shared, boot) == 24);
static_assert(offsetof(shared, errors) == 64);
static_assert(offsetof(shared, mutex) == 128);
static_assert(sizeof(shared) <= sizeof(zone_extra));
static_assert(alignof(shared) <= alignof(zone_extra));


/* A failed write is followed by ten times the time that it cost us. */
constexpr unsigned pause_factor = 10;
constexpr unsigned longest_pause = 1000 * 1000;


shared &
shared_of(zone *z)
{
    return *reinterpret_cast<shared *>(z->extra().bytes);
}


std::uint64_t read_clock(clockid_t which);
void read_boot(char (&out)[sizeof(shared::boot)]);
std::uint64_t load(std::uint64_t &where);
void store_number(std::uint64_t &where, std::uint64_t value);
int find_error(int fd, std::size_t behind);

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
    seen_ = zone_->changes();
    pthread_mutex_unlock(&shared_of(zone_).mutex);
}


bool
zone_file::watch()
{
    char path[32];

    if (watched_ >= 0) {
        return true;
    }

    /* By the descriptor: a worker may have no way to the path. */
    std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_);
    watched_ = ::open(path, O_RDONLY | O_CLOEXEC);
    flushed_ = ::open(path, O_RDONLY | O_CLOEXEC);

    if (watched_ < 0 || flushed_ < 0) {
        int code = errno;

        close_own();
        errno = code;
        return false;
    }

    /* Of the processes of a worker's own, such as those of Lua, none. */
    fcntl(fd_, F_SETFD, FD_CLOEXEC);

    return true;
}


void
zone_file::close_own()
{
    for (int *fd : {&watched_, &flushed_}) {

        if (*fd >= 0) {
            close(*fd);
            *fd = -1;
        }
    }
}


bool
zone_file::has_failed()
{
    int code = find_error(watched_, size_);

    if (code != 0) {
        note_error(code);
    }

    return code != 0;
}


bool
zone_file::is_failing() const
{
    shared &s = shared_of(zone_);

    return load(s.errors) != load(s.written);
}


/* The first to notice is the one that tells. */
void
zone_file::note_error(int code)
{
    shared &s = shared_of(zone_);

    std::atomic_ref(s.code).store(static_cast<std::uint32_t>(code));

    if (std::atomic_ref(s.errors).fetch_add(1) == load(s.written)) {
        new_failed_ = code;
    }
}


bool
zone_file::verify()
{
    shared &s = shared_of(zone_);

    if (watched_ >= 0) {
        has_failed();
    }

    /* What is said in the zone could itself be lost. */
    if (gave_up_) {
        s.lost = 1;
    }

    return s.lost == 0 && (load(s.errors) == s.verified || check_pages());
}


bool
zone_file::check_pages()
{
    shared &s = shared_of(zone_);
    std::uint64_t began = read_clock(CLOCK_MONOTONIC);
    zone_damage damage{};

    std::uint64_t errors = load(s.errors);
    bool intact = load(s.heads) == errors
                  || (!zone_->dirty() && zone_->changes() >= seen_
                      && zone_->is_intact());

    /*
     * Of responses and indexes nothing is known yet.  A worker that is killed
     * while it looks leaves the rest to the next one.
     */
    if (intact) {
        store_number(s.heads, errors);
        zone::reopen(region_, size_, false, damage);
        intact = damage.lost == 0;
    }

    if (intact) {
        store_number(s.verified, errors);
    }

    if (!intact) {
        s.lost = 1;
        gave_up_ = true;
        new_lost_ = true;
    }

    pause_ = static_cast<unsigned>(std::min<std::uint64_t>(
        longest_pause,
        (read_clock(CLOCK_MONOTONIC) - began) * 1000 * pause_factor));

    return intact;
}


/* An error is set before the page that it concerns can be read again. */
bool
zone_file::is_sound()
{
    shared &s = shared_of(zone_);

    return watched_ < 0 || (!has_failed() && load(s.errors) == s.verified);
}


int
zone_file::flush()
{
    shared &s = shared_of(zone_);

    if (load(s.errors) != load(s.verified)) {
        lock();
        find_error(flushed_, size_); /* the same errors, from before */
        bool good = verify();
        unlock();

        if (!good) {
            return static_cast<int>(s.code);
        }
    }

    std::uint64_t errors = load(s.errors);

    if (fdatasync(flushed_) != 0) {
        int code = errno;

        note_error(code);
        return code;
    }

    /* Another process has noticed one, and it may be about these pages. */
    if (load(s.errors) != errors || load(s.verified) != errors) {
        return static_cast<int>(s.code);
    }

    if (std::atomic_ref(s.written).exchange(errors) != errors) {
        new_written_ = true;
    }

    return 0;
}


zone_file_news
zone_file::news()
{
    return {.failed = new_failed_.exchange(0),
            .written = new_written_.exchange(false),
            .lost = new_lost_.exchange(false)};
}


/* True: a write had failed before, and it was not written again. */
bool
zone_file::forget_errors()
{
    shared &s = shared_of(zone_);

    bool failed = s.errors != s.written || s.lost != 0;

    s.errors = s.verified = s.heads = s.written = 0;
    s.lost = s.code = 0;

    return find_error(fd_, size_) != 0 || failed;
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
    return std::atomic_ref(where).load();
}


void
store_number(std::uint64_t &where, std::uint64_t value)
{
    std::atomic_ref(where).store(value);
}


/*
 * The system waits for writes in the range that it is given, and then tells of
 * errors anywhere in the file.  Behind the end there is nothing to wait for.
 */
int
find_error(int fd, std::size_t behind)
{
    int result = sync_file_range(fd, static_cast<off64_t>(behind), 1,
                                 SYNC_FILE_RANGE_WAIT_BEFORE);

    return result == 0 || errno == ENOSYS ? 0 : errno;
}

}

}
