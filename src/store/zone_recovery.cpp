#include "store/zone_layout.h"

#include <algorithm>

namespace idempotency {

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

    free_list_ = none;
    used_blocks_ = 0;
    records_ = 0;
    heap_size_ = 0;
    std::fill_n(buckets(), bucket_count(), none);

    for (std::uint32_t i = 0; i < touched_; ++i) {
        block_at(i).reached = 0;
    }

    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (block_at(i).kind == head_block) {
            recover_record(i, found);
        }
    }

    for (std::uint32_t i = touched_; i-- > 0; /* void */) {
        ++used_blocks_;

        if (block_at(i).reached) {
            continue;
        }

        if (block_at(i).kind == data_block) {
            ++found.orphans;
        }

        return_block(i);
    }

    found.records = records_;

    return found;
}


void
zone::recover_record(std::uint32_t index, zone_recovery &found)
{
    version v = current(index);

    if (!has_whole_response(v)) {

        if (v.state == record_state::completed) {
            v.state = record_state::not_kept;
        }

        v.response_size = 0;
        v.response = none;

        switch_version(index, v);
        ++found.without_response;
    }

    block_at(index).reached = 1;

    for (std::uint32_t i = v.response; i != none; i = block_at(i).next) {
        block_at(i).reached = 1;
    }

    record_at(index).heap_position = none;
    add_to_bucket(index);
    schedule(index);
}


/* A list that ends after so many steps has no loop and no one else's tail. */
bool
zone::has_whole_response(const version &v)
{
    std::uint32_t index = v.response;
    std::size_t left = blocks_for(v.response_size, payload_size);

    if (left > touched_) {
        return false;
    }

    for (/* void */; left > 0; --left) {

        if (index >= touched_ || block_at(index).kind != data_block
            || block_at(index).reached)
        {
            return false;
        }

        index = block_at(index).next;
    }

    return index == none;
}

}
