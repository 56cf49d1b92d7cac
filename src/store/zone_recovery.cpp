#include "store/zone_layout.h"

#include <algorithm>

namespace idempotency {

namespace {

/* How far a block was found to belong to a record. */
constexpr std::uint8_t not_reached = 0;
constexpr std::uint8_t in_use = 1;

}


/*
 * Trusts nothing but head blocks and the responses they lead to.  These are
 * only read (but for a record with a broken response), so it may itself be
 * cut short and begun again.
 */
zone_recovery
zone::recover()
{
    zone_recovery found{};
    change guard(*this);

    forget_derived();

    for (std::uint32_t i = 0; i < touched_; ++i) {
        block_at(i).reached = not_reached;
    }

    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (block_at(i).kind == head_block) {
            recover_record(i, found);
        }
    }

    for (std::uint32_t i = touched_; i-- > 0; /* void */) {
        ++used_blocks_;

        if (block_at(i).reached != not_reached) {
            continue;
        }

        return_block(i);
    }

    recover_queues();

    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (block_at(i).kind == head_block) {
            schedule(i);
        }
    }

    found.records = records_;
    checks_ = sum_of_checks();

    return found;
}


void
zone::forget_derived()
{
    free_list_ = none;
    free_chains_ = none;
    used_blocks_ = 0;
    records_ = 0;
    heap_size_ = 0;
    std::fill_n(queues_, queue_count, queue{none, none, 0});
    std::fill_n(buckets(), bucket_count(), none);
}


void
zone::recover_record(std::uint32_t index, zone_recovery &found)
{
    version v = current(index);
    bool ended = v.state == record_state::completed
                 || v.state == record_state::not_kept;
    bool whole = true;

    if (ended && v.has.summary != none
        && !reach(v.has.summary, v.has.summary_size, in_use))
    {
        v.has.summary = none;
        v.has.summary_size = 0;
        whole = false;
    }

    if (ended && v.has.response != none
        && !reach(v.has.response, v.has.response_size, in_use))
    {
        v.has.response = none;
        v.has.response_size = 0;
        v.has.response_check = 0;
        v.state = record_state::not_kept;
        whole = false;
    }

    if (!whole) {
        switch_version(index, v);
        ++found.without_response;
    }

    block_at(index).reached = in_use;
    record_at(index).heap_position = none;

    if (has_earlier_twin(index)) {
        ++found.twins;
        return;
    }

    add_to_bucket(index);
}


/*
 * A name has two records only where pages were lost: the later one counts,
 * and the other is gone.
 */
bool
zone::has_earlier_twin(std::uint32_t index)
{
    std::uint32_t other = find(record_at(index).name);

    if (other == none) {
        return false;
    }

    if (current(other).since >= current(index).since) {
        abandon(index);
        return true;
    }

    remove_from_bucket(other);
    abandon(other);
    add_to_bucket(index);

    return true;
}


void
zone::abandon(std::uint32_t index)
{
    const version &v = current(index);
    bool ended = v.state == record_state::completed
                 || v.state == record_state::not_kept;

    block_at(index).kind = free_block;
    block_at(index).reached = not_reached;

    for (std::uint32_t first :
         {ended ? v.has.response : none, ended ? v.has.summary : none})
    {
        for (std::uint32_t i = first; i != none; i = block_at(i).next) {
            block_at(i).reached = not_reached;
        }
    }
}


/*
 * Marks the blocks of a list.  One that ends after so many steps has no loop
 * and no one else's tail; any other is left unmarked.
 */
bool
zone::reach(std::uint32_t first, std::size_t size, std::uint8_t mark)
{
    std::size_t left = blocks_for(size, payload_size);
    std::uint32_t index = first;

    if (left == 0 || left > touched_) {
        return false;
    }

    for (/* void */; left > 0; --left) {

        if (index >= touched_ || block_at(index).kind != data_block
            || block_at(index).reached != not_reached)
        {
            break;
        }

        block_at(index).reached = mark;
        index = block_at(index).next;
    }

    if (left == 0 && index == none) {
        return true;
    }

    /* What was marked on the way is no one's. */
    for (std::uint32_t i = first; left++ < blocks_for(size, payload_size);
         i = block_at(i).next)
    {
        block_at(i).reached = not_reached;
    }

    return false;
}


/* By the time of completion; the heap, not yet made, lends its memory. */
void
zone::recover_queues()
{
    std::uint32_t *found = heap();
    std::size_t n = 0;

    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (block_at(i).kind == head_block
            && queue_of(current(i)) != queue_count) {
            found[n++] = i;
        }
    }

    std::sort(found, found + n, [this](std::uint32_t a, std::uint32_t b) {
        return current(a).since != current(b).since
                   ? current(a).since < current(b).since
                   : a < b;
    });

    for (std::size_t i = 0; i < n; ++i) {
        enlist(found[i]);
    }
}

}
