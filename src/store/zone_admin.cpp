#include "store/zone_layout.h"

#include <algorithm>

namespace idempotency {

bool
zone::look_up(const record_id &name, std::uint64_t now, admin_record &out)
{
    std::uint32_t index = find(name);

    if (index == none || is_expired(current(index).expiry, now)) {
        return false;
    }

    out = describe(index, now);

    return true;
}


admin_result
zone::settle_unknown(const record_id &name, const admin_settlement &how,
                     std::uint64_t now)
{
    std::uint32_t index = find(name);

    if (index == none || is_expired(current(index).expiry, now)) {
        return admin_result::not_found;
    }

    record_state state = describe(index, now).state;

    if (state == record_state::pending) {
        return admin_result::owner_lives;
    }

    if (how.act != admin_act::remove && state != record_state::unknown) {
        return admin_result::not_unknown;
    }

    change guard(*this);

    if (how.act != admin_act::complete) {
        erase(index);
        return admin_result::done;
    }

    version next = current(index);

    next.since = now;

    /* An administrator is told rather that there is no room for all of it. */
    if (!keep(index,
              {record_state::completed, how.ttl, how.response, how.summary,
               how.ttl},
              next, now))
    {
        return_chain(next.has.summary, next.has.summary_size);
        return admin_result::no_room;
    }

    update(index, next);

    return admin_result::done;
}


std::size_t
zone::list_unknown(std::uint64_t &from, std::size_t blocks, std::uint64_t now,
                   std::span<admin_record> out)
{
    std::size_t count = 0;
    std::uint64_t end = std::min<std::uint64_t>(touched_, from + blocks);
    std::uint64_t i = from;

    for (/* void */; i < end && count < out.size(); i++) {
        auto index = static_cast<std::uint32_t>(i);

        if (block_at(index).kind != head_block
            || is_expired(current(index).expiry, now))
        {
            continue;
        }

        out[count] = describe(index, now);
        count += out[count].state == record_state::unknown;
    }

    from = i < touched_ ? i : 0;

    return count;
}


admin_record
zone::describe(std::uint32_t index, std::uint64_t now)
{
    const version &v = current(index);
    admin_record out = {};

    out.name = record_at(index).name;
    out.state = v.state;
    out.attempt = v.attempt;
    out.age = elapsed(v.since, now);
    out.remaining = v.expiry == forever ? forever : v.expiry - now;

    if (v.state == record_state::pending && out.age > v.run.lease) {
        out.state = record_state::unknown;
    }

    if (v.state == record_state::completed
        || v.state == record_state::not_kept) {
        out.response_size = shown_size(index);
        show_head(index, out.response_head);
    }

    return out;
}


/* The first bytes of what a retry is shown; nothing if it is less. */
void
zone::show_head(std::uint32_t index, std::span<std::uint8_t> out)
{
    const version &v = current(index);
    std::uint32_t first = v.state == record_state::completed ? v.has.response
                                                             : v.has.summary;
    std::size_t size = shown_size(index);
    std::array<std::uint8_t, block_size> whole;

    if (size < out.size()) {
        return;
    }

    if (first != none) {
        read_blocks(first, out.size(), out.data());

    } else if (size <= whole.size()) {
        show(index, whole.data());
        std::copy_n(whole.begin(), out.size(), out.begin());
    }
}

}
