#include "store/redis_kept.h"

namespace idempotency {

namespace {

/*
 * While a server is away, what is stored on others must not push out its
 * records: there is room for as much again.
 */
constexpr std::size_t most_bytes = 8 * 1024 * 1024;
constexpr std::size_t most_in_all = 2 * most_bytes;

/* A larger response would push out too many others. */
constexpr std::size_t largest_response = 256 * 1024;

kept_record &record_at(ngx_queue_t *q);
std::size_t bytes_in(const kept_record &record);

}


void
kept_records::start()
{
    for (ngx_queue_t &bucket : buckets_) {
        ngx_queue_init(&bucket);
    }

    ngx_queue_init(&running_);
    ngx_queue_init(&settled_);
    ngx_queue_init(&away_);
    ngx_queue_init(&in_doubt_);
}


void
kept_records::stop()
{
    for (ngx_queue_t *list : {&running_, &settled_, &away_, &in_doubt_}) {
        while (!ngx_queue_empty(list)) {
            remove(record_at(ngx_queue_head(list)));
        }
    }
}


void
kept_records::claimed(const operation &op)
{
    kept_record *record = add(op, purpose::renew, 0);

    if (record != nullptr) {
        record->state = record_state::pending;
        record->expiry = op.expiry;
        ngx_queue_insert_tail(&running_, &record->list);
    }
}


void
kept_records::settled(const operation &op)
{
    forget(op.whose.owner);

    bool is_large = size_of(op.response) > largest_response;
    bool has_summary = op.summary != nullptr;
    std::size_t size = !is_large     ? size_of(op.response)
                       : has_summary ? op.summary_size
                                     : 0;
    kept_record *record = add(op, op.why, size);

    if (record == nullptr) {
        return;
    }

    record->state = is_large ? record_state::not_kept : op.state;
    record->expiry = is_large && has_summary ? op.summary_expiry : op.expiry;
    record->mark = op.mark != 0 ? op.mark : op.link->server_time();
    record->since = ngx_current_msec;
    record->written = ngx_current_msec;

    auto *to = reinterpret_cast<std::uint8_t *>(record + 1);

    if (is_large) {
        ngx_memcpy(to, op.summary, size);

    } else {
        for (bytes part : op.response) {
            to = ngx_cpymem(to, part.data(), part.size());
        }
    }

    bytes_ += bytes_in(*record);
    ngx_queue_insert_tail(&settled_, &record->list);
    drop_old();
}


void
kept_records::forget(const token &owner)
{
    kept_record *record = find(owner);

    if (record != nullptr) {
        remove(*record);
    }
}


kept_record *
kept_records::find(const token &owner)
{
    if (!keeps()) {
        return nullptr;
    }

    ngx_queue_t &bucket = bucket_of(owner);

    for (ngx_queue_t *q = ngx_queue_head(&bucket);
         q != ngx_queue_sentinel(&bucket); q = ngx_queue_next(q))
    {
        kept_record *record = ngx_queue_data(q, kept_record, bucket);

        if (record->whose.owner == owner) {
            return record;
        }
    }

    return nullptr;
}


void
kept_records::doubt(redis_link &link)
{
    drop_old();
    doubt_all(running_, link);
    doubt_all(away_, link);
    doubt_all(settled_, link);
}


void
kept_records::doubt(const token &owner)
{
    kept_record *record = find(owner);

    if (record != nullptr) {
        doubt(*record);
    }
}


/* What is not in doubt by now is as before, and older than the others. */
void
kept_records::is_back(redis_link &link)
{
    ngx_queue_t *first = ngx_queue_head(&settled_);
    ngx_queue_t *q = ngx_queue_head(&away_);

    while (q != ngx_queue_sentinel(&away_)) {
        kept_record &record = record_at(q);

        q = ngx_queue_next(q);

        if (&home_of(record) == &link) {
            move(record, first, false);
        }
    }
}


void
kept_records::doubt_all(ngx_queue_t &list, const redis_link &link)
{
    ngx_queue_t *q = ngx_queue_head(&list);

    while (q != ngx_queue_sentinel(&list)) {
        kept_record &record = record_at(q);

        q = ngx_queue_next(q);

        if (&home_of(record) == &link) {
            doubt(record);
        }
    }
}


void
kept_records::doubt(kept_record &record)
{
    record.in_doubt = true;
    record.is_sent = false;
    move(record, &in_doubt_, true);
}


void
kept_records::send_again(redis_link &link)
{
    for (ngx_queue_t *q = ngx_queue_head(&in_doubt_);
         q != ngx_queue_sentinel(&in_doubt_); q = ngx_queue_next(q))
    {
        if (&home_of(record_at(q)) == &link) {
            record_at(q).is_sent = false;
        }
    }
}


/* Those that are sent already stand at the end. */
kept_record *
kept_records::next_in_doubt(redis_link &link)
{
    for (ngx_queue_t *q = ngx_queue_head(&in_doubt_);
         q != ngx_queue_sentinel(&in_doubt_); q = ngx_queue_next(q))
    {
        kept_record &record = record_at(q);

        if (!record.is_sent && &home_of(record) == &link) {
            record.is_sent = true;
            ngx_queue_remove(&record.list);
            ngx_queue_insert_tail(&in_doubt_, &record.list);
            return &record;
        }
    }

    return nullptr;
}


bool
kept_records::any_in_doubt(const redis_link &link) const
{
    for (ngx_queue_t *q = ngx_queue_head(&in_doubt_);
         q != ngx_queue_sentinel(&in_doubt_); q = ngx_queue_next(q))
    {
        if (&home_of(record_at(q)) == &link) {
            return true;
        }
    }

    return false;
}


void
kept_records::confirm(kept_record &record)
{
    if (!record.in_doubt) {
        return;
    }

    record.in_doubt = false;
    record.written = ngx_current_msec;
    move(record, record.runs() ? &running_ : &settled_, false);
}


/* The caller puts it into a list. */
kept_record *
kept_records::add(const operation &op, purpose why, std::size_t size)
{
    if (!keeps()) {
        return nullptr;
    }

    void *memory = ngx_alloc(sizeof(kept_record) + size, ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *record = ::new (memory) kept_record{};

    record->slot = op.slot;
    record->whose = op.whose;
    record->why = why;
    record->size = size;
    ngx_queue_insert_head(&bucket_of(op.whose.owner), &record->bucket);

    return record;
}


void
kept_records::remove(kept_record &record)
{
    bytes_of(record) -= bytes_in(record);
    ngx_queue_remove(&record.bucket);
    ngx_queue_remove(&record.list);
    ngx_free(&record);
}


/* Before a record, or to the end of a list. */
void
kept_records::move(kept_record &record, ngx_queue_t *before, bool aside)
{
    bytes_of(record) -= bytes_in(record);
    record.is_aside = aside;
    bytes_of(record) += bytes_in(record);
    ngx_queue_remove(&record.list);
    ngx_queue_insert_tail(before, &record.list);
}


std::size_t &
kept_records::bytes_of(const kept_record &record)
{
    return record.is_aside ? bytes_aside_ : bytes_;
}


void
kept_records::drop_old()
{
    while (!ngx_queue_empty(&settled_)) {
        kept_record &oldest = record_at(ngx_queue_head(&settled_));
        bool old = is_old(oldest);

        if (!old && bytes_ <= most_bytes) {
            break;
        }

        if (!old && !home_of(oldest).is_ready()) {
            move(oldest, &away_, true);

        } else {
            remove(oldest);
        }
    }

    for (ngx_queue_t *list : {&away_, &settled_}) {
        while (bytes_ + bytes_aside_ > most_in_all && !ngx_queue_empty(list)) {
            remove(record_at(ngx_queue_head(list)));
        }
    }
}


/* While its server was away, it was not copied either. */
bool
kept_records::is_old(const kept_record &record) const
{
    ngx_msec_t age = home_of(record).last_there() - record.written;

    return static_cast<ngx_msec_int_t>(age - longest_age_) >= 0;
}


redis_link &
kept_records::home_of(const kept_record &record) const
{
    return homes_.home_of(record.whose.name, record.slot);
}


/* Tokens are random. */
ngx_queue_t &
kept_records::bucket_of(const token &owner)
{
    return buckets_[(owner[0] | owner[1] << 8) % buckets];
}


namespace {

kept_record &
record_at(ngx_queue_t *q)
{
    return *ngx_queue_data(q, kept_record, list);
}


/* Running requests are limited by others. */
std::size_t
bytes_in(const kept_record &record)
{
    return record.runs() ? 0 : sizeof(kept_record) + record.size;
}

}

}
