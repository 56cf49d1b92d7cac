#include "store/zone_file_parts.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace idempotency {

namespace {

constexpr std::size_t header_bytes = 1024;

struct path_name {
    char text[PATH_MAX];
};

bool check_kind(const struct stat &info, const zone_file_settings &how,
                zone_file_error &e);
bool check_file_system(const struct statfs &where, zone_file_error &e);
bool make_directory(const zone_file_settings &how, zone_file_error &e);
int open_new(const zone_file_settings &how, path_name &made,
             zone_file_error &e);
bool fill_file(int fd, const zone_file_settings &how, zone_file_error &e);
bool copy_converted(int from, int to, const zone_file_settings &how,
                    std::size_t size, zone_file_error &e);
bool directory_of(const char *path, path_name &out);
void sync_directory(const char *path);
bool fail(zone_file_error &e, const char *reason, int code = 0);

}


bool
look_at(int fd, const zone_file_settings &how, file_state &state,
        zone_file_error &e)
{
    struct stat info;
    alignas(64) unsigned char header[header_bytes] = {};

    struct statfs where;

    if (fstat(fd, &info) != 0 || fstatfs(fd, &where) != 0) {
        return fail(e, "it cannot be examined", errno);
    }

    if (!check_kind(info, how, e) || !check_file_system(where, e)) {
        return false;
    }

    ssize_t n = pread(fd, header, sizeof(header), 0);

    if (n < 0) {
        return fail(e, "it cannot be read", errno);
    }

    zone_content what = zone::examine(header, static_cast<std::size_t>(n),
                                      how.older);

    switch (what) {

    case zone_content::records:
    case zone_content::older_layout: break;

    case zone_content::other_layout:
        return fail(e, "its records are of a build of the module that stores "
                       "them in another way, and this one cannot convert "
                       "them: use that build, or a newer one, or move the "
                       "file away to start with an empty store");

    case zone_content::something_else:
        return fail(e, "it is not a file of this module, or its beginning is "
                       "lost: move it away to start with an empty store");
    }

    const auto *there = reinterpret_cast<const zone *>(header);

    state.available = static_cast<std::size_t>(info.st_size);
    state.zone_size = there->size();
    state.is_older = what == zone_content::older_layout;

    return true;
}


bool
create_zone_file(const zone_file_settings &how, zone_file_error &e)
{
    path_name made;

    if (!make_directory(how, e)) {
        return false;
    }

    int fd = open_new(how, made, e);

    if (fd < 0) {
        return false;
    }

    bool good = fill_file(fd, how, e);

    close(fd);

    if (good && link(made.text, how.path) != 0 && errno != EEXIST) {
        good = fail(e, "it cannot be created", errno);
    }

    unlink(made.text);
    sync_directory(how.path);

    return good;
}


/* The file itself is not touched: whatever happens, there is a whole one. */
bool
convert_zone_file(int fd, const zone_file_settings &how, std::size_t size,
                  zone_file_error &e)
{
    path_name made;
    int copy = open_new(how, made, e);

    if (copy < 0) {
        return false;
    }

    bool good = write_zeros(copy, 0, size, e)
                && copy_converted(fd, copy, how, size, e);

    close(copy);

    if (good && rename(made.text, how.path) != 0) {
        good = fail(e, "its records cannot be converted", errno);
    }

    if (!good) {
        unlink(made.text);
        return false;
    }

    sync_directory(how.path);

    return true;
}


bool
write_zeros(int fd, std::size_t from, std::size_t to, zone_file_error &e)
{
    static const char zeros[1 << 16] = {};
    struct statvfs space;

    /* Not until the disk is full: others need it, too. */
    if (fstatvfs(fd, &space) == 0
        && to - from > std::uint64_t{space.f_bavail} * space.f_frsize)
    {
        return fail(e, "its space cannot be reserved", ENOSPC);
    }

    for (std::size_t at = from; at < to; /* void */) {
        ssize_t n = pwrite(fd, zeros, std::min(sizeof(zeros), to - at),
                           static_cast<off_t>(at));

        if (n < 0 && errno != EINTR) {
            return fail(e, "its space cannot be reserved", errno);
        }

        at += n > 0 ? static_cast<std::size_t>(n) : 0;
    }

    return fsync(fd) == 0 || fail(e, "its space cannot be reserved", errno);
}


