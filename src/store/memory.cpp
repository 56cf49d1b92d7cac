#include "store/memory.h"

#include "store/zone.h"

#include <openssl/rand.h>

#include <ctime>

namespace idempotency {

namespace {

constexpr ngx_msec_t sweep_interval = 5000;
constexpr ngx_msec_t sweep_again = 10;
constexpr std::size_t sweep_limit = 256;


/*
 * A store in a shared zone.  Made while the configuration is read, it finds
 * its zone when nginx has mapped it, and is the same for all workers after
 * the fork.  Every call is one hold of the zone's
 * own mutex: the only one that the master frees when a worker dies in it.
 */
class memory_store final : public store {
public:
    explicit memory_store(ngx_shm_zone_t *shm) : shm_(shm) {}

    void claim_record(const claim &what, claim_waiter &waiter) override;
    void complete(const ownership &whose, const completion &how,
                  settle_waiter *waiter) override;
    void release(const ownership &whose, settle_waiter *waiter) override;
    void mark_unknown(const ownership &whose, std::uint64_t keep,
                      settle_waiter *waiter) override;
    void renew(const ownership &whose, settle_waiter &waiter) override;

    /* Every answer comes inside the call. */
    void forget(claim_waiter &) override {}
    void forget(settle_waiter &) override {}

    void start() override;
    void stop() override { sweeper_.stop(); }

    ngx_int_t init_zone(memory_store *old);

private:
    friend class lock;

    static void sweep(ngx_event_t *event);
    ngx_shm_zone_t *find_predecessor() const;
    ngx_int_t format();
    void tell(const zone_notice &notice);

    ngx_shm_zone_t *shm_;
    ngx_slab_pool_t *pool_ = nullptr;
    zone *zone_ = nullptr;
    own_event sweeper_ = {};
};


/*
 * The zone under its mutex.  A worker may have been killed while it changed
 * the zone: the next worker to come repairs it.  As lock(store)->call() the
 * mutex is held for the one call, and is free when its result is used.
 */
class lock {
public:
    explicit lock(memory_store &store) : store_(store)
    {
        ngx_shmtx_lock(&store_.pool_->mutex);

        if (store_.zone_->dirty()) {
            repaired_ = true;
            found_ = store_.zone_->recover();
        }
    }

    ~lock()
    {
        ngx_shmtx_unlock(&store_.pool_->mutex);

        if (repaired_) {
            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "idempotency: zone \"%V\" repaired after a worker "
                          "died: %uz records intact, %uz without response",
                          &store_.shm_->shm.name,
                          found_.records - found_.without_response,
                          found_.without_response);
        }
    }

    lock(const lock &) = delete;
    lock &operator=(const lock &) = delete;

    zone *operator->() { return store_.zone_; }

private:
    memory_store &store_;
    bool repaired_ = false;
    zone_recovery found_ = {};
};


ngx_int_t init_shm_zone(ngx_shm_zone_t *shm, void *data);
void answer(settle_waiter *waiter, settle_result result);
const char *in_words(std::span<char> out, const char *what,
                     std::uint64_t milliseconds);
std::uint64_t now();

}


store *
make_memory_store(ngx_conf_t *cf, const ngx_str_t &name, std::size_t size)
{
    constexpr std::string_view prefix = "idempotency:";
    ngx_str_t zone_name;

    /* Zones of all modules share one space of names. */
    zone_name.len = prefix.size() + name.len;
    zone_name.data = static_cast<u_char *>(
        ngx_pnalloc(cf->pool, zone_name.len));

    if (zone_name.data == nullptr) {
        return nullptr;
    }

    ngx_memcpy(ngx_cpymem(zone_name.data, prefix.data(), prefix.size()),
               name.data, name.len);

    ngx_shm_zone_t *shm = ngx_shared_memory_add(cf, &zone_name, size,
                                                &ngx_http_idempotency_module);

    if (shm == nullptr) {
        return nullptr;
    }

    auto *made = make<memory_store>(cf->pool, shm);

    shm->init = init_shm_zone;
    shm->data = made;

    return made;
}


