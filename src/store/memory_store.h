#pragma once

#include "ngx.h"
#include "store/memory.h"
#include "store/memory_sync.h"
#include "store/zone_file.h"

namespace idempotency {

/*
 * A store in a shared zone.  Made while the configuration is read, it finds
 * its zone when nginx has mapped it, and is the same for all workers after
 * the fork.  Every call is one hold of the zone's own mutex: nginx's, which
 * the master frees when a worker dies in it, or the one in the file, which
 * the system frees.  Of nginx's zone a store on a file uses the name only: it
 * leads from one configuration to the next.
 */
class memory_store final : public store {
public:
    memory_store(ngx_cycle_t *cycle, ngx_shm_zone_t *shm,
                 const memory_settings &how)
        : cycle_(cycle), shm_(shm), settings_(how), sync_(*this, settings_)
    {}

    ~memory_store();

    void claim_record(const claim &what, claim_waiter &waiter) override;
    void complete(const ownership &whose, const completion &how,
                  settle_waiter *waiter) override;
    void release(const ownership &whose, settle_waiter *waiter) override;
    void mark_unknown(const ownership &whose, std::uint64_t keep,
                      settle_waiter *waiter) override;
    void renew(const ownership &whose, settle_waiter &waiter) override;

    /* For administrators: memory_admin.cpp */
    void look_up(const record_id &name, admin_waiter &waiter) override;
    void list_unknown(std::uint64_t from, admin_waiter &waiter) override;
    void settle_unknown(const record_id &name, const admin_settlement &how,
                        admin_waiter &waiter) override;

    /* Every answer comes inside the call, but for those of a file's disk. */
    void forget(admin_waiter &) override {}
    void forget(claim_waiter &waiter) override { sync_.forget(waiter); }
    void forget(settle_waiter &waiter) override { sync_.forget(waiter); }

    std::size_t capacity() const override { return settings_.size; }
    std::string_view kind() const override { return "memory"; }
    bool usage(store_usage &out) override;

    void start() override;
    void stop() override;

    /* On reload old is the store of this name before. */
    ngx_int_t init_zone(memory_store *old);

    /* Records there are; for a store that is about to go. */
    std::size_t count();
    bool is_on_file() const { return settings_.file.len != 0; }
    ngx_str_t &file() { return settings_.file; }

private:
    friend class zone_lock;

    /* How it gets its zone: memory_open.cpp */
    ngx_int_t init_memory(memory_store *old);
    ngx_int_t init_file(memory_store *old);
    ngx_int_t refuse_change(const char *what);
    void say_opened(const zone_file_report &found);
    ngx_shm_zone_t *find_predecessor() const;
    ngx_int_t format();

    template <typename Edit>
    settle_result settle(Edit edit);

    static void sweep(ngx_event_t *event);
    bool sweep_some(zone &z);
    void tell(const zone_notice &notice);
    std::uint64_t now() const;

    ngx_cycle_t *cycle_;
    ngx_shm_zone_t *shm_;
    memory_settings settings_;
    ngx_slab_pool_t *pool_ = nullptr;
    zone_file *file_ = nullptr;
    zone *zone_ = nullptr;
    own_event sweeper_ = {};
    memory_sync sync_;
};

}