bool
could_be_created(const zone_file_settings &how, zone_file_error &e)
{
    path_name directory, parent;
    struct stat info;

    if (!directory_of(how.path, directory)) {
        return fail(e, "its name is too long");
    }

    if (stat(directory.text, &info) == 0) {
        struct statfs where;

        return S_ISDIR(info.st_mode)
                   ? statfs(directory.text, &where) != 0
                         || check_file_system(where, e)
                   : fail(e, "its directory is no directory");
    }

    if (!directory_of(directory.text, parent) || stat(parent.text, &info) != 0)
    {
        return fail(e, "the parent of its directory does not exist", errno);
    }

    return true;
}


bool
explain_open(int code, zone_file_error &e)
{
    return code == ELOOP ? fail(e, "it is a symbolic link")
                         : fail(e, "it cannot be opened", code);
}


int
find_descriptor(const char *path)
{
    struct stat wanted, info;
    DIR *all = opendir("/proc/self/fd");
    int found = -1;

    if (all == nullptr) {
        return -1;
    }

    if (lstat(path, &wanted) != 0 || !S_ISREG(wanted.st_mode)) {
        closedir(all);
        return -1;
    }

    while (const dirent *entry = readdir(all)) {
        int fd = std::atoi(entry->d_name);

        if (fd > STDERR_FILENO && fd != dirfd(all) && fstat(fd, &info) == 0
            && info.st_dev == wanted.st_dev && info.st_ino == wanted.st_ino
            && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR)
        {
            found = fd;
            break;
        }
    }

    closedir(all);

    return found;
}


/* Paths are looked up: on Btrfs the numbers of devices are not comparable. */
bool
is_mapped(const char *path)
{
    struct stat wanted, info;
    std::FILE *all = std::fopen("/proc/self/maps", "re");
    char *line = nullptr;
    std::size_t room = 0;
    bool found = false;

    if (all == nullptr) {
        return false;
    }

    bool exists = lstat(path, &wanted) == 0;

    while (exists && !found && getline(&line, &room, all) > 0) {
        char *name = std::strchr(line, '/');

        if (name == nullptr) {
            continue;
        }

        name[std::strcspn(name, "\n")] = '\0';
        found = stat(name, &info) == 0 && info.st_dev == wanted.st_dev
                && info.st_ino == wanted.st_ino;
    }

    std::free(line);
    std::fclose(all);

    return found;
}


