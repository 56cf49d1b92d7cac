#include "store/zone_layout.h"

#include <algorithm>

namespace idempotency {

namespace {

constexpr std::uint64_t sample_interval = 60 * 1000;
constexpr std::uint64_t shortest_span = 1000;
constexpr std::uint64_t tell_again = 60 * 60 * 1000;

/* In percent of all blocks. */
constexpr std::uint64_t filling_above = 80;
constexpr std::uint64_t relaxed_below = 70;


/* Whether a thing that was told at this time may be told again. */
bool
is_due(std::uint64_t told, std::uint64_t now)
{
    return told == 0 || elapsed(told, now) >= tell_again;
}

}


/*
 * Expired records go first, then the oldest responses; up to which queue is
 * for the caller to say.  False: that would not be enough, and nothing that
 * has not expired was touched.
 */
bool
zone::make_room(std::size_t blocks, std::uint64_t now, queue_kind last)
{
    while (free_blocks() < blocks) {

        if (!reclaim_one(now)) {
            break;
        }
    }

    std::size_t most = free_blocks();

    for (unsigned which = 0; which <= last; ++which) {
        most += queues_[which].blocks;
    }

    if (blocks > most) {
        return false;
    }

    for (unsigned which = 0; which <= last; ++which) {

        while (free_blocks() < blocks && queues_[which].oldest != none) {
            drop_oldest(static_cast<queue_kind>(which));
        }
    }

    return free_blocks() >= blocks;
}


/* What ran stays known; only what it answered goes. */
void
zone::drop_oldest(queue_kind which)
{
    std::uint32_t index = queues_[which].oldest;
    version next = current(index);
    std::uint32_t blocks;
    std::uint64_t size;

    if (which == responses) {
        blocks = next.has.response;
        size = next.has.response_size;
        next.has.response = none;
        next.has.response_size = 0;
        next.has.response_check = 0;
        next.state = record_state::not_kept;
        ++dropped_;

    } else {
        blocks = next.has.summary;
        size = next.has.summary_size;
        next.has.summary = none;
        next.has.summary_size = 0;
    }

    delist(index);
    switch_version(index, next);
    enlist(index);
    return_chain(blocks, size);
}


void
zone::enlist(std::uint32_t index)
{
    const version &v = current(index);
    queue_kind which = queue_of(v);

    if (which == queue_count) {
        return;
    }

    queue &q = queues_[which];
    record &r = record_at(index);

    r.older = q.newest;
    r.newer = none;
    (q.newest == none ? q.oldest : record_at(q.newest).newer) = index;
    q.newest = index;
    q.blocks += droppable(v);
}


void
zone::delist(std::uint32_t index)
{
    const version &v = current(index);
    queue_kind which = queue_of(v);

    if (which == queue_count) {
        return;
    }

    queue &q = queues_[which];
    record &r = record_at(index);

    (r.older == none ? q.oldest : record_at(r.older).newer) = r.newer;
    (r.newer == none ? q.newest : record_at(r.newer).older) = r.older;
    q.blocks -= droppable(v);
}


/* Queue_count: in none. */
zone::queue_kind
zone::queue_of(const version &v)
{
    if (v.state == record_state::completed && v.has.response != none) {
        return responses;
    }

    if (v.state == record_state::not_kept && v.has.summary != none) {
        return summaries;
    }

    return queue_count;
}


std::size_t
zone::droppable(const version &v)
{
    return blocks_for(v.state == record_state::completed ? v.has.response_size
                                                         : v.has.summary_size,
                      payload_size);
}


zone_notice
zone::notice(std::uint64_t now)
{
    zone_notice n = {.facts = 100 * facts() / block_count_,
                     .left = forever,
                     .count = dropped_ - dropped_told_};
    std::uint64_t used = 100 * std::uint64_t{used_blocks_} / block_count_;
    if (used < relaxed_below) {
        said_filling_ = 0;
    }

    /* Some room in between, or it would say so again and again. */
    if (facts() < block_count_ - block_count_ / 16) {
        said_refusing_ = 0;
    }

    if (refused_ != refused_seen_ && !said_refusing_) {
        n.what = zone_event::refusing;
        said_refusing_ = 1;

    } else if (dropped_ != dropped_seen_ && is_due(told_dropping_, now)) {
        n.what = zone_event::dropping;
        n.left = time_left(&sample::facts, now);
        dropped_told_ = dropped_;
        told_dropping_ = now;

    } else if (unfit_ != unfit_seen_ && is_due(told_dropping_, now)
               && is_due(told_not_fitting_, now))
    {
        n.what = zone_event::not_fitting;
        told_not_fitting_ = now;

    } else if (used >= filling_above && !said_filling_) {
        n.what = zone_event::filling;
        n.left = time_left(&sample::used, now);
        said_filling_ = 1;
    }

    dropped_seen_ = dropped_;
    refused_seen_ = refused_;
    unfit_seen_ = unfit_;
    take_sample(now);

    return n;
}


zone_forecast
zone::forecast(std::uint64_t now)
{
    /* Of a moment no rate can be told. */
    if (elapsed(before_.time, now) < shortest_span) {
        return {forever, forever};
    }

    return {time_left(&sample::used, now), time_left(&sample::facts, now)};
}


/* Until all blocks are in use, if it goes on as in the last minute or two. */
std::uint64_t
zone::time_left(std::uint64_t sample::*what, std::uint64_t now)
{
    sample present{now, used_blocks_, facts()};
    std::uint64_t time = elapsed(before_.time, now);
    std::uint64_t rest = block_count_ - present.*what;

    if (present.*what <= before_.*what) {
        return forever;
    }

    return rest * time / (present.*what - before_.*what);
}


void
zone::take_sample(std::uint64_t now)
{
    if (recent_.time == 0) {
        before_ = recent_ = {now, 0, 0};

    } else if (elapsed(recent_.time, now) >= sample_interval) {
        before_ = recent_;
        recent_ = {now, used_blocks_, facts()};
    }
}

}
