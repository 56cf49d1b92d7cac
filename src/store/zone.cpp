#include "store/zone_layout.h"

#include <algorithm>
#include <bit>
#include <new>

namespace idempotency {

namespace {

constexpr std::size_t minimum_blocks = 8;
constexpr std::size_t cache_line = 64;

/* Besides itself, a block needs a place in the heap and up to one bucket. */
constexpr std::size_t index_size = 2 * sizeof(std::uint32_t);

/* More than the one a claim makes, or the expired would pile up. */
constexpr std::size_t expired_per_claim = 2;

}


std::size_t
zone::minimum_size()
{
    return sizeof(zone) + cache_line
           + minimum_blocks * (block_size + index_size);
}


zone *
zone::format(void *region, std::size_t size, std::uint64_t seed)
{
    layout l;

    if (!measure(region, size, l)) {
        return nullptr;
    }

    auto *z = ::new (region) zone;

    z->seed_ = seed | 1;
    z->heap_offset_ = l.heap_offset;
    z->blocks_offset_ = l.blocks_offset;
    z->block_count_ = l.block_count;
    z->bucket_bits_ = l.bucket_bits;
    z->dirty_ = 0;
    z->touched_ = 0;
    z->free_list_ = none;
    z->used_blocks_ = 0;
    z->records_ = 0;
    z->heap_size_ = 0;

    std::fill_n(z->buckets(), z->bucket_count(), none);

    return z;
}


bool
zone::measure(const void *region, std::size_t size, layout &l)
{
    if (std::bit_cast<std::uintptr_t>(region) % alignof(zone) != 0
        || size < minimum_size())
    {
        return false;
    }

    std::size_t n = (size - sizeof(zone) - cache_line)
                    / (block_size + index_size);

    l.block_count = static_cast<std::uint32_t>(
        std::min<std::size_t>(n, none - 1));

    /* The largest power of two that is not above the number of blocks. */
    l.bucket_bits = static_cast<std::uint32_t>(std::bit_width(l.block_count))
                    - 1;

    l.heap_offset = sizeof(zone)
                    + (std::size_t{1} << l.bucket_bits)
                          * sizeof(std::uint32_t);
    l.blocks_offset = l.heap_offset + l.block_count * sizeof(std::uint32_t);
    l.blocks_offset = (l.blocks_offset + cache_line - 1) / cache_line
                      * cache_line;

    return true;
}


zone_answer
zone::claim(const idempotency::claim &c, std::uint64_t now,
            std::span<std::uint8_t> out)
{
    zone_answer answer;
    std::uint32_t index = find(c.name);

    if (index != none && !is_expired(current(index).expiry, now)) {
        describe(index, c, now, answer);

        if (answer.state == record_state::unknown && c.take_over
            && answer.same_fingerprint)
        {
            take_over(index, c, now, answer);

        } else if (answer.response_size != 0
                   && answer.response_size <= out.size()) {
            read_response(current(index), out.data());
            answer.response = out.first(answer.response_size);
        }

        return answer;
    }

    change guard(*this);

    /* Before its successor is made: a name never has two records. */
    if (index != none) {
        erase(index);
    }

    reclaim(now, expired_per_claim);

    /* Full, then, of records that have not expired. */
    if (used_blocks_ == block_count_) {
        return answer;
    }

    create(c, now);

    answer.result = claim_result::claimed;
    answer.same_fingerprint = true;
    answer.attempt = 1;
    answer.remaining = later(c.lease, c.keep);

    return answer;
}


void
zone::describe(std::uint32_t index, const idempotency::claim &c,
               std::uint64_t now, zone_answer &answer)
{
    const version &v = current(index);

    answer.result = claim_result::found;
    answer.state = v.state;
    answer.same_fingerprint = record_at(index).fingerprint == c.fingerprint;
    answer.attempt = v.attempt;
    answer.remaining = v.expiry == forever ? forever : v.expiry - now;

    if (v.state == record_state::pending && elapsed(v.since, now) > v.lease) {
        answer.state = record_state::unknown;
    }

    if (answer.state == record_state::completed
        || answer.state == record_state::not_kept)
    {
        answer.age = elapsed(v.since, now);
        answer.response_size = answer.same_fingerprint ? v.response_size : 0;
    }
}


void
zone::take_over(std::uint32_t index, const idempotency::claim &c,
                std::uint64_t now, zone_answer &answer)
{
    change guard(*this);
    version next = current(index);

    next.state = record_state::pending;
    ++next.attempt;
    next.owner = c.owner;
    next.lease = c.lease;
    next.keep = c.keep;
    next.since = now;
    next.expiry = later(later(now, c.lease), c.keep);
    update(index, next);

    answer.result = claim_result::claimed;
    answer.state = record_state::pending;
    answer.attempt = next.attempt;
    answer.remaining = later(c.lease, c.keep);
}


settle_result
zone::complete(const ownership &whose, const completion &how,
               std::uint64_t now)
{
    return edit_owned(whose, now, [&](version &next) {
        next.state = how.state;
        next.since = now;
        next.expiry = later(now, how.ttl);

        if (write_response(how.response, next, now)) {
            return settle_result::done;
        }

        next.state = record_state::not_kept;
        next.expiry = later(now, how.summary_ttl);

        /* If not even this fits, that it ran is still kept. */
        write_response(how.summary, next, now);

        return settle_result::kept_without_response;
    });
}


settle_result
zone::mark_unknown(const ownership &whose, std::uint64_t keep,
                   std::uint64_t now)
{
    return edit_owned(whose, now, [&](version &next) {
        next.state = record_state::unknown;
        next.since = now;
        next.expiry = later(now, keep);

        return settle_result::done;
    });
}


settle_result
zone::renew(const ownership &whose, std::uint64_t now)
{
    return edit_owned(whose, now, [&](version &next) {
        next.since = now;
        next.expiry = later(later(now, next.lease), next.keep);

        return settle_result::done;
    });
}


template <typename Edit>
settle_result
zone::edit_owned(const ownership &whose, std::uint64_t now, Edit edit)
{
    std::uint32_t index = find_owned(whose, now);

    if (index == none) {
        return settle_result::lost;
    }

    change guard(*this);
    version next = current(index);
    settle_result result = edit(next);

    update(index, next);

    return result;
}


settle_result
zone::release(const ownership &whose, std::uint64_t now)
{
    std::uint32_t index = find_owned(whose, now);

    if (index == none) {
        return settle_result::lost;
    }

    change guard(*this);
    erase(index);

    return settle_result::done;
}


bool
zone::dirty() const
{
    return dirty_ != 0;
}


zone_stats
zone::stats() const
{
    return {records_, used_blocks_, block_count_, block_size};
}

}
