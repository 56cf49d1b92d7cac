#include "store/counters.h"

#include <algorithm>

namespace idempotency {

namespace {

/* The system gives only the pages that are used. */
constexpr std::size_t memory_size = 8 * 1024 * 1024;

constexpr std::size_t cache_line = 64;
constexpr std::size_t slot_size = (std::max<std::size_t>(zone_count::end,
                                                         store_count::end)
                                       * sizeof(std::uint64_t)
                                   + cache_line - 1)
                                  / cache_line * cache_line;

/* For numbers that have no place in shared memory. */
std::uint64_t nowhere[slot_size / sizeof(std::uint64_t)];

}


/* In shared memory, followed by the name and the slots. */
struct counter_block {
    counter_block *next;
    counters::kind kind;
    std::size_t name_length;
    std::size_t slot_count;

    /* Of a store; under the mutex of the memory. */
    u_char reason[128];
    std::size_t reason_length;

    u_char *name() { return reinterpret_cast<u_char *>(this + 1); }

    static std::size_t head_size(std::size_t name_length)
    {
        return (sizeof(counter_block) + name_length + cache_line - 1)
               / cache_line * cache_line;
    }
};


namespace {

std::uint64_t *values_of(counter_block *block, std::size_t slot);
counter_block *&first_block(ngx_slab_pool_t *pool);
std::size_t worker_count(ngx_cycle_t *cycle);
ngx_int_t init_memory(ngx_shm_zone_t *shm, void *data);


class lock {
public:
    explicit lock(ngx_slab_pool_t *pool) : pool_(pool)
    {
        ngx_shmtx_lock(&pool_->mutex);
    }

    ~lock() { ngx_shmtx_unlock(&pool_->mutex); }

    lock(const lock &) = delete;
    lock &operator=(const lock &) = delete;

private:
    ngx_slab_pool_t *pool_;
};

}


/* What a configuration counts; the shared memory finds its places. */
class counter_memory {
public:
    const ngx_array_t *zones;
    const ngx_array_t *stores;
    ngx_cycle_t *cycle;

    void bind(ngx_slab_pool_t *pool, std::size_t workers, ngx_log_t *log);

private:
    static void bind(counters &c, ngx_slab_pool_t *pool, std::size_t workers,
                     ngx_log_t *log);
    static counter_block *find(const counters &c, ngx_slab_pool_t *pool);
    static counter_block *make_block(const counters &c, ngx_slab_pool_t *pool,
                                     std::size_t workers);
};


ngx_int_t
add_counter_memory(ngx_conf_t *cf, const ngx_array_t *zones,
                   const ngx_array_t *stores)
{
    /* No store can have this name: those have a colon. */
    ngx_str_t name = ngx_string("idempotency_counters");
    ngx_shm_zone_t *shm = ngx_shared_memory_add(cf, &name, memory_size,
                                                &ngx_http_idempotency_module);
    auto *memory = make<counter_memory>(cf->pool);

    if (shm == nullptr || memory == nullptr) {
        return NGX_ERROR;
    }

    memory->zones = zones;
    memory->stores = stores;
    memory->cycle = cf->cycle;
    shm->init = init_memory;
    shm->data = memory;

    return NGX_OK;
}


counters::counters(kind what, const ngx_str_t &name)
    : kind_(what), name_(name), mine_(nowhere)
{}


void
counters::observe(std::size_t first, const histogram_bounds &bounds,
                  std::uint64_t ms)
{
    auto bucket = static_cast<std::size_t>(
        std::lower_bound(std::begin(bounds), std::end(bounds), ms)
        - std::begin(bounds));

    add(first + bucket);

    if (ms != 0) {
        add(first + bound_count + 1, ms);
    }
}


std::uint64_t
counters::sum(std::size_t which) const
{
    std::uint64_t total = 0;

    for (std::size_t i = 0; block_ != nullptr && i < block_->slot_count; i++) {
        total += std::atomic_ref(values_of(block_, i)[which])
                     .load(std::memory_order_relaxed);
    }

    return total;
}


void
counters::start_worker()
{
    if (block_ == nullptr) {
        return;
    }

    mine_ = values_of(block_, ngx_worker);

    if (kind_ == kind::store) {
        set_available();
    }
}


/* A worker that shuts down must not speak for the one that replaces it. */
void
counters::set_available()
{
    if (!ngx_exiting) {
        std::atomic_ref(mine_[store_count::unavailable]).store(0);
    }
}


void
counters::set_unavailable(const char *why)
{
    if (block_ == nullptr || ngx_exiting) {
        return;
    }

    lock guard(pool_);

    block_->reason_length = std::min(ngx_strlen(why), sizeof(block_->reason));
    ngx_memcpy(block_->reason, why, block_->reason_length);
    std::atomic_ref(mine_[store_count::unavailable]).store(1);
}


/* Slots of workers that are no more say nothing. */
ngx_uint_t
counters::workers_without(ngx_str_t &why, ngx_pool_t *pool) const
{
    ngx_uint_t without = 0;

    ngx_str_set(&why, "");

    if (block_ == nullptr) {
        return 0;
    }

    std::size_t workers = std::min(
        worker_count(const_cast<ngx_cycle_t *>(ngx_cycle)),
        block_->slot_count);

    for (std::size_t i = 0; i < workers; i++) {
        without += std::atomic_ref(
                       values_of(block_, i)[store_count::unavailable])
                       .load();
    }

    if (without != 0) {
        auto copy = make_array<u_char>(pool, sizeof(block_->reason));
        lock guard(pool_);

        if (copy.data() != nullptr) {
            why = {block_->reason_length, copy.data()};
            ngx_memcpy(why.data, block_->reason, why.len);
        }
    }

    return without;
}


void
counter_memory::bind(ngx_slab_pool_t *pool, std::size_t workers,
                     ngx_log_t *log)
{
    for (counters *c : elements<counters *>(zones)) {
        bind(*c, pool, workers, log);
    }

    for (counters *c : elements<counters *>(stores)) {
        bind(*c, pool, workers, log);
    }
}


/* Without memory the rest of the module works as ever. */
void
counter_memory::bind(counters &c, ngx_slab_pool_t *pool, std::size_t workers,
                     ngx_log_t *log)
{
    lock guard(pool);

    c.pool_ = pool;
    c.block_ = find(c, pool);

    if (c.block_ == nullptr) {
        c.block_ = make_block(c, pool, workers);
    }

    if (c.block_ == nullptr) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "idempotency: no memory left to count in status zone "
                      "\"%V\"; use fewer names in \"idempotency_status_zone\"",
                      &c.name_);
    }
}


