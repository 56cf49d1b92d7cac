#include "store/zone_checksum.h"
#include "store/zone_layout.h"

#include <algorithm>

namespace idempotency {

/*
 * After a loss of power any page may be as it was some time ago, or half
 * written.  If the version that counts is damaged, the other one does: it
 * is older, and says less, but that the request was sent.
 */
void
zone::verify(std::uint32_t index, zone_damage &found)
{
    block &b = block_at(index);

    b.active &= 1;

    if (!is_sound(index, current(index))) {
        b.active ^= 1;
    }

    if (!is_sound(index, current(index))) {
        b.kind = free_block;
        ++found.lost;
        return;
    }

    version v = current(index);

    if (v.state != record_state::completed
        && v.state != record_state::not_kept) {
        return;
    }

    std::uint32_t summary_check;

    std::memcpy(&summary_check, b.head.bytes, sizeof(summary_check));

    bool whole = true;

    if (v.has.summary != none
        && !has_sound_blocks(v.has.summary, v.has.summary_size, summary_check))
    {
        v.has.summary = none;
        v.has.summary_size = 0;
        whole = false;
    }

    if (v.has.response != none
        && !has_sound_blocks(v.has.response, v.has.response_size,
                             v.has.response_check))
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
}


/*
 * A page that was read again may be one of an earlier time: each record in it
 * is sound, but it is not the one whose check was added to the sum.  Each page
 * is written to before it is looked at, so that it stays as it was seen.
 */
bool
zone::is_intact()
{
    publish(changes_, changes_ + 1);

    for (std::uint32_t i = 0; i < touched_; ++i) {
        publish(block_at(i).reached, std::uint8_t{0});

        if (block_at(i).kind == head_block
            && (block_at(i).active > 1 || !is_sound(i, current(i))))
        {
            return false;
        }
    }

    return sum_of_checks() == checks_;
}


std::uint64_t
zone::sum_of_checks()
{
    std::uint64_t sum = 0;

    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (block_at(i).kind == head_block) {
            sum += current(i).check;
        }
    }

    return sum;
}


bool
zone::is_sound(std::uint32_t index, const version &v)
{
    if (block_at(index).format != record_format
        || v.state < record_state::pending || v.state > record_state::unknown
        || v.check != check_of(index, v))
    {
        return false;
    }

    if (v.state == record_state::pending || v.state == record_state::unknown) {
        return true;
    }

    return (v.has.response != none || v.has.response_size <= inline_size)
           && (v.has.summary != none || v.has.summary_size <= inline_size);
}


bool
zone::has_sound_blocks(std::uint32_t first, std::size_t size,
                       std::uint32_t check)
{
    checksum_of sum;
    std::uint32_t index = first;

    for (std::size_t left = size; left > 0; index = block_at(index).next) {

        if (index >= touched_ || block_at(index).kind != data_block) {
            return false;
        }

        std::size_t n = std::min(left, payload_size);

        sum.add({block_at(index).bytes, n});
        left -= n;
    }

    return size != 0 && index == none && sum.value() == check;
}


void
zone::seal(std::uint32_t index, version &v)
{
    v.check = with_checks_ ? check_of(index, v) : 0;
}


/* Over all that one version of a record says. */
std::uint32_t
zone::check_of(std::uint32_t index, const version &v)
{
    const record &r = record_at(index);
    version plain = v;
    checksum_of sum;

    plain.check = 0;
    sum.add(r.name);
    sum.add(r.fingerprint);
    sum.add({reinterpret_cast<const std::uint8_t *>(&plain), sizeof(plain)});
    sum.add({r.bytes, inside_of(v)});

    return sum.value();
}


/* How many of the bytes in the record itself belong to a version. */
std::size_t
zone::inside_of(const version &v)
{
    if (v.state != record_state::completed
        && v.state != record_state::not_kept) {
        return 0;
    }

    std::uint64_t size = v.has.summary_size;

    if (v.has.summary != none) {
        size = sizeof(std::uint32_t);

    } else if (v.has.response == none && v.state == record_state::completed) {
        size = v.has.response_size;
    }

    return static_cast<std::size_t>(
        std::min<std::uint64_t>(size, inline_size));
}

}