namespace {

bool
check_kind(const struct stat &info, const zone_file_settings &how,
           zone_file_error &e)
{
    if (!S_ISREG(info.st_mode)) {
        return fail(e, "it is not a regular file");
    }

    if (info.st_uid != how.owner) {
        return fail(e, "it belongs to another user than the workers run as");
    }

    if ((info.st_mode & 077) != 0) {
        return fail(e, "others may read or write it: set its mode to 0600");
    }

    return true;
}


/*
 * Another host could have it mapped as well, and a lock there does not keep
 * this one out; nor does a mutex in memory.
 */
bool
check_file_system(const struct statfs &where, zone_file_error &e)
{
    constexpr std::uint32_t others[] = {
        NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC,
        CEPH_SUPER_MAGIC, V9FS_MAGIC,      AFS_SUPER_MAGIC,  CODA_SUPER_MAGIC};
    auto type = static_cast<std::uint32_t>(where.f_type);

    return std::find(std::begin(others), std::end(others), type)
               == std::end(others)
           || fail(e, "it is on a network file system: use a local one");
}


/* Where its parent exists. */
bool
make_directory(const zone_file_settings &how, zone_file_error &e)
{
    path_name directory;

    if (!directory_of(how.path, directory)) {
        return fail(e, "its name is too long");
    }

    if (mkdir(directory.text, 0700) != 0) {
        return errno == EEXIST
               || fail(e, "its directory cannot be created", errno);
    }

    if (geteuid() == 0 && lchown(directory.text, how.owner, how.group) != 0) {
        return fail(e, "its directory cannot be given to the workers' user",
                    errno);
    }

    return true;
}


/* Under a name that nobody else uses, for the workers' user only. */
int
open_new(const zone_file_settings &how, path_name &made, zone_file_error &e)
{
    int n = std::snprintf(made.text, sizeof(made.text), "%s.new.XXXXXX",
                          how.path);

    if (n < 0 || static_cast<std::size_t>(n) >= sizeof(made.text)) {
        fail(e, "its name is too long");
        return -1;
    }

    int fd = mkostemp(made.text, O_CLOEXEC);

    if (fd < 0) {
        fail(e, "it cannot be created", errno);
        return -1;
    }

    struct statfs where;
    bool good = fstatfs(fd, &where) != 0 || check_file_system(where, e);

    if (good && geteuid() == 0 && fchown(fd, how.owner, how.group) != 0) {
        good = fail(e, "it cannot be given to the workers' user", errno);
    }

    if (!good) {
        unlink(made.text);
        close(fd);
        return -1;
    }

    return fd;
}


bool
fill_file(int fd, const zone_file_settings &how, zone_file_error &e)
{
    std::uint64_t seed;

    if (!write_zeros(fd, 0, how.size, e)) {
        return false;
    }

    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
        return fail(e, "there are no random numbers", errno);
    }

    void *region = mmap(nullptr, how.size, PROT_READ | PROT_WRITE, MAP_SHARED,
                        fd, 0);

    if (region == MAP_FAILED) {
        return fail(e, "it cannot be mapped", errno);
    }

    bool good = zone::format(region, how.size, seed, true) != nullptr
                || fail(e, "it is too small");

    munmap(region, how.size);

    if (good && fsync(fd) != 0) {
        good = fail(e, "it cannot be written", errno);
    }

    return good;
}


bool
copy_converted(int from, int to, const zone_file_settings &how,
               std::size_t size, zone_file_error &e)
{
    void *region = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, to,
                        0);

    if (region == MAP_FAILED) {
        return fail(e, "it cannot be mapped", errno);
    }

    auto *bytes = static_cast<std::uint8_t *>(region);
    bool good = true;

    for (std::size_t at = 0; at < size && good; /* void */) {
        ssize_t n = pread(from, bytes + at, size - at, static_cast<off_t>(at));

        /* What was cut off counts as zeros. */
        if (n == 0) {
            break;
        }

        good = n > 0 || errno == EINTR || fail(e, "it cannot be read", errno);
        at += n > 0 ? static_cast<std::size_t>(n) : 0;
    }

    if (good) {
        zone::convert(region, how.older);
    }

    munmap(region, size);

    return good && (fsync(to) == 0 || fail(e, "it cannot be written", errno));
}


bool
directory_of(const char *path, path_name &out)
{
    const char *slash = std::strrchr(path, '/');
    std::size_t size = slash == nullptr
                           ? 0
                           : static_cast<std::size_t>(slash - path);

    if (size >= sizeof(out.text)) {
        return false;
    }

    std::memcpy(out.text, path, size);
    out.text[size] = '\0';

    if (size == 0) {
        std::strcpy(out.text, slash == nullptr ? "." : "/");
    }

    return true;
}


void
sync_directory(const char *path)
{
    path_name directory;

    if (!directory_of(path, directory)) {
        return;
    }

    int fd = open(directory.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}


bool
fail(zone_file_error &e, const char *reason, int code)
{
    e = {reason, code, 0};
    return false;
}

}

}
