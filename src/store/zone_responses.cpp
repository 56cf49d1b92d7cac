#include "contract/summary.h"
#include "store/zone_checksum.h"
#include "store/zone_layout.h"

#include <algorithm>
#include <cstring>

namespace idempotency {

namespace {

/* The first byte of a summary in a record, where it has no short form. */
constexpr std::uint8_t as_it_is = 0;

std::uint8_t *copy(pieces from, std::uint8_t *to);

}


/*
 * Writes what there is room for, and has v lead to it.  False: it is not all
 * that was to be kept.  What lies in the record itself is written while the
 * active version knows nothing of it.
 */
bool
zone::keep(std::uint32_t index, const completion &how, version &v,
           std::uint64_t now)
{
    constexpr kept nothing{0, none, none, 0, 0, 0};

    v.has = nothing;
    v.state = how.state;
    v.expiry = later(now, how.ttl);

    bool done = how.state == record_state::completed
                    ? keep_response(index, how, v, now)
                    : keep_summary(index, how.response, v, now);

    if (done) {
        return true;
    }

    ++unfit_;
    v.has = nothing;
    v.state = record_state::not_kept;
    v.expiry = later(now, how.summary_ttl);

    /* If not even this fits, that it ran is still kept. */
    keep_summary(index, how.summary, v, now);

    return false;
}


/* With its summary, which stays when the response has to make room. */
bool
zone::keep_response(std::uint32_t index, const completion &how, version &v,
                    std::uint64_t now)
{
    std::size_t size = size_of(how.response);

    if (size <= inline_size) {
        copy(how.response, record_at(index).bytes);
        v.has.response_size = size;
        return true;
    }

    std::size_t beside = 0;

    if (!keep_inside(index, how.summary, v)) {
        beside = size_of(how.summary);
    }

    if (!make_room(blocks_for(size, payload_size)
                       + blocks_for(beside, payload_size),
                   now))
    {
        return false;
    }

    if (beside != 0 && beside <= UINT16_MAX) {
        put_summary(index, how.summary, v);
    }

    v.has.response = write_blocks(how.response);
    v.has.response_size = size;
    v.has.response_check = with_checks_ ? checksum(how.response) : 0;

    return true;
}


bool
zone::keep_summary(std::uint32_t index, pieces summary, version &v,
                   std::uint64_t now)
{
    std::size_t size = size_of(summary);

    if (keep_inside(index, summary, v)) {
        return true;
    }

    if (size > UINT16_MAX || !make_room(blocks_for(size, payload_size), now)) {
        return false;
    }

    put_summary(index, summary, v);

    return true;
}


/* In blocks; its check then has the place of its short form. */
void
zone::put_summary(std::uint32_t index, pieces summary, version &v)
{
    std::uint32_t check = with_checks_ ? checksum(summary) : 0;

    std::memcpy(record_at(index).bytes, &check, sizeof(check));
    v.has.summary = write_blocks(summary);
    v.has.summary_size = static_cast<std::uint16_t>(size_of(summary));
}


/* In the record itself, where the summary is short enough. */
bool
zone::keep_inside(std::uint32_t index, pieces summary, version &v)
{
    std::size_t size = size_of(summary);
    std::uint8_t *out = record_at(index).bytes;

    v.has.summary_size = 0;

    if (size == 0) {
        return true;
    }

    if (size < inline_size) {
        out[0] = as_it_is;
        copy(summary, out + 1);
        v.has.summary_size = static_cast<std::uint16_t>(1 + size);
        return true;
    }

    if (summary.size() == 1) {
        v.has.summary_size = static_cast<std::uint16_t>(
            shorten_summary(summary[0], {out, inline_size}));
    }

    return v.has.summary_size != 0;
}


/* How much a retry is shown of a completed record. */
std::size_t
zone::shown_size(std::uint32_t index)
{
    const version &v = current(index);

    if (v.state == record_state::completed) {
        return v.has.response_size;
    }

    const std::uint8_t *bytes = record_at(index).bytes;
    std::size_t size = v.has.summary_size;

    if (size == 0 || v.has.summary != none) {
        return size;
    }

    return bytes[0] == as_it_is ? size - 1 : summary_size({bytes, size});
}


void
zone::show(std::uint32_t index, std::uint8_t *out)
{
    const version &v = current(index);
    const std::uint8_t *bytes = record_at(index).bytes;
    std::size_t size = v.has.summary_size;

    if (v.state == record_state::completed) {

        if (v.has.response != none) {
            read_blocks(v.has.response, v.has.response_size, out);
            return;
        }

        std::copy_n(bytes, v.has.response_size, out);
        return;
    }

    if (v.has.summary != none) {
        read_blocks(v.has.summary, size, out);

    } else if (size == 0) {
        return;

    } else if (bytes[0] == as_it_is) {
        std::copy_n(bytes + 1, size - 1, out);

    } else {
        restore_summary({bytes, size}, out);
    }
}


namespace {

std::uint8_t *
copy(pieces from, std::uint8_t *to)
{
    for (auto part : from) {
        to = std::copy(part.begin(), part.end(), to);
    }

    return to;
}

}

}
