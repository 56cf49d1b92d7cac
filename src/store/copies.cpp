#include "store/copies.h"

#include "store/zone_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace idempotency {

namespace {

constexpr std::size_t alignment = 8;
constexpr std::size_t minimum_size = 4096;

/* About what a small response takes, so that a bucket has one or two. */
constexpr std::size_t bytes_per_bucket = 512;

/* One response must not push out all others. */
constexpr std::size_t largest_part = 8;


std::uint64_t
aligned(std::uint64_t size)
{
    return (size + alignment - 1) / alignment * alignment;
}

}


class copies::change {
public:
    explicit change(copies &c) : copies_(c) { publish(copies_.dirty_, 1u); }
    ~change() { publish(copies_.dirty_, 0u); }

    change(const change &) = delete;
    change &operator=(const change &) = delete;

private:
    copies &copies_;
};


copies *
copies::format(void *region, std::size_t size, std::uint64_t seed)
{
    if (size < minimum_size) {
        return nullptr;
    }

    std::size_t bucket_count = std::bit_floor(size / bytes_per_bucket);
    std::size_t head = sizeof(copies) + bucket_count * sizeof(std::uint64_t);
    auto *c = ::new (region) copies();

    c->seed_ = seed | 1;
    c->bucket_bits_ = static_cast<std::uint32_t>(std::bit_width(bucket_count))
                      - 1;
    c->dirty_ = 0;
    c->capacity_ = (size - head) / alignment * alignment;

    /* No bucket leads to a position before this one: all are empty. */
    c->oldest_ = c->end_ = c->capacity_;

    return c;
}


bool
copies::find(const record_id &name, finished_record &out,
             std::span<const std::uint8_t> &response)
{
    entry *found = newest(name);

    if (found == nullptr || found->dropped) {
        return false;
    }

    out = found->what;
    response = {found->response(), found->response_size};

    return true;
}


void
copies::put(const record_id &name, const finished_record &what,
            pieces response, std::uint64_t now)
{
    entry *known = newest(name);

    if (known != nullptr && known->written >= what.as_of) {
        return;
    }

    change guard(*this);
    entry *e = append(name, size_of(response), now);

    if (e == nullptr) {
        return;
    }

    std::uint8_t *p = e->response();

    for (auto part : response) {
        p = std::copy(part.begin(), part.end(), p);
    }

    e->what = what;
}


/* Looked for by name, this one is found before all older ones. */
void
copies::drop(const record_id &name, std::uint64_t now)
{
    change guard(*this);

    append(name, 0, now)->dropped = true;
}


/* Beyond all that may have been written, also by a change cut short. */
void
copies::clear()
{
    end_ += 2 * capacity_;
    oldest_ = end_;
    publish(dirty_, 0u);
}


std::uint64_t *
copies::buckets()
{
    return reinterpret_cast<std::uint64_t *>(this + 1);
}


/* The seed is secret, so nobody can choose keys that share a bucket. */
std::uint64_t &
copies::bucket_of(const record_id &name)
{
    std::uint64_t word;

    std::memcpy(&word, name.data(), sizeof(word));

    return buckets()[(word * seed_) >> (64 - bucket_bits_)];
}


copies::entry &
copies::entry_at(std::uint64_t position)
{
    auto *ring = reinterpret_cast<unsigned char *>(
        buckets() + (std::size_t{1} << bucket_bits_));

    return *reinterpret_cast<entry *>(ring + position % capacity_);
}


/* A bucket leads from newer to older ones, and ends with what is gone. */
copies::entry *
copies::newest(const record_id &name)
{
    std::uint64_t position = bucket_of(name);

    while (position >= oldest_) {
        entry &e = entry_at(position);

        if (e.name == name) {
            return &e;
        }

        position = e.older;
    }

    return nullptr;
}


/* None lies across the end of the ring. */
copies::entry *
copies::append(const record_id &name, std::uint64_t response_size,
               std::uint64_t now)
{
    std::uint64_t size = aligned(sizeof(entry) + response_size);
    std::uint64_t position = end_;
    std::uint64_t left = capacity_ - position % capacity_;

    if (size > capacity_ / largest_part) {
        return nullptr;
    }

    if (size > left) {
        position += left;
    }

    std::uint64_t &bucket = bucket_of(name);
    entry &e = entry_at(position);

    end_ = position + size;
    oldest_ = std::max(oldest_, end_ - capacity_);

    e.older = bucket;
    e.written = now;
    e.name = name;
    e.response_size = response_size;
    e.dropped = false;
    bucket = position;

    return &e;
}

}
