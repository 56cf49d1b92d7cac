#pragma once

#include "store/memory_store.h"

namespace idempotency {

/*
 * The zone under its mutex.  A worker may have been killed while it changed
 * the zone: the next worker to come repairs it.  As zone_lock(store)->call()
 * the mutex is held for the one call, and is free when its result is used.
 */
class zone_lock {
public:
    explicit zone_lock(memory_store &store) : store_(store)
    {
        if (store_.file_ != nullptr) {
            store_.file_->lock();
            usable_ = store_.file_->verify();

        } else {
            ngx_shmtx_lock(&store_.pool_->mutex);
        }

        if (usable_ && store_.zone_->dirty()) {
            repaired_ = true;
            found_ = store_.zone_->recover();
        }
    }

    ~zone_lock()
    {
        if (store_.file_ != nullptr) {
            store_.file_->unlock();

        } else {
            ngx_shmtx_unlock(&store_.pool_->mutex);
        }

        if (repaired_) {
            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "idempotency: zone \"%V\" repaired after a worker "
                          "died: %uz records intact, %uz without response",
                          &store_.shm_->shm.name,
                          found_.records - found_.without_response,
                          found_.without_response);
        }
    }

    zone_lock(const zone_lock &) = delete;
    zone_lock &operator=(const zone_lock &) = delete;

    /* False: records were lost, and nothing in the zone can be trusted. */
    bool is_usable() const { return usable_; }

    /* What was read since the lock was taken is true. */
    bool is_sound() const
    {
        return store_.file_ == nullptr || store_.file_->is_sound();
    }

    zone *operator->() { return store_.zone_; }

private:
    memory_store &store_;
    bool usable_ = true;
    bool repaired_ = false;
    zone_recovery found_ = {};
};

}
