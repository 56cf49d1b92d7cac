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
    bool found = zone_lock(*this)->look_up(name, now(), record);

    waiter.answered(waiter,
                    found ? admin_answer{admin_result::done, {&record, 1}, 0}
                          : admin_answer{admin_result::not_found, {}, 0});
}


/* In short steps, so that nobody has to wait long for the lock. */
void
memory_store::list_unknown(std::uint64_t from, admin_waiter &waiter)
{
    std::array<admin_record, list_length> records;
    std::size_t count = 0;

    for (std::size_t i = 0; i < list_steps && count < records.size(); i++) {
        count += zone_lock(*this)->list_unknown(
            from, list_step, now(), std::span(records).subspan(count));

        if (from == 0) {
            break;
        }
    }

    waiter.answered(
        waiter, {admin_result::done, std::span(records).first(count), from});
}


void
memory_store::settle_unknown(const record_id &name,
                             const admin_settlement &how, admin_waiter &waiter)
{
    admin_result result;
    zone_notice notice;

    {
        zone_lock locked(*this);
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
