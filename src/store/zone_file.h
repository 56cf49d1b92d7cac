#pragma once

#include "store/zone.h"

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace idempotency {

struct zone_file_settings {
    const char *path;
    std::size_t size;
    uid_t owner;
    gid_t group;
    std::span<const zone_conversion> older = zone::conversions();
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
    bool converted = false;  /* from another layout */
    bool after_boot = false; /* all was verified */
    bool write_failed = false;
    zone_damage damage = {};
};


/* What the log should be told of the disk, each thing once. */
struct zone_file_news {
    int failed = 0;       /* the error of the system */
    bool written = false; /* again, all of it */
    bool lost = false;    /* what was in memory only */
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

    /* By this process. */
    static bool is_in_use(const char *path);

    void retain() { ++users_; }
    void release();

    zone *records() { return zone_; }
    std::size_t size() const { return size_; }

    /*
     * In each worker, before it uses the zone: Linux tells of a write that
     * failed once for each time that a file was opened.  False: errno says
     * why.
     */
    bool watch();

    void lock();
    void unlock();

    /*
     * Under the lock.  The system marks pages as written when their write
     * has failed, and may read old ones from the disk afterwards.  So after
     * an error the zone is verified before it is used, and all of it has to
     * be written again.  False: records are lost, nobody may use the zone.
     */
    bool verify();

    /* Under the lock: no page was lost before this call. */
    bool is_sound();

    /* Looks for a write that failed; does not wait for the disk. */
    bool has_failed();

    /* Some of the zone is not on the disk, and may never be. */
    bool is_failing() const;

    /*
     * Writes all there is to the disk, as often as is asked for; for one
     * thread of each process.  0, or the error of the system.
     */
    int flush();

    /* After flush() failed: how many microseconds the next should wait. */
    unsigned pause() const { return pause_; }

    /* For the thread that logs. */
    zone_file_news news();

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

    bool enter(const zone_file_settings &how, bool alone, zone_file_error &e,
               zone_file_report &report);
    bool convert(const zone_file_settings &how, const struct file_state &state,
                 zone_file_error &e);
    bool prepare(const zone_file_settings &how, bool alone, zone_file_error &e,
                 zone_file_report &report);
    bool begin(std::size_t available, zone_file_error &e,
               zone_file_report &report);
    bool make_mutex();
    bool set_clock();
    bool forget_errors();
    bool check_pages();
    void note_error(int code);
    void close_own();

    int fd_ = -1;
    int watched_ = -1; /* opened by this process: for the event loop, */
    int flushed_ = -1; /* and for the thread */
    std::size_t size_ = 0;
    void *region_ = nullptr;
    zone *zone_ = nullptr;
    unsigned users_ = 1;

    std::uint64_t seen_ = 0; /* changes of the zone */
    bool gave_up_ = false;
    std::atomic<unsigned> pause_ = 0;
    std::atomic<int> new_failed_ = 0;
    std::atomic<bool> new_written_ = false;
    std::atomic<bool> new_lost_ = false;
};

}
