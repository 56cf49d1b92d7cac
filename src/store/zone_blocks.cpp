#include "store/zone_layout.h"

#include <algorithm>
#include <cstring>

namespace idempotency {

/*
 * Copies a response into blocks of its own and has v lead to it.  False:
 * there is no room, and nothing was written.
 */
bool
zone::write_response(pieces response, version &v, std::uint64_t now)
{
    std::size_t size = 0;

    for (auto part : response) {
        size += part.size();
    }

    if (!make_room(blocks_for(size, payload_size), now)) {
        return false;
    }

    std::uint32_t *link_to = &v.response;
    std::uint8_t *to = nullptr;
    std::size_t room = 0;

    for (auto part : response) {

        while (!part.empty()) {

            if (room == 0) {
                std::uint32_t index = allocate_block();
                block &b = block_at(index);

                b.kind = data_block;
                b.next = none;
                *link_to = index;
                link_to = &b.next;
                to = b.bytes;
                room = payload_size;
            }

            std::size_t n = std::min(room, part.size());

            std::memcpy(to, part.data(), n);
            to += n;
            room -= n;
            part = part.subspan(n);
        }
    }

    v.response_size = size;

    return true;
}


void
zone::read_response(const version &v, std::uint8_t *out)
{
    std::uint32_t index = v.response;
    std::size_t left = v.response_size;

    while (left > 0) {
        std::size_t n = std::min(left, payload_size);

        std::memcpy(out, block_at(index).bytes, n);
        out += n;
        left -= n;
        index = block_at(index).next;
    }
}


bool
zone::make_room(std::size_t blocks, std::uint64_t now)
{
    while (block_count_ - used_blocks_ < blocks) {

        if (!reclaim_one(now)) {
            return false;
        }
    }

    return true;
}


/* There is one. */
std::uint32_t
zone::allocate_block()
{
    std::uint32_t index = free_list_;

    if (index != none) {
        free_list_ = block_at(index).next;

    } else {
        index = touched_;

        /* recover() reads it from the moment it counts as touched. */
        block_at(index).kind = free_block;
        publish(touched_, touched_ + 1);
    }

    ++used_blocks_;

    return index;
}


void
zone::return_block(std::uint32_t index)
{
    block &b = block_at(index);

    b.kind = free_block;
    b.next = free_list_;
    free_list_ = index;
    --used_blocks_;
}

}
