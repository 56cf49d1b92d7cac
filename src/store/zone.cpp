#include "store/zone.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>

namespace idempotency {

namespace {

constexpr std::size_t minimum_blocks = 8;
constexpr std::size_t cache_line = 64;

/* More than the one a claim makes, or the expired would pile up. */
constexpr std::size_t expired_per_claim = 2;


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


std::uint64_t
later(std::uint64_t time, std::uint64_t span)
{
    return span > forever - time ? forever : time + span;
}


/* Another process's clock may have been read a little later than ours. */
std::uint64_t
elapsed(std::uint64_t since, std::uint64_t now)
{
    return now > since ? now - since : 0;
}


bool
expired(std::uint64_t expiry, std::uint64_t now)
{
    return expiry != forever && expiry <= now;
}


std::size_t
blocks_for(std::uint64_t size, std::size_t payload)
{
    return size / payload + (size % payload != 0);
}

}


/* Around all that writes, so that its being cut short can be seen. */
class zone::change {
public:
    explicit change(zone &z) : zone_(z) { publish(zone_.dirty_, 1u); }
    ~change() { publish(zone_.dirty_, 0u); }

    change(const change &) = delete;
    change &operator=(const change &) = delete;

private:
    zone &zone_;
};


std::size_t
zone::minimum_size()
{
    return sizeof(zone) + cache_line
           + minimum_blocks * (block_size + 2 * sizeof(std::uint32_t));
}


bool
zone::measure(const void *region, std::size_t size, layout &l)
{
    if (std::bit_cast<std::uintptr_t>(region) % alignof(zone) != 0
        || size < minimum_size())
    {
        return false;
    }

    std::size_t n = (size - sizeof(zone) - cache_line)
                    / (block_size + 2 * sizeof(std::uint32_t));

    l.blocks = static_cast<std::uint32_t>(std::min<std::size_t>(n, none - 1));

    /* The largest power of two that is not above the number of blocks. */
    l.bucket_bits = static_cast<std::uint32_t>(std::bit_width(l.blocks)) - 1;

    l.heap_at = sizeof(zone)
                + (std::size_t{1} << l.bucket_bits) * sizeof(std::uint32_t);
    l.blocks_at = l.heap_at + l.blocks * sizeof(std::uint32_t);
    l.blocks_at = (l.blocks_at + cache_line - 1) / cache_line * cache_line;

    return true;
}


zone *
zone::format(void *region, std::size_t size, std::uint64_t seed)
{
    layout l;

    if (!measure(region, size, l)) {
        return nullptr;
    }

    auto *z = ::new (region) zone;

    z->seed_ = seed | 1;
    z->heap_offset_ = l.heap_at;
    z->blocks_offset_ = l.blocks_at;
    z->blocks_ = l.blocks;
    z->bucket_bits_ = l.bucket_bits;
    z->dirty_ = 0;
    z->touched_ = 0;
    z->free_ = none;
    z->used_ = 0;
    z->records_ = 0;
    z->heap_size_ = 0;

    std::fill_n(z->buckets(), std::size_t{1} << l.bucket_bits, none);

    return z;
}


zone_answer
zone::claim(const idempotency::claim &c, std::uint64_t now,
            std::span<std::uint8_t> out)
{
    zone_answer answer;
    std::uint32_t index = find(c.name);

    if (index != none && !expired(current(index).expiry, now)) {

        if (describe(index, c, now, answer)) {
            take_over(index, c, now);

        } else if (answer.response_size != 0
                   && answer.response_size <= out.size()) {
            read(current(index), out.data());
            answer.response = out.first(answer.response_size);
        }

        return answer;
    }

    change guard(*this);

    /* Before its successor is made: a name never has two records. */
    if (index != none) {
        erase(index);
    }

    reclaim(now, expired_per_claim);

    /* Full, then, of records that have not expired. */
    if (used_ == blocks_) {
        return answer;
    }

    create(c, now);

    answer.result = claim_result::claimed;
    answer.same_fingerprint = true;
    answer.attempt = 1;
    answer.remaining = later(c.lease, c.keep);

    return answer;
}


/* What a claim finds; true: the claim takes it over. */
bool
zone::describe(std::uint32_t index, const idempotency::claim &c,
               std::uint64_t now, zone_answer &answer)
{
    const life &l = current(index);

    answer.result = claim_result::found;
    answer.state = l.state;
    answer.same_fingerprint = at(index).head.fingerprint == c.fingerprint;
    answer.attempt = l.attempt;
    answer.remaining = l.expiry == forever ? forever : l.expiry - now;

    if (l.state == record_state::pending && elapsed(l.since, now) > l.lease) {
        answer.state = record_state::unknown;
    }

    if (answer.state == record_state::unknown) {

        if (!c.take_over || !answer.same_fingerprint) {
            return false;
        }

        answer.result = claim_result::claimed;
        answer.state = record_state::pending;
        answer.attempt = l.attempt + 1;
        answer.remaining = later(c.lease, c.keep);
        return true;
    }

    if (answer.state != record_state::pending) {
        answer.age = elapsed(l.since, now);
        answer.response_size = answer.same_fingerprint ? l.size : 0;
    }

    return false;
}


void
zone::take_over(std::uint32_t index, const idempotency::claim &c,
                std::uint64_t now)
{
    change guard(*this);
    life next = current(index);

    next.state = record_state::pending;
    ++next.attempt;
    next.owner = c.owner;
    next.lease = c.lease;
    next.keep = c.keep;
    next.since = now;
    next.expiry = later(later(now, c.lease), c.keep);
    rewrite(index, next);
}


settle_result
zone::complete(const ownership &whose, const completion &how,
               std::uint64_t now)
{
    std::uint32_t index = owned(whose, now);

    if (index == none) {
        return settle_result::lost;
    }

    change guard(*this);
    life next = current(index);
    settle_result result = settle_result::done;

    next.state = how.state;
    next.since = now;
    next.expiry = later(now, how.ttl);

    if (!write(how.response, next, now)) {
        next.state = record_state::not_kept;
        next.expiry = later(now, how.summary_ttl);
        result = settle_result::kept_without_response;

        /* If not even this fits, that it ran is still kept. */
        write(how.summary, next, now);
    }

    rewrite(index, next);

    return result;
}


settle_result
zone::release(const ownership &whose, std::uint64_t now)
{
    std::uint32_t index = owned(whose, now);

    if (index == none) {
        return settle_result::lost;
    }

    change guard(*this);
    erase(index);

    return settle_result::done;
}


settle_result
zone::mark_unknown(const ownership &whose, std::uint64_t keep,
                   std::uint64_t now)
{
    std::uint32_t index = owned(whose, now);

    if (index == none) {
        return settle_result::lost;
    }

    change guard(*this);
    life next = current(index);

    next.state = record_state::unknown;
    next.since = now;
    next.expiry = later(now, keep);
    rewrite(index, next);

    return settle_result::done;
}


settle_result
zone::renew(const ownership &whose, std::uint64_t now)
{
    std::uint32_t index = owned(whose, now);

    if (index == none) {
        return settle_result::lost;
    }

    change guard(*this);
    life next = current(index);

    next.since = now;
    next.expiry = later(later(now, next.lease), next.keep);
    rewrite(index, next);

    return settle_result::done;
}


std::size_t
zone::expire(std::uint64_t now, std::size_t max)
{
    change guard(*this);

    return reclaim(now, max);
}


bool
zone::dirty() const
{
    return dirty_ != 0;
}


/*
 * Trusts nothing but head blocks and the responses they lead to.  These are
 * only read (but for a broken one), so it may itself be cut short and begun
 * again.
 */
recovered
zone::recover()
{
    recovered found{};
    change guard(*this);

    free_ = none;
    used_ = 0;
    records_ = 0;
    heap_size_ = 0;
    std::fill_n(buckets(), std::size_t{1} << bucket_bits_, none);

    for (std::uint32_t i = 0; i < touched_; ++i) {
        at(i).reached = 0;
    }

    for (std::uint32_t i = 0; i < touched_; ++i) {

        if (at(i).kind == head_block) {
            adopt(i, found);
        }
    }

    for (std::uint32_t i = touched_; i-- > 0; /* void */) {
        ++used_;

        if (at(i).reached) {
            continue;
        }

        if (at(i).kind == data_block) {
            ++found.orphans;
        }

        give_back(i);
    }

    found.records = records_;

    return found;
}


void
zone::adopt(std::uint32_t index, recovered &found)
{
    life l = current(index);

    if (!whole(l)) {

        if (l.state == record_state::completed) {
            l.state = record_state::not_kept;
        }

        l.size = 0;
        l.first = none;

        replace(index, l);
        ++found.broken;
    }

    at(index).reached = 1;

    for (std::uint32_t i = l.first; i != none; i = at(i).next) {
        at(i).reached = 1;
    }

    at(index).head.heap_at = none;
    link(index);
    schedule(index);
}


/* A list that ends after so many steps has no loop and no one else's tail. */
bool
zone::whole(const life &l)
{
    std::uint32_t index = l.first;
    std::size_t left = blocks_for(l.size, payload_size);

    if (left > touched_) {
        return false;
    }

    for (/* void */; left > 0; --left) {

        if (index >= touched_ || at(index).kind != data_block
            || at(index).reached) {
            return false;
        }

        index = at(index).next;
    }

    return index == none;
}


zone_stats
zone::stats() const
{
    return {records_, used_, blocks_, block_size};
}


unsigned char *
zone::base()
{
    return reinterpret_cast<unsigned char *>(this);
}


std::uint32_t *
zone::buckets()
{
    return reinterpret_cast<std::uint32_t *>(base() + sizeof(zone));
}


std::uint32_t *
zone::heap()
{
    return reinterpret_cast<std::uint32_t *>(base() + heap_offset_);
}


zone::block &
zone::at(std::uint32_t index)
{
    return reinterpret_cast<block *>(base() + blocks_offset_)[index];
}


zone::life &
zone::current(std::uint32_t index)
{
    record &r = at(index).head;

    return r.lives[r.active];
}


/* The seed is secret, so nobody can choose keys that share a bucket. */
std::uint32_t &
zone::bucket_of(const digest &name)
{
    std::uint64_t word;

    std::memcpy(&word, name.data(), sizeof(word));

    return buckets()[(word * seed_) >> (64 - bucket_bits_)];
}


std::uint32_t
zone::find(const digest &name)
{
    std::uint32_t index = bucket_of(name);

    while (index != none && at(index).head.name != name) {
        index = at(index).head.chain;
    }

    return index;
}


std::uint32_t
zone::owned(const ownership &whose, std::uint64_t now)
{
    std::uint32_t index = find(whose.name);

    if (index == none) {
        return none;
    }

    const life &l = current(index);

    if (l.state != record_state::pending || expired(l.expiry, now)) {
        return none;
    }

    if (l.owner != whose.owner) {
        return none;
    }

    return index;
}


void
zone::link(std::uint32_t index)
{
    record &r = at(index).head;
    std::uint32_t &bucket = bucket_of(r.name);

    r.chain = bucket;
    bucket = index;
    ++records_;
}


void
zone::unlink(std::uint32_t index)
{
    record &r = at(index).head;
    std::uint32_t *from = &bucket_of(r.name);

    while (*from != index) {
        from = &at(*from).head.chain;
    }

    *from = r.chain;
    --records_;
}


void
zone::create(const idempotency::claim &c, std::uint64_t now)
{
    std::uint32_t index = take();
    block &b = at(index);

    b.next = none;
    b.head.name = c.name;
    b.head.fingerprint = c.fingerprint;
    b.head.heap_at = none;
    b.head.active = 0;
    b.head.lives[0] = {
        .expiry = later(later(now, c.lease), c.keep),
        .since = now,
        .lease = c.lease,
        .keep = c.keep,
        .size = 0,
        .first = none,
        .attempt = 1,
        .owner = c.owner,
        .state = record_state::pending,
    };

    publish(b.kind, std::uint8_t{head_block});

    link(index);
    schedule(index);
}


/* The copy in force is never written to; one byte puts the other in force. */
void
zone::replace(std::uint32_t index, const life &next)
{
    record &r = at(index).head;
    std::uint8_t other = !r.active;

    r.lives[other] = next;
    publish(r.active, other);
}


void
zone::rewrite(std::uint32_t index, const life &next)
{
    replace(index, next);
    schedule(index);
}


void
zone::erase(std::uint32_t index)
{
    publish(at(index).kind, std::uint8_t{free_block});

    unlink(index);
    unschedule(index);

    std::uint32_t data = current(index).first;

    give_back(index);

    while (data != none) {
        std::uint32_t next = at(data).next;
        give_back(data);
        data = next;
    }
}


std::uint32_t
zone::take()
{
    std::uint32_t index = free_;

    if (index != none) {
        free_ = at(index).next;

    } else {
        index = touched_;

        /* recover() reads it from the moment it counts as touched. */
        at(index).kind = free_block;
        publish(touched_, touched_ + 1);
    }

    ++used_;

    return index;
}


void
zone::give_back(std::uint32_t index)
{
    block &b = at(index);

    b.kind = free_block;
    b.next = free_;
    free_ = index;
    --used_;
}


bool
zone::make_room(std::size_t blocks, std::uint64_t now)
{
    while (blocks_ - used_ < blocks) {

        if (!expire_one(now)) {
            return false;
        }
    }

    return true;
}


bool
zone::write(pieces response, life &l, std::uint64_t now)
{
    std::size_t size = 0;

    for (auto part : response) {
        size += part.size();
    }

    if (!make_room(blocks_for(size, payload_size), now)) {
        return false;
    }

    std::uint32_t *link_to = &l.first;
    std::uint8_t *to = nullptr;
    std::size_t room = 0;

    for (auto part : response) {

        while (!part.empty()) {

            if (room == 0) {
                std::uint32_t index = take();
                block &b = at(index);

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

    l.size = size;

    return true;
}


void
zone::read(const life &l, std::uint8_t *out)
{
    std::uint32_t index = l.first;
    std::size_t left = l.size;

    while (left > 0) {
        std::size_t n = std::min(left, payload_size);

        std::memcpy(out, at(index).bytes, n);
        out += n;
        left -= n;
        index = at(index).next;
    }
}


bool
zone::expire_one(std::uint64_t now)
{
    if (heap_size_ == 0 || !expired(current(heap()[0]).expiry, now)) {
        return false;
    }

    erase(heap()[0]);

    return true;
}


std::size_t
zone::reclaim(std::uint64_t now, std::size_t max)
{
    std::size_t n = 0;

    while (n < max && expire_one(now)) {
        ++n;
    }

    return n;
}


/* Puts a record where its expiry belongs, whatever it was before. */
void
zone::schedule(std::uint32_t index)
{
    record &r = at(index).head;

    if (current(index).expiry == forever) {
        unschedule(index);
        return;
    }

    if (r.heap_at == none) {
        place(heap_size_, index);
        ++heap_size_;
    }

    settle(r.heap_at);
}


void
zone::unschedule(std::uint32_t index)
{
    std::uint32_t position = at(index).head.heap_at;

    if (position == none) {
        return;
    }

    at(index).head.heap_at = none;
    --heap_size_;

    if (position != heap_size_) {
        place(position, heap()[heap_size_]);
        settle(position);
    }
}


void
zone::place(std::uint32_t position, std::uint32_t index)
{
    heap()[position] = index;
    at(index).head.heap_at = position;
}


/* Moves one that may be out of place up or down until it is not. */
void
zone::settle(std::uint32_t position)
{
    std::uint32_t index = heap()[position];
    std::uint64_t expiry = current(index).expiry;

    while (position > 0) {
        std::uint32_t parent = (position - 1) / 2;

        if (current(heap()[parent]).expiry <= expiry) {
            break;
        }

        place(position, heap()[parent]);
        position = parent;
    }

    /* 64 bits: twice the last position may not fit 32. */
    for (std::uint64_t child = 2ull * position + 1; child < heap_size_;
         child = 2ull * position + 1)
    {
        if (child + 1 < heap_size_
            && current(heap()[child + 1]).expiry
                   < current(heap()[child]).expiry)
        {
            ++child;
        }

        if (expiry <= current(heap()[child]).expiry) {
            break;
        }

        place(position, heap()[child]);
        position = static_cast<std::uint32_t>(child);
    }

    place(position, index);
}

}
