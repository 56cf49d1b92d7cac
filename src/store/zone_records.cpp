#include "store/zone_layout.h"

#include <cstring>

namespace idempotency {

std::uint32_t
zone::find(const record_id &name)
{
    std::uint32_t index = bucket_of(name);

    while (index != none && record_at(index).name != name) {
        index = record_at(index).next_in_bucket;
    }

    return index;
}


/* The fence: who lost a record to another, or to time, cannot change it. */
std::uint32_t
zone::find_owned(const ownership &whose, std::uint64_t now)
{
    std::uint32_t index = find(whose.name);

    if (index == none) {
        return none;
    }

    const version &v = current(index);

    if (v.state != record_state::pending || is_expired(v.expiry, now)) {
        return none;
    }

    if (v.run.owner != whose.owner) {
        return none;
    }

    return index;
}


/* There is room for it. */
void
zone::create(const idempotency::claim &c, std::uint64_t now)
{
    std::uint32_t index = allocate_block();
    block &b = block_at(index);

    b.next = none;
    b.head.name = c.name;
    b.head.fingerprint = c.fingerprint;
    b.head.heap_position = none;
    b.format = record_format;
    b.active = 1;
    b.head.versions[1] = {
        .expiry = later(later(now, c.lease), c.keep),
        .since = now,
        .run = {c.owner, c.lease},
        .attempt = 1,
        .state = record_state::pending,
        .check = 0,
    };

    seal(index, b.head.versions[1]);
    publish(b.kind, std::uint8_t{head_block});
    checks_ += b.head.versions[1].check;

    add_to_bucket(index);
    schedule(index);
}


void
zone::update(std::uint32_t index, const version &next)
{
    switch_version(index, next);
    schedule(index);
    enlist(index);
}


/* The active version is never written to; one byte makes the other active. */
void
zone::switch_version(std::uint32_t index, const version &next)
{
    block &b = block_at(index);
    std::uint8_t other = !b.active;

    b.head.versions[other] = next;
    seal(index, b.head.versions[other]);
    checks_ += b.head.versions[other].check;
    checks_ -= b.head.versions[b.active].check;
    publish(b.active, other);
}


void
zone::erase(std::uint32_t index)
{
    publish(block_at(index).kind, std::uint8_t{free_block});
    checks_ -= current(index).check;

    remove_from_bucket(index);
    unschedule(index);
    delist(index);

    const version v = current(index);

    return_block(index);

    if (v.state == record_state::completed
        || v.state == record_state::not_kept) {
        return_chain(v.has.response, v.has.response_size);
        return_chain(v.has.summary, v.has.summary_size);
    }
}


/* The seed is secret, so nobody can choose keys that share a bucket. */
std::uint32_t &
zone::bucket_of(const record_id &name)
{
    std::uint64_t word;

    std::memcpy(&word, name.data(), sizeof(word));

    return buckets()[(word * seed_) >> (64 - bucket_bits_)];
}


void
zone::add_to_bucket(std::uint32_t index)
{
    record &r = record_at(index);
    std::uint32_t &bucket = bucket_of(r.name);

    r.next_in_bucket = bucket;
    bucket = index;
    ++records_;
}


void
zone::remove_from_bucket(std::uint32_t index)
{
    record &r = record_at(index);
    std::uint32_t *from = &bucket_of(r.name);

    while (*from != index) {
        from = &record_at(*from).next_in_bucket;
    }

    *from = r.next_in_bucket;
    --records_;
}

}
