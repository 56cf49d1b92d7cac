#pragma once

#include "store/zone.h"

#include <atomic>
#include <cstdint>

/*
 * What the files of the zone share: where things lie in the region, how a
 * change becomes visible, and arithmetic with times.  All of it is small and
 * used everywhere, so it is inline.
 */

namespace idempotency {

/*
 * A store at which a killed process's work comes into effect.  What precedes
 * it in the program must precede it in memory, what follows must follow.  The
 * kernel orders a dead process's stores before all that happens later, so it
 * is only the compiler that has to be held.
 */
template <typename word>
void
publish(word &where, word value)
{
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::atomic_ref<word>(where).store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
}


/* Around all that writes, so that an interrupted change can be seen. */
class zone::change {
public:
    explicit change(zone &z) : zone_(z)
    {
        publish(zone_.dirty_, 1u);
        ++zone_.changes_;
    }

    ~change() { publish(zone_.dirty_, 0u); }

    change(const change &) = delete;
    change &operator=(const change &) = delete;

private:
    zone &zone_;
};


inline unsigned char *
zone::base()
{
    return reinterpret_cast<unsigned char *>(this);
}


/* Behind the blocks: what is derived can be made anew where it is. */
inline std::uint32_t *
zone::heap()
{
    return reinterpret_cast<std::uint32_t *>(base() + header_size
                                             + block_count_ * block_size);
}


inline std::uint32_t *
zone::buckets()
{
    return heap() + block_count_;
}


inline std::size_t
zone::bucket_count() const
{
    return std::size_t{1} << bucket_bits_;
}


inline zone::block &
zone::block_at(std::uint32_t index)
{
    return reinterpret_cast<block *>(base() + header_size)[index];
}


inline zone::record &
zone::record_at(std::uint32_t index)
{
    return block_at(index).head;
}


inline zone::version &
zone::current(std::uint32_t index)
{
    block &b = block_at(index);

    return b.head.versions[b.active];
}


inline std::size_t
zone::free_blocks() const
{
    return block_count_ - used_blocks_;
}


/* Blocks that cannot make room for others. */
inline std::size_t
zone::facts() const
{
    return used_blocks_ - queues_[responses].blocks;
}


template <typename See>
void
zone::each_record(See see)
{
    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (block_at(i).kind != head_block) {
            continue;
        }

        const version &v = current(i);
        bool ended = v.state == record_state::completed
                     || v.state == record_state::not_kept;
        bool pending = v.state == record_state::pending;

        see(zone_entry{
            .name = record_at(i).name,
            .state = v.state,
            .attempt = v.attempt,
            .since = v.since,
            .expiry = v.expiry,
            .lease = pending ? v.run.lease : 0,
            .response_size = ended ? v.has.response_size : 0,
            .summary_size = ended ? v.has.summary_size : 0u,
        });
    }
}


inline std::uint64_t
later(std::uint64_t time, std::uint64_t span)
{
    return span > forever - time ? forever : time + span;
}


/* Another process's clock may have been read a little later than ours. */
inline std::uint64_t
elapsed(std::uint64_t since, std::uint64_t now)
{
    return now > since ? now - since : 0;
}


inline bool
is_expired(std::uint64_t expiry, std::uint64_t now)
{
    return expiry != forever && expiry <= now;
}


inline std::size_t
blocks_for(std::uint64_t size, std::size_t payload)
{
    return size / payload + (size % payload != 0);
}


inline std::size_t
size_of(pieces all)
{
    std::size_t size = 0;

    for (auto part : all) {
        size += part.size();
    }

    return size;
}

}