namespace {

ngx_int_t
init_shm_zone(ngx_shm_zone_t *shm, void *data)
{
    return static_cast<memory_store *>(shm->data)->init_zone(
        static_cast<memory_store *>(data));
}


ngx_int_t
memory_store::init_zone(memory_store *old)
{
    pool_ = reinterpret_cast<ngx_slab_pool_t *>(shm_->shm.addr);

    if (old != nullptr) {
        zone_ = old->zone_;
        return NGX_OK;
    }

    ngx_shm_zone_t *other = find_predecessor();

    if (other != nullptr && other->shm.size != shm_->shm.size) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" cannot change its size from "
                      "%uz to %uz bytes on reload, its records would be lost: "
                      "restart nginx or rename the store to start with an "
                      "empty zone",
                      &shm_->shm.name, other->shm.size, shm_->shm.size);
        return NGX_ERROR;
    }

    if (other != nullptr) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" was created by another build "
                      "of the module, its records would be lost on reload: "
                      "restart nginx or rename the store to start with an "
                      "empty zone",
                      &shm_->shm.name);
        return NGX_ERROR;
    }

    if (format() != NGX_OK) {
        ngx_log_error(NGX_LOG_EMERG, shm_->shm.log, 0,
                      "idempotency: zone \"%V\" cannot be initialized, "
                      "%uz bytes may be too small",
                      &shm_->shm.name, shm_->shm.size);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * On reload nginx silently gives new memory to a zone of another size, or of
 * another build of the module.
 */
ngx_shm_zone_t *
memory_store::find_predecessor() const
{
    ngx_shm_zone_t *found = nullptr;

    each<ngx_shm_zone_t>(const_cast<ngx_cycle_t *>(ngx_cycle)->shared_memory,
                         [&](ngx_shm_zone_t &other) {
                             if (view(other.shm.name) == view(shm_->shm.name))
                             {
                                 found = &other;
                             }
                         });

    return found;
}


ngx_int_t
memory_store::format()
{
    std::uint64_t seed;

    /* One piece, all there is: a zone manages its memory itself. */
    std::size_t size = pool_->pfree << ngx_pagesize_shift;
    void *region = ngx_slab_alloc(pool_, size);

    if (region == nullptr
        || RAND_bytes(reinterpret_cast<unsigned char *>(&seed), sizeof(seed))
               != 1)
    {
        return NGX_ERROR;
    }

    zone_ = zone::format(region, size, seed);
    pool_->data = region;

    return zone_ != nullptr ? NGX_OK : NGX_ERROR;
}


void
memory_store::start()
{
    sweeper_.init(this, sweep, ngx_cycle->log);
    sweeper_.event.cancelable = 1;
    ngx_add_timer(&sweeper_.event, sweep_interval);
}


void
memory_store::sweep(ngx_event_t *event)
{
    auto *self = own_event::owner_of<memory_store>(event);
    std::size_t reclaimed = lock(*self)->expire(now(), sweep_limit);

    if (!ngx_exiting) {
        ngx_add_timer(event,
                      reclaimed == sweep_limit ? sweep_again : sweep_interval);
    }
}


void
memory_store::claim_record(const claim &what, claim_waiter &waiter)
{
    std::span<std::uint8_t> room;
    zone_answer answer;
    zone_notice notice;

    /*
     * The zone says how much room a response needs.  Memory for it is not
     * allocated under the lock, so the claim is repeated with enough of it.
     */
    for (;;) {
        {
            lock locked(*this);
            answer = locked->claim(what, now(), room);

            if (answer.result != claim_result::found) {
                notice = locked->notice(now());
            }
        }

        if (answer.response_size <= room.size()) {
            break;
        }

        std::uint8_t *bytes = waiter.room(waiter, answer.response_size);

        if (bytes == nullptr) {
            answer.result = claim_result::unreadable;
            break;
        }

        room = {bytes, answer.response_size};
    }

    tell(notice);
    waiter.answered(waiter, answer);
}


void
memory_store::complete(const ownership &whose, const completion &how,
                       settle_waiter *waiter)
{
    settle_result result;
    zone_notice notice;

    {
        lock locked(*this);
        result = locked->complete(whose, how, now());
        notice = locked->notice(now());
    }

    tell(notice);
    answer(waiter, result);
}


void
memory_store::release(const ownership &whose, settle_waiter *waiter)
{
    settle_result result = lock(*this)->release(whose, now());

    answer(waiter, result);
}


void
memory_store::mark_unknown(const ownership &whose, std::uint64_t keep,
                           settle_waiter *waiter)
{
    settle_result result = lock(*this)->mark_unknown(whose, keep, now());

    answer(waiter, result);
}


void
memory_store::renew(const ownership &whose, settle_waiter &waiter)
{
    settle_result result = lock(*this)->renew(whose, now());

    answer(&waiter, result);
}


void
answer(settle_waiter *waiter, settle_result result)
{
    if (waiter != nullptr) {
        waiter->settled(*waiter, result);
    }
}


/* The zone says each thing once, to one of the workers. */
void
memory_store::tell(const zone_notice &notice)
{
    constexpr const char *advice = "increase its size or shorten "
                                   "\"idempotency_ttl\"";
    char left[64];
    ngx_log_t *log = ngx_cycle->log;
    ngx_str_t *name = &shm_->shm.name;

    switch (notice.what) {

    case zone_event::none: break;

    case zone_event::filling:
        ngx_log_error(
            NGX_LOG_WARN, log, 0,
            "idempotency: zone \"%V\" is 80%% full%s; when it is "
            "full, the oldest responses are dropped: %s",
            name,
            in_words(left, ", at the present rate it is full", notice.left),
            advice);
        break;

    case zone_event::dropping:
        ngx_log_error(
            NGX_LOG_WARN, log, 0,
            "idempotency: zone \"%V\" is full, the oldest responses "
            "are dropped (a retry gets \"response_not_kept\"), "
            "%uL since the last such line; what cannot be dropped "
            "takes %uz%% of the zone%s: %s",
            name, notice.count, notice.facts,
            in_words(left, ", at the present rate all of it", notice.left),
            advice);
        break;

    case zone_event::not_fitting:
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "idempotency: zone \"%V\" is full, responses are not "
                      "stored (a retry gets \"response_not_kept\"): %s",
                      name, advice);
        break;

    case zone_event::refusing:
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "idempotency: zone \"%V\" is full, new keys cannot be "
                      "stored (\"store_unavailable\"): %s",
                      name, advice);
        break;
    }
}


/* What and when, in the largest unit that is not too coarse; or nothing. */
const char *
in_words(std::span<char> out, const char *what, std::uint64_t milliseconds)
{
    struct unit {
        std::uint64_t seconds;
        const char *name;
    };

    constexpr unit units[] = {
        {86400, "days"}, {3600, "hours"}, {60, "minutes"}, {1, "seconds"}};

    if (milliseconds == forever) {
        return "";
    }

    std::uint64_t seconds = milliseconds / 1000;
    const unit *u = units;

    while (u->seconds > 1 && seconds < 2 * u->seconds) {
        ++u;
    }

    u_char *end = ngx_snprintf(reinterpret_cast<u_char *>(out.data()),
                               out.size() - 1, "%s in %uL %s", what,
                               seconds / u->seconds, u->name);

    *end = '\0';

    return out.data();
}


std::uint64_t
now()
{
    timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return static_cast<std::uint64_t>(ts.tv_sec) * 1000
           + static_cast<std::uint64_t>(ts.tv_nsec) / 1000000;
}

}

}
