#include "store/flusher.h"

#include "store/zone_file.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace idempotency {

namespace {

class held {
public:
    explicit held(pthread_mutex_t &mutex) : mutex_(mutex)
    {
        pthread_mutex_lock(&mutex_);
    }

    ~held() { pthread_mutex_unlock(&mutex_); }

    held(const held &) = delete;
    held &operator=(const held &) = delete;

private:
    pthread_mutex_t &mutex_;
};

}


bool
flusher::start(zone_file &file)
{
    sigset_t all, before;

    file_ = &file;
    fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    if (fd_ < 0) {
        return false;
    }

    /* Signals are for the thread that has the event loop. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&thread_, nullptr, run, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);

    if (code != 0) {
        close(fd_);
        fd_ = -1;
        errno = code;
        return false;
    }

    return true;
}


void
flusher::stop()
{
    if (!is_running()) {
        return;
    }

    {
        held hold(mutex_);
        stopping_ = true;
        pthread_cond_signal(&wanted_);
    }

    pthread_join(thread_, nullptr);
    close(fd_);
    fd_ = -1;
}


flusher::number
flusher::ask()
{
    held hold(mutex_);

    ++asked_;
    pthread_cond_signal(&wanted_);

    return asked_;
}


flusher::progress
flusher::look()
{
    std::uint64_t count;
    ssize_t n = read(fd_, &count, sizeof(count));

    static_cast<void>(n); /* nothing new is good, too */

    held hold(mutex_);
    progress seen = progress_;

    progress_.failed = 0;

    return seen;
}


void *
flusher::run(void *self)
{
    static_cast<flusher *>(self)->work();
    return nullptr;
}


/* The one after a failure costs more: it must not be all that is done. */
int
flusher::flush()
{
    if (progress_.error != 0) {
        usleep(file_->pause());
    }

    return file_->flush();
}


void
flusher::work()
{
    held hold(mutex_);

    for (;;) {

        while (asked_ == progress_.done && !stopping_) {
            pthread_cond_wait(&wanted_, &mutex_);
        }

        if (asked_ == progress_.done) {
            return;
        }

        number next = asked_;

        pthread_mutex_unlock(&mutex_);
        int error = flush();
        pthread_mutex_lock(&mutex_);

        if (error != 0) {
            progress_.failed = next;
        }

        progress_.done = next;
        progress_.error = error;

        std::uint64_t one = 1;
        ssize_t n = write(fd_, &one, sizeof(one));

        static_cast<void>(n); /* it is readable, or becomes so */
    }
}

}
