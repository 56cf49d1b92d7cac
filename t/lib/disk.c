/*
 * Preloaded by tests: a disk that can be told what to do.  The file named by
 * TEST_DISK holds one word, which counts for every fdatasync() from then on:
 *
 *   good    what is in memory goes to the file named by TEST_DISK_SHADOW, if
 *           it is set: what is left after a loss of power
 *   broken  it fails
 *   stuck   it waits until there is another word
 *
 * TEST_DISK_TYPE is the number of the file system that it seems to have.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>


static int is(const char *word)
{
    char text[16] = "";
    const char *path = getenv("TEST_DISK");
    FILE *in = path == NULL ? NULL : fopen(path, "re");
    int found;

    if (in == NULL) {
        return 0;
    }

    found = fscanf(in, "%15s", text) == 1 && strcmp(text, word) == 0;
    fclose(in);

    return found;
}


static void write_shadow(int from)
{
    struct stat info;
    const char *path = getenv("TEST_DISK_SHADOW");
    int fd = path == NULL
                 ? -1
                 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0) {
        return;
    }

    /* Pages that did not change are left alone, as by a disk. */
    flock(fd, LOCK_EX);
    for (off_t at = 0; fstat(from, &info) == 0 && at < info.st_size;
         at += 4096)
    {
        char here[4096], there[4096];
        ssize_t n = pread(from, here, sizeof(here), at);

        if (pread(fd, there, sizeof(there), at) != n
            || memcmp(there, here, n) != 0)
        {
            if (pwrite(fd, here, n, at) != n) {
                abort();
            }
        }
    }
    close(fd);
}


int fdatasync(int fd)
{
    while (is("stuck")) {
        usleep(5000);
    }

    if (is("broken")) {
        errno = EIO;
        return -1;
    }

    write_shadow(fd);

    return 0;
}


static int disguise(long result, struct statfs *out)
{
    const char *type = getenv("TEST_DISK_TYPE");

    if (result == 0 && type != NULL) {
        out->f_type = strtol(type, NULL, 0);
    }

    return (int) result;
}


int statfs(const char *path, struct statfs *out)
{
    return disguise(syscall(SYS_statfs, path, out), out);
}


int fstatfs(int fd, struct statfs *out)
{
    return disguise(syscall(SYS_fstatfs, fd, out), out);
}
