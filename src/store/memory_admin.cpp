#include "store/memory_lock.h"

namespace idempotency {

namespace {

constexpr std::size_t list_length = 100;
constexpr std::size_t list_step = 1024;
constexpr std::size_t list_steps = 64;

}


void
memory_store::look_up(const record_id &name, admin_waiter &waiter)
{
    admin_record record;
    admin_result result = admin_result::unavailable;

    if (zone_lock locked(*this); locked.is_usable()) {
        result = locked->look_up(name, now(), record)
                     ? admin_result::done
                     : admin_result::not_found;
    }

    bool found = result == admin_result::done;

    waiter.answered(waiter, {result, std::span(&record, found ? 1u : 0u), 0});
}


/* In short steps, so that nobody has to wait long for the lock. */
void
memory_store::list_unknown(std::uint64_t from, admin_waiter &waiter)
{
    std::array<admin_record, list_length> records;
    std::size_t count = 0;
    bool usable = true;

    for (std::size_t i = 0; i < list_steps && count < records.size(); i++) {
        zone_lock locked(*this);

        usable = locked.is_usable();

        if (!usable) {
            break;
        }

        count += locked->list_unknown(from, list_step, now(),
                                      std::span(records).subspan(count));

        if (from == 0) {
            break;
        }
    }

    waiter.answered(waiter,
                    {usable ? admin_result::done : admin_result::unavailable,
                     std::span(records).first(count), from});
}


void
memory_store::settle_unknown(const record_id &name,
                             const admin_settlement &how, admin_waiter &waiter)
{
    admin_result result = admin_result::unavailable;
    zone_notice notice;

    if (zone_lock locked(*this); locked.is_usable()) {
        result = locked->settle_unknown(name, how, now());
        notice = locked->notice(now());
    }

    tell(notice);
    sync_.changed();
    waiter.answered(waiter, {result, {}, 0});
}


bool
memory_store::usage(store_usage &out)
{
    zone_stats stats;
    zone_forecast forecast;

    {
        zone_lock locked(*this);
        stats = locked->stats();
        forecast = locked->forecast(now());
    }

    out = {
        .records = stats.records,
        .used = stats.blocks_used * stats.block_size,
        .facts = (stats.blocks_used - stats.blocks_of_responses)
                 * stats.block_size,
        .size = stats.blocks_total * stats.block_size,
        .dropped = stats.dropped,
        .refused = stats.refused,
        .full_in = forecast.full_in,
        .facts_full_in = forecast.facts_full_in,
    };

    return true;
}

}
