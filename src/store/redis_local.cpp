#include "store/redis_local.h"

#include <openssl/rand.h>

#include <algorithm>
#include <ctime>

namespace idempotency {

namespace {

copies *format(ngx_slab_pool_t *pool);
bool is_finished(record_state state);

}


/* The copies under their mutex; a worker may have died while it wrote. */
class local_copies::lock {
public:
    explicit lock(local_copies &all) : all_(all)
    {
        ngx_shmtx_lock(&all_.pool_->mutex);

        if (all_.copies_->dirty()) {
            all_.copies_->clear();
        }
    }

    ~lock() { ngx_shmtx_unlock(&all_.pool_->mutex); }

    lock(const lock &) = delete;
    lock &operator=(const lock &) = delete;

    copies *operator->() { return all_.copies_; }

private:
    local_copies &all_;
};


local_copies *
local_copies::make(ngx_conf_t *cf, const local_settings &how)
{
    ngx_str_t name = how.zone;
    ngx_shm_zone_t *shm = ngx_shared_memory_add(cf, &name, how.size,
                                                &ngx_http_idempotency_module);
    auto *made = idempotency::make<local_copies>(cf->pool, how.ttl);

    if (shm == nullptr || made == nullptr) {
        return nullptr;
    }

    shm->init = init_zone;
    shm->data = made;

    return made;
}


/* Of another size, nginx gives it new memory: it starts empty. */
ngx_int_t
local_copies::init_zone(ngx_shm_zone_t *shm, void *data)
{
    auto *self = static_cast<local_copies *>(shm->data);
    auto *old = static_cast<local_copies *>(data);

    self->pool_ = reinterpret_cast<ngx_slab_pool_t *>(shm->shm.addr);
    self->copies_ = old != nullptr ? old->copies_ : format(self->pool_);

    if (self->copies_ == nullptr) {
        ngx_log_error(NGX_LOG_EMERG, shm->shm.log, 0,
                      "idempotency: zone \"%V\" cannot be initialized",
                      &shm->shm.name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


bool
local_copies::answer(const claim &what, claim_waiter &waiter)
{
    claim_answer answer;
    std::span<std::uint8_t> room;
    std::size_t size;

    /* No memory is allocated under the lock: it may be found a second time. */
    while (find(what, room, answer, size)) {

        if (size <= room.size()) {
            waiter.answered(waiter, answer);
            return true;
        }

        std::uint8_t *memory = waiter.room(waiter, size);

        if (memory == nullptr) {
            return false;
        }

        room = {memory, size};
    }

    return false;
}


/* The response is copied if there is room for it. */
bool
local_copies::find(const claim &what, std::span<std::uint8_t> room,
                   claim_answer &answer, std::size_t &size)
{
    finished_record record;
    std::span<const std::uint8_t> response;
    std::uint64_t time = now();
    lock locked(*this);

    if (!locked->find(what.name, record, response)) {
        return false;
    }

    std::uint64_t elapsed = time - std::min(time, record.as_of);

    if (elapsed >= std::min<std::uint64_t>(ttl_, record.remaining)) {
        return false;
    }

    answer.result = claim_result::found;
    answer.from_copy = true;
    answer.state = record.state;
    answer.same_fingerprint = record.fingerprint == what.fingerprint;
    answer.attempt = record.attempt;
    answer.age = record.age + elapsed;
    answer.remaining = record.remaining == forever
                           ? forever
                           : record.remaining - elapsed;

    /* Of a record with another fingerprint nothing is shown. */
    size = answer.same_fingerprint ? response.size() : 0;

    if (size <= room.size()) {
        std::copy_n(response.data(), size, room.data());
        answer.response = room.first(size);
    }

    return true;
}


void
local_copies::found(const operation &op, const redis_record &record,
                    const claim_answer &answer)
{
    if (!is_finished(record.state)) {
        return;
    }

    std::uint64_t time = now();
    std::uint64_t since_asked = time - op.as_of;
    finished_record copy = {
        .state = record.state,
        .attempt = record.attempt,
        .fingerprint = record.fingerprint,
        .as_of = op.as_of,
        .age = answer.age - std::min(answer.age, since_asked),
        .remaining = answer.remaining,
    };

    lock(*this)->put(op.whose.name, copy, {&record.response, 1}, time);
}


/* How long a late one has been stored is not known: Redis is asked for it. */
void
local_copies::completed(const operation &op)
{
    if (op.late.state != lateness::on_time) {
        return;
    }

    finished_record copy = {
        .state = op.state,
        .attempt = op.whose.attempt,
        .fingerprint = op.whose.fingerprint,
        .as_of = op.as_of,
        .age = 0,
        .remaining = op.expiry >= redis_longest ? forever : op.expiry,
    };

    lock(*this)->put(op.whose.name, copy, op.response, now());
}


void
local_copies::drop(const record_id &name)
{
    lock(*this)->drop(name, now());
}


std::uint64_t
local_copies::now()
{
    timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return static_cast<std::uint64_t>(ts.tv_sec) * 1000
           + static_cast<std::uint64_t>(ts.tv_nsec) / 1000000;
}


namespace {

copies *
format(ngx_slab_pool_t *pool)
{
    std::uint64_t seed;

    /* One piece, all there is. */
    std::size_t size = pool->pfree << ngx_pagesize_shift;
    void *region = ngx_slab_alloc(pool, size);

    if (region == nullptr
        || RAND_bytes(reinterpret_cast<unsigned char *>(&seed), sizeof(seed))
               != 1)
    {
        return nullptr;
    }

    return copies::format(region, size, seed);
}


bool
is_finished(record_state state)
{
    return state == record_state::completed || state == record_state::not_kept;
}

}

}
