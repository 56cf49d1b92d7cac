#include "store/zone_layout.h"

#include <algorithm>
#include <cstring>

namespace idempotency {

/*
 * Each block tells where the next is, so memory could only be asked for one
 * after the other.  But blocks that were used together mostly lie together.
 * What is fetched in vain does no harm.  Always inline: gcc leaves out calls
 * of functions that do nothing but this.
 */
[[gnu::always_inline]] inline void
zone::fetch_ahead(std::uint32_t index, std::uint32_t next)
{
    constexpr std::uint32_t blocks = 8;
    constexpr std::size_t line = 64;
    bool up = next == index + 1;

    if (!up && next + 1 != index) {
        return;
    }

    std::uint32_t ahead = up ? next + blocks : next - blocks;

    if (ahead >= block_count_) {
        return;
    }

    auto *from = reinterpret_cast<const unsigned char *>(&block_at(ahead));

    for (std::size_t at = 0; at < block_size; at += line) {
        __builtin_prefetch(from + at);
    }
}


/* There is room for them.  Returns the first block, none for no bytes. */
std::uint32_t
zone::write_blocks(pieces bytes)
{
    std::uint32_t first = none;
    std::uint32_t *link_to = &first;
    std::uint8_t *to = nullptr;
    std::size_t room = 0;

    for (auto part : bytes) {

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

    return first;
}


void
zone::read_blocks(std::uint32_t first, std::size_t size, std::uint8_t *out)
{
    for (std::uint32_t index = first; size > 0; index = block_at(index).next) {
        std::size_t n = std::min(size, payload_size);

        fetch_ahead(index, block_at(index).next);
        std::memcpy(out, block_at(index).bytes, n);
        out += n;
        size -= n;
    }
}


/*
 * The blocks of a response of this size are free again.  They stay a chain,
 * and data blocks, until they are used: to go through all of them here would
 * bring each to the cache once more.  Free chains are a list, too, whose links
 * are in the first block of each.
 */
void
zone::return_chain(std::uint32_t first, std::uint64_t size)
{
    if (first == none) {
        return;
    }

    set_chain_after(first, free_chains_);
    free_chains_ = first;
    used_blocks_ -= static_cast<std::uint32_t>(blocks_for(size, payload_size));
}


/* There is one. */
std::uint32_t
zone::allocate_block()
{
    std::uint32_t index = free_list_;

    if (free_chains_ != none) {
        index = take_from_chain();

    } else if (index != none) {
        free_list_ = block_at(index).next;
        fetch_ahead(index, free_list_);

    } else {
        index = touched_;

        /* recover() reads it from the moment it counts as touched. */
        block_at(index).kind = free_block;
        publish(touched_, touched_ + 1);
    }

    ++used_blocks_;

    return index;
}


/* The first block of the first chain; what is left of it is one as well. */
std::uint32_t
zone::take_from_chain()
{
    std::uint32_t index = free_chains_;
    std::uint32_t next = block_at(index).next;
    std::uint32_t after = chain_after(index);

    if (next == none) {
        free_chains_ = after;
        return index;
    }

    fetch_ahead(index, next);
    set_chain_after(next, after);
    free_chains_ = next;

    return index;
}


std::uint32_t
zone::chain_after(std::uint32_t first)
{
    std::uint32_t chain;

    std::memcpy(&chain, block_at(first).bytes, sizeof(chain));

    return chain;
}


void
zone::set_chain_after(std::uint32_t first, std::uint32_t chain)
{
    std::memcpy(block_at(first).bytes, &chain, sizeof(chain));
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
