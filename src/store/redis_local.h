#pragma once

#include "store/copies.h"
#include "store/redis_operation.h"
#include "store/redis_record.h"
#include "store/redis_settings.h"

namespace idempotency {

/*
 * Copies of finished records on this host, for all its workers.  A claim is
 * answered with the copy, and Redis is not asked.  A copy says only what Redis
 * has said or acknowledged, and not longer than the record and "local_ttl"
 * last.
 */
class local_copies {
public:
    /* Null: the reason is logged. */
    static local_copies *make(ngx_conf_t *cf, const local_settings &how);

    explicit local_copies(ngx_msec_t ttl) : ttl_(ttl) {}

    /* False: there is none, ask Redis. */
    bool answer(const claim &what, claim_waiter &waiter);

    /* Redis has said this, or stored it. */
    void found(const operation &op, const redis_record &record,
               const claim_answer &answer);
    void completed(const operation &op);

    /* An administrator has changed the record. */
    void drop(const record_id &name);

    /* What operations are to have as_of; the same for all processes. */
    static std::uint64_t now();

private:
    class lock;

    static ngx_int_t init_zone(ngx_shm_zone_t *shm, void *data);

    bool find(const claim &what, std::span<std::uint8_t> room,
              claim_answer &answer, std::size_t &size);

    ngx_msec_t ttl_;
    ngx_slab_pool_t *pool_ = nullptr;
    copies *copies_ = nullptr;
};

}
