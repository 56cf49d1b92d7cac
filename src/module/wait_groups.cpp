#include "module/wait_groups.h"

#include "module/context.h"

#include <openssl/rand.h>

#include <cstring>

namespace idempotency {

namespace {

constexpr ngx_msec_t first_step = 10;
constexpr unsigned first_bits = 8;

/*
 * The groups of this worker by the names of their records.  A client chooses
 * its keys; the seed is secret, so that nobody can choose many that share a
 * bucket.  The table grows with the groups, and stays as large as it was.
 */
struct {
    ngx_queue_t *buckets;
    ngx_queue_t first[1 << first_bits];
    unsigned bits;
    std::size_t groups;
    std::uint64_t seed;
} table;


void grow_table();

}


void
init_waiting()
{
    for (ngx_queue_t &bucket : table.first) {
        ngx_queue_init(&bucket);
    }

    table.buckets = table.first;
    table.bits = first_bits;
    table.groups = 0;

    /* Without random bytes there would be no token either. */
    RAND_bytes(reinterpret_cast<unsigned char *>(&table.seed),
               sizeof(table.seed));
    table.seed |= 1;
}


wait_group *
find_group(const context &ctx)
{
    wait_group *found = nullptr;

    each_group(ctx.claim.own.name, [&](wait_group *group) {
        if (group->fingerprint == ctx.body.fingerprint
            && group->conf == ctx.conf) {
            found = group;
        }
    });

    return found;
}


wait_group *
make_group(const context &ctx, ngx_event_handler_pt poll)
{
    void *memory = ngx_alloc(sizeof(wait_group), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *group = ::new (memory) wait_group{};

    group->name = ctx.claim.own.name;
    group->fingerprint = ctx.body.fingerprint;
    group->conf = ctx.conf;
    group->step = first_step;
    group->last.result = claim_result::found;
    group->last.same_fingerprint = true;
    group->poll.init(group, poll, ngx_cycle->log);
    ngx_queue_init(&group->waiters);

    if (table.groups >= std::size_t{1} << table.bits) {
        grow_table();
    }

    ngx_queue_insert_tail(groups_near(group->name), &group->link);
    table.groups++;

    return group;
}


void
end_group(wait_group *group)
{
    group->poll.stop();
    ngx_queue_remove(&group->link);
    table.groups--;
    ngx_free(group);
}


ngx_queue_t *
groups_near(const digest &name)
{
    std::uint64_t word;

    std::memcpy(&word, name.data(), sizeof(word));

    return &table.buckets[(word * table.seed) >> (64 - table.bits)];
}


namespace {

/* If there is no memory the buckets only get longer. */
void
grow_table()
{
    ngx_queue_t *old = table.buckets;
    std::size_t count = std::size_t{1} << table.bits;
    auto *larger = static_cast<ngx_queue_t *>(
        ngx_alloc(2 * count * sizeof(ngx_queue_t), ngx_cycle->log));

    if (larger == nullptr) {
        return;
    }

    for (std::size_t i = 0; i < 2 * count; i++) {
        ngx_queue_init(&larger[i]);
    }

    table.buckets = larger;
    table.bits++;

    for (std::size_t i = 0; i < count; i++) {
        while (!ngx_queue_empty(&old[i])) {
            ngx_queue_t *q = ngx_queue_head(&old[i]);
            auto *group = ngx_queue_data(q, wait_group, link);

            ngx_queue_remove(q);
            ngx_queue_insert_tail(groups_near(group->name), q);
        }
    }

    if (old != table.first) {
        ngx_free(old);
    }
}

}

}
