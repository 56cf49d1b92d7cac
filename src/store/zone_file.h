#pragma once

#include "store/zone.h"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace idempotency {

struct zone_file_settings {
    const char *path;
    std::size_t size;
    uid_t owner;
    gid_t group;
};


/* Why a file cannot be used: words, and the system's error or 0. */
struct zone_file_error {
    const char *reason = nullptr;
    int code = 0;
    std::size_t size = 0; /* that the file has, where it matters */
};


/* What was found at the first opening. */
struct zone_file_report {
    bool created = false;
    bool grown = false;
    bool after_boot = false; /* all was verified */
    zone_damage damage = {};
};


/*
 * A zone in a mapped file.  Opened by the master while it has no other
 * users, it is shared by all processes that are forked afterwards, and by the
 * next binary of an upgrade, which inherits the descriptor.  The lock on the
 * descriptor keeps every other nginx out.  The mutex is in the file: the
 * system frees it when its owner dies, whoever started that process.
 */
class zone_file {
public:
    /* Null: e says why. */
    static zone_file *open(const zone_file_settings &how, zone_file_error &e,
                           zone_file_report &report);

    /* As open(), but nothing is made, changed or locked. */
    static bool test(const zone_file_settings &how, zone_file_error &e);

    void retain() { ++users_; }
    void release();

    zone *records() { return zone_; }
    std::size_t size() const { return size_; }

    void lock();
    void unlock();

    /*
     * Milliseconds that go on over a restart, and over a reboot by as much
     * as the host's clock went on, but no more than an hour.
     */
    std::uint64_t now() const;

    /* Notes the time for the next boot. */
    void note_time();

    int descriptor() const { return fd_; }

private:
    zone_file() = default;
    ~zone_file() = default;

    bool prepare(const zone_file_settings &how, bool alone, zone_file_error &e,
                 zone_file_report &report);
    bool begin(std::size_t available, zone_file_error &e,
               zone_file_report &report);
    bool make_mutex();
    bool set_clock();

    int fd_ = -1;
    std::size_t size_ = 0;
    void *region_ = nullptr;
    zone *zone_ = nullptr;
    unsigned users_ = 1;
};

}
