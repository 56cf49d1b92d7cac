#include "store/zone_file.h"

#include "store/zone_file_parts.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace idempotency {

namespace {

/* As long as nginx itself waits for an address that is in use. */
constexpr unsigned lock_tries = 5;
constexpr useconds_t lock_pause = 500 * 1000;

int open_existing(const char *path, bool &inherited);
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

    if (file == nullptr) {
        fail(e, "there is no memory for it", ENOMEM);
        close(fd);
        return nullptr;
    }

    file->fd_ = fd;

    if (!file->enter(how, !inherited, e, report)) {
        file->release();
        return nullptr;
    }

    return file;
}


/* Alone: nobody else uses it, so it can be repaired, converted and grow. */
bool
zone_file::enter(const zone_file_settings &how, bool alone, zone_file_error &e,
                 zone_file_report &report)
{
    file_state state;

    if (!look_at(fd_, how, state, e)) {
        return false;
    }

    if (alone && !take_lock(fd_, how.path)) {
        return fail(e, "it is in use by another nginx");
    }

    if (state.is_older && !alone) {
        return fail(e, "it is in use, so its records cannot be converted to "
                       "the layout of this build now: restart nginx");
    }

    if (state.is_older && !convert(how, state, e)) {
        return false;
    }

    report.converted = state.is_older;

    return check_size(how, state, alone, e) && prepare(how, alone, e, report);
}


/* The lock of the one that is replaced is held until that is done. */
bool
zone_file::convert(const zone_file_settings &how, const file_state &state,
                   zone_file_error &e)
{
    if (!convert_zone_file(fd_, how, state.zone_size, e)) {
        return false;
    }

    int fd = ::open(how.path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0) {
        return explain_open(errno, e);
    }

    close(fd_);
    fd_ = fd;

    return take_lock(fd_, how.path)
           || fail(e, "it is in use by another nginx");
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


bool
zone_file::is_in_use(const char *path)
{
    return is_mapped(path);
}


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

    close_own();
    close(fd_);
    delete this;
}


namespace {

/*
 * A descriptor that this process has already belongs to a store of the
 * configuration before, which has the file mapped, or was inherited from the
 * binary before, and belongs to nobody yet: no mapping outlives exec().
 * Another build of the module can see that as well, and so can a daemon, whose
 * process id changes.  It must live on in the next binary, hence no O_CLOEXEC.
 */
int
open_existing(const char *path, bool &inherited)
{
    int fd = find_descriptor(path);

    if (fd < 0) {
        return ::open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    }

    inherited = true;

    return is_mapped(path) ? dup(fd) : fd;
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
