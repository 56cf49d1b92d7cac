#pragma once

#include <pthread.h>

#include <cstdint>

namespace idempotency {

class zone_file;


/*
 * Writes a zone's file to its disk in a thread of its own, since that takes
 * as long as the disk likes.  Made by a worker when it begins, ended by it
 * when it leaves.  One flush serves all who asked before it began.
 */
class flusher {
public:
    /* A flush has a number; whoever asks gets the one to wait for. */
    using number = std::uint64_t;

    struct progress {
        number done = 0;   /* this one and all before have ended */
        number failed = 0; /* so have this and all since the last look() */
        int error = 0;     /* of the last flush of all */
    };

    /* False: errno says why. */
    bool start(zone_file &file);

    /* What was asked for is done first. */
    void stop();

    /* All that was written so far is to reach the disk. */
    number ask();

    /* Readable when there was progress; look() makes it unreadable again. */
    int descriptor() const { return fd_; }
    progress look();

    bool is_running() const { return fd_ >= 0; }

private:
    static void *run(void *self);
    void work();
    int flush();

    int fd_ = -1;
    zone_file *file_ = nullptr;
    pthread_t thread_ = {};
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wanted_ = PTHREAD_COND_INITIALIZER;
    number asked_ = 0;
    bool stopping_ = false;
    progress progress_ = {};
};

}
