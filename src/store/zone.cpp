#include "store/zone_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace idempotency {

namespace {

constexpr std::size_t minimum_blocks = 8;

/* Besides itself, a block needs a place in the heap and up to one bucket. */
constexpr std::size_t index_size = 2 * sizeof(std::uint32_t);

/* More than the one a claim makes, or the expired would pile up. */
constexpr std::size_t expired_per_claim = 2;

constexpr char magic[8] = {'i', 'd', 'e', 'm', 'z', 'o', 'n', 'e'};

constexpr std::uint32_t most_attempts = (1u << 24) - 1;


/* Another number for whatever changes the meaning of stored bytes. */
constexpr std::uint32_t this_version = 3;


constexpr std::uint64_t
layout_of(std::uint32_t version)
{
    constexpr bool little = std::endian::native == std::endian::little;

    return std::uint64_t{version} << 32 | sizeof(record_id) << 8
           | std::uint64_t{little};
}


std::uint32_t
following(std::uint32_t attempt)
{
    return std::min(attempt + 1, most_attempts);
}


/* How long a pending record outlives its lease follows from its times. */
std::uint64_t
kept_after_lease(std::uint64_t expiry, std::uint64_t since,
                 std::uint64_t lease)
{
    return expiry == forever ? forever : expiry - since - lease;
}

}


std::size_t
zone::minimum_size()
{
    return header_size + minimum_blocks * (block_size + index_size);
}


zone *
zone::format(void *region, std::size_t size, std::uint64_t seed,
             bool with_checks)
{
    static_assert(sizeof(zone) <= header_size);
    static_assert(offsetof(zone, layout_) == 8);
    static_assert(offsetof(zone, extra_) == 24);
    static_assert(offsetof(zone, seed_) == 280);
    static_assert(offsetof(zone, block_count_) == 300);
    static_assert(offsetof(zone, touched_) == 312);
    static_assert(offsetof(block, format) == 3);

    layout l;

    if (!measure(region, size, l)) {
        return nullptr;
    }

    /* All that is not set here is zero. */
    auto *z = ::new (region) zone();

    z->size_ = size;
    z->seed_ = seed | 1;
    z->with_checks_ = with_checks;
    z->block_count_ = l.block_count;
    z->bucket_bits_ = l.bucket_bits;
    z->forget_derived();

    std::memcpy(z->magic_, magic, sizeof(magic));

    /* Last: what is called a zone of this layout is one. */
    publish(z->layout_, layout_of(this_version));

    return z;
}


zone_content
zone::examine(const void *region, std::size_t available,
              std::span<const zone_conversion> older)
{
    if (available < header_size) {
        return zone_content::something_else;
    }

    const auto *z = static_cast<const zone *>(region);

    if (std::memcmp(z->magic_, magic, sizeof(magic)) != 0) {
        return zone_content::something_else;
    }

    if (z->size_ < minimum_size()) {
        return zone_content::other_layout;
    }

    if (z->layout_ == layout_of(this_version)) {
        return zone_content::records;
    }

    return find_conversion(z->layout_, older) != nullptr
               ? zone_content::older_layout
               : zone_content::other_layout;
}


const zone_conversion *
zone::find_conversion(std::uint64_t layout,
                      std::span<const zone_conversion> older)
{
    for (const zone_conversion &c : older) {

        if (layout == layout_of(c.from)) {
            return &c;
        }
    }

    return nullptr;
}


void
zone::convert(void *region, std::span<const zone_conversion> older)
{
    auto *z = std::launder(static_cast<zone *>(region));

    while (const zone_conversion *c = find_conversion(z->layout_, older)) {

        for (std::uint32_t i = 0; i < z->touched_; ++i) {
            block &b = z->block_at(i);

            if (b.kind == head_block && b.format == c->format) {
                c->convert(std::span<std::uint8_t, block_size>(
                    reinterpret_cast<std::uint8_t *>(&b), block_size));
            }
        }

        publish(z->layout_, layout_of(c->to));
    }
}


zone *
zone::reopen(void *region, std::size_t size, bool all, zone_damage &found)
{
    auto *z = std::launder(static_cast<zone *>(region));
    layout l, before;

    if (!measure(region, size, l) || !measure(region, z->size_, before)) {
        return nullptr;
    }

    /* The blocks stay where they are; the index is made anew behind them. */
    publish(z->dirty_, 1u);

    /* Blocks that were never used look like that. */
    if (l.block_count > before.block_count) {
        std::memset(z->base() + header_size + before.block_count * block_size,
                    0, before.block_count * index_size);
    }

    z->with_checks_ = 1;
    z->block_count_ = l.block_count;
    z->bucket_bits_ = l.bucket_bits;
    publish(z->size_, std::uint64_t{size});

    if (all || z->touched_ > before.block_count) {
        z->touched_ = std::min(before.block_count, l.block_count);
    }

    found = {};

    for (std::uint32_t i = 0; i < z->touched_; ++i) {

        if (z->block_at(i).kind == head_block) {
            z->verify(i, found);
        }
    }

    zone_recovery repaired = z->recover();

    found.records = repaired.records;
    found.without_response += repaired.without_response;
    found.lost += repaired.twins;

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

    std::size_t n = (size - header_size) / (block_size + index_size);

    l.block_count = static_cast<std::uint32_t>(
        std::min<std::size_t>(n, none - 1));

    /* The largest power of two that is not above the number of blocks. */
    l.bucket_bits = static_cast<std::uint32_t>(std::bit_width(l.block_count))
                    - 1;

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
            show(index, out.data());
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

    /* Full, then, of records that have not expired and nothing else. */
    if (!make_room(1, now, summaries)) {
        ++refused_;
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

    if (v.state == record_state::pending
        && elapsed(v.since, now) > v.run.lease) {
        answer.state = record_state::unknown;
    }

    if (answer.state == record_state::completed
        || answer.state == record_state::not_kept)
    {
        answer.age = elapsed(v.since, now);
        answer.response_size = answer.same_fingerprint ? shown_size(index) : 0;
    }
}


void
zone::take_over(std::uint32_t index, const idempotency::claim &c,
                std::uint64_t now, zone_answer &answer)
{
    change guard(*this);
    version next = current(index);

    next.state = record_state::pending;
    next.attempt = following(next.attempt);
    next.run = {c.owner, c.lease};
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
    return edit_owned(whose, now, [&](std::uint32_t index, version &next) {
        next.since = now;

        return keep(index, how, next, now)
                   ? settle_result::done
                   : settle_result::kept_without_response;
    });
}


settle_result
zone::mark_unknown(const ownership &whose, std::uint64_t keep,
                   std::uint64_t now)
{
    return edit_owned(whose, now, [&](std::uint32_t, version &next) {
        next.state = record_state::unknown;
        next.since = now;
        next.expiry = later(now, keep);

        return settle_result::done;
    });
}


settle_result
zone::renew(const ownership &whose, std::uint64_t now)
{
    return edit_owned(whose, now, [&](std::uint32_t, version &next) {
        std::uint64_t keep_for = kept_after_lease(next.expiry, next.since,
                                                  next.run.lease);

        next.since = now;
        next.expiry = later(later(now, next.run.lease), keep_for);

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
    settle_result result = edit(index, next);

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
    return {
        .records = records_,
        .blocks_used = used_blocks_,
        .blocks_total = block_count_,
        .block_size = block_size,
        .blocks_of_responses = queues_[responses].blocks,
        .dropped = dropped_,
        .refused = refused_,
    };
}

}
