#include "store/zone_layout.h"

namespace idempotency {

std::size_t
zone::expire(std::uint64_t now, std::size_t max)
{
    change guard(*this);

    return reclaim(now, max);
}


std::size_t
zone::reclaim(std::uint64_t now, std::size_t max)
{
    std::size_t n = 0;

    while (n < max && reclaim_one(now)) {
        ++n;
    }

    return n;
}


bool
zone::reclaim_one(std::uint64_t now)
{
    if (heap_size_ == 0 || !is_expired(current(heap()[0]).expiry, now)) {
        return false;
    }

    erase(heap()[0]);

    return true;
}


/* Puts a record where its expiry belongs, whatever it was before. */
void
zone::schedule(std::uint32_t index)
{
    record &r = record_at(index);

    if (current(index).expiry == forever) {
        unschedule(index);
        return;
    }

    if (r.heap_position == none) {
        set_heap(heap_size_, index);
        ++heap_size_;
    }

    sift(r.heap_position);
}


void
zone::unschedule(std::uint32_t index)
{
    std::uint32_t position = record_at(index).heap_position;

    if (position == none) {
        return;
    }

    record_at(index).heap_position = none;
    --heap_size_;

    if (position != heap_size_) {
        set_heap(position, heap()[heap_size_]);
        sift(position);
    }
}


/* Moves a record that may be out of order up or down until it is not. */
void
zone::sift(std::uint32_t position)
{
    std::uint32_t index = heap()[position];
    std::uint64_t expiry = current(index).expiry;

    while (position > 0) {
        std::uint32_t parent = (position - 1) / 2;

        if (current(heap()[parent]).expiry <= expiry) {
            break;
        }

        set_heap(position, heap()[parent]);
        position = parent;
    }

    /* 64 bits: twice the last position may not fit 32. */
    for (std::uint64_t child = 2ull * position + 1; child < heap_size_;
         child = 2ull * position + 1)
    {
        if (child + 1 < heap_size_
            && current(heap()[child + 1]).expiry
                   < current(heap()[child]).expiry)
        {
            ++child;
        }

        if (expiry <= current(heap()[child]).expiry) {
            break;
        }

        set_heap(position, heap()[child]);
        position = static_cast<std::uint32_t>(child);
    }

    set_heap(position, index);
}


void
zone::set_heap(std::uint32_t position, std::uint32_t index)
{
    heap()[position] = index;
    record_at(index).heap_position = position;
}

}
