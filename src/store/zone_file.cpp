#include "store/zone_file.h"

#include "store/zone_file_parts.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

namespace idempotency {

namespace {

/* As long as nginx itself waits for an address that is in use. */
constexpr unsigned lock_tries = 5;
constexpr useconds_t lock_pause = 500 * 1000;

/* All of this process, so that it knows its own descriptors. */
constexpr std::size_t most_files = 64;
int known[most_files];
std::size_t known_count;

int open_existing(const char *path, bool &inherited);
bool is_owned(int fd);
bool take_lock(int fd, const char *path);
bool is_at(int fd, const char *path);
bool check_size(const zone_file_settings &how, const file_state &state,
                bool alone, zone_file_error &e);
bool fail(zone_file_error &e, const char *reason, int code = 0,
          std::size_t size = 0);

}


zone_file *
zone_file::open(const zone_file_settings &how, zone_file_error &e,
                zone_file_report &report)
{
    bool inherited = false;
    int fd = open_existing(how.path, inherited);

    if (fd < 0 && errno == ENOENT) {

        if (!create_zone_file(how, e)) {
            return nullptr;
        }

        report.created = true;
        fd = open_existing(how.path, inherited);
    }

    if (fd < 0) {
        explain_open(errno, e);
        return nullptr;
    }

    auto *file = new (std::nothrow) zone_file;

    if (file == nullptr || known_count == most_files) {
        fail(e, "there are too many of them", ENOMEM);
        delete file;
        close(fd);
        return nullptr;
    }

    file->fd_ = fd;
    known[known_count++] = fd;
    fcntl(fd, F_SETOWN, getpid());

    file_state state;

    if (!look_at(fd, how, state, e)) {
        file->release();
        return nullptr;
    }

    if (!inherited && !take_lock(fd, how.path)) {
        fail(e, "it is in use by another nginx");
        file->release();
        return nullptr;
    }

    if (!check_size(how, state, !inherited, e)
        || !file->prepare(how, !inherited, e, report))
    {
        file->release();
        return nullptr;
    }

    return file;
}


bool
zone_file::test(const zone_file_settings &how, zone_file_error &e)
{
    int fd = ::open(how.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0) {
        return errno == ENOENT ? could_be_created(how, e)
                               : explain_open(errno, e);
    }

    file_state state;
    bool good = look_at(fd, how, state, e) && check_size(how, state, true, e);

    close(fd);

    return good;
}


/* Alone: nobody else uses it, so it can be repaired and made larger. */
bool
zone_file::prepare(const zone_file_settings &how, bool alone,
                   zone_file_error &e, zone_file_report &report)
{
    file_state state;

    if (!look_at(fd_, how, state, e)) {
        return false;
    }

    /* Now, since a page that cannot be written later kills the process. */
    if (alone && state.available < how.size
        && !write_zeros(fd_, state.available, how.size, e))
    {
        return false;
    }

    size_ = how.size;
    region_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);

    if (region_ == MAP_FAILED) {
        region_ = nullptr;
        return fail(e, "it cannot be mapped", errno);
    }

    zone_ = static_cast<zone *>(region_);

    if (!alone) {
        return true;
    }

    report.grown = state.zone_size < size_ && !report.created;

    return begin(state.available, e, report);
}


bool
zone_file::begin(std::size_t available, zone_file_error &e,
                 zone_file_report &report)
{
    bool cut = available < zone_->size();

    report.write_failed = forget_errors();
    report.after_boot = set_clock() || cut || report.write_failed;

    if (!make_mutex()) {
        return fail(e, "it cannot have a mutex");
    }

    if (zone::reopen(region_, size_, report.after_boot, report.damage)
        == nullptr) {
        return fail(e, "it is too small");
    }

    return true;
}


void
zone_file::release()
{
    if (--users_ > 0) {
        return;
    }

    if (region_ != nullptr) {
        munmap(region_, size_);
    }

    for (std::size_t i = 0; i < known_count; ++i) {

        if (known[i] == fd_) {
            known[i] = known[--known_count];
            break;
        }
    }

    close_own();
    close(fd_);
    delete this;
}


namespace {

/*
 * A descriptor that this process has already is its own, from a store of the
 * configuration before, or one that it inherited from the binary before.  It
 * must live on in the next binary, hence no O_CLOEXEC.
 */
int
open_existing(const char *path, bool &inherited)
{
    int fd = find_descriptor(path);

    if (fd < 0) {
        return ::open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    }

    inherited = true;

    return is_owned(fd) ? dup(fd) : fd;
}


/* By this build of the module or, as its mark shows, by another one. */
bool
is_owned(int fd)
{
    return std::find(known, known + known_count, fd) != known + known_count
           || fcntl(fd, F_GETOWN) == getpid();
}


bool
take_lock(int fd, const char *path)
{
    for (unsigned i = 0; i < lock_tries; ++i) {

        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return is_at(fd, path);
        }

        usleep(lock_pause);
    }

    return false;
}


/* Another nginx may have replaced the file before it was locked. */
bool
is_at(int fd, const char *path)
{
    struct stat mine, there;

    return fstat(fd, &mine) == 0 && lstat(path, &there) == 0
           && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}


bool
check_size(const zone_file_settings &how, const file_state &state, bool alone,
           zone_file_error &e)
{
    if (how.size < state.zone_size) {
        return fail(e,
                    "it is larger than its store, and cannot be made smaller",
                    0, state.zone_size);
    }

    if (how.size > state.zone_size && !alone) {
        return fail(e, "it is in use, so it cannot be made larger now", 0,
                    state.zone_size);
    }

    return true;
}


bool
fail(zone_file_error &e, const char *reason, int code, std::size_t size)
{
    e = {reason, code, size};
    return false;
}

}

}