counter_block *
counter_memory::find(const counters &c, ngx_slab_pool_t *pool)
{
    for (counter_block *b = first_block(pool); b != nullptr; b = b->next) {
        ngx_str_t name = {b->name_length, b->name()};

        if (b->kind == c.kind_ && view(name) == view(c.name_)) {
            return b;
        }
    }

    return nullptr;
}


counter_block *
counter_memory::make_block(const counters &c, ngx_slab_pool_t *pool,
                           std::size_t workers)
{
    std::size_t size = counter_block::head_size(c.name_.len)
                       + workers * slot_size;
    void *memory = ngx_slab_calloc_locked(pool, size);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *block = ::new (memory) counter_block{};

    block->kind = c.kind_;
    block->name_length = c.name_.len;
    block->slot_count = workers;
    ngx_memcpy(block->name(), c.name_.data, c.name_.len);
    block->next = first_block(pool);
    first_block(pool) = block;

    return block;
}


namespace {

std::uint64_t *
values_of(counter_block *block, std::size_t slot)
{
    auto *start = reinterpret_cast<unsigned char *>(block)
                  + counter_block::head_size(block->name_length);

    return reinterpret_cast<std::uint64_t *>(
        start + slot % block->slot_count * slot_size);
}


counter_block *&
first_block(ngx_slab_pool_t *pool)
{
    return *static_cast<counter_block **>(pool->data);
}


std::size_t
worker_count(ngx_cycle_t *cycle)
{
    auto *core = reinterpret_cast<ngx_core_conf_t *>(
        ngx_get_conf(cycle->conf_ctx, ngx_core_module));

    return static_cast<std::size_t>(ngx_max(core->worker_processes, 1));
}


ngx_int_t
init_memory(ngx_shm_zone_t *shm, void *data)
{
    auto *pool = reinterpret_cast<ngx_slab_pool_t *>(shm->shm.addr);
    auto *memory = static_cast<counter_memory *>(shm->data);

    if (data == nullptr) {
        pool->log_nomem = 0;
        pool->data = ngx_slab_calloc(pool, sizeof(counter_block *));

        if (pool->data == nullptr) {
            return NGX_ERROR;
        }
    }

    memory->bind(pool, worker_count(memory->cycle), shm->shm.log);

    return NGX_OK;
}

}

}
