#include "module/context.h"

namespace idempotency {

/*
 * The requests of this worker that wait for one record: same name, same
 * fingerprint, same location.  One of them at most asks the store, or runs;
 * what it learns decides about the rest, so that a thousand waiters cost the
 * store no more than one.  While the owner is in another worker or on another
 * machine the first in the queue asks again now and then.
 */
struct shared_wait {
    ngx_queue_t link;
    ngx_queue_t waiters;
    context *asker; /* asks the store, or runs */
    digest name;
    digest fingerprint;
    const location_conf *conf;
    claim_answer last; /* the pending record as it was met */
    bool met;          /* ... if it was, */
    ngx_msec_t met_at; /* ... and when */
    own_event poll;
    ngx_msec_t step;
};


namespace {

constexpr ngx_msec_t first_step = 10;
constexpr ngx_msec_t longest_step = 200;
constexpr std::size_t bucket_count = 256;

ngx_queue_t buckets[bucket_count];


ngx_queue_t *
bucket_of(const digest &name)
{
    return &buckets[name[0] % bucket_count];
}


shared_wait *
find_wait(const context &ctx)
{
    ngx_queue_t *bucket = bucket_of(ctx.own.name);

    for (ngx_queue_t *q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket); q = ngx_queue_next(q))
    {
        auto *wait = ngx_queue_data(q, shared_wait, link);

        if (wait->name == ctx.own.name && wait->fingerprint == ctx.fingerprint
            && wait->conf == ctx.conf)
        {
            return wait;
        }
    }

    return nullptr;
}


context *
waiter_of(ngx_queue_t *link)
{
    auto *place = ngx_queue_data(link, waiting_link, queue);

    return place->waiter;
}


void
wake(context &ctx)
{
    if (!ctx.wait.wake.event.posted) {
        ngx_post_event(&ctx.wait.wake.event, &ngx_posted_events);
    }
}


void
wake_first(shared_wait *wait)
{
    if (wait->asker == nullptr && !ngx_queue_empty(&wait->waiters)) {
        wake(*waiter_of(ngx_queue_head(&wait->waiters)));
    }
}


void
poll_store(ngx_event_t *event)
{
    wake_first(own_event::owner_of<shared_wait>(event));
}


shared_wait *
make_wait(const context &ctx)
{
    void *memory = ngx_alloc(sizeof(shared_wait), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *wait = ::new (memory) shared_wait{};

    wait->name = ctx.own.name;
    wait->fingerprint = ctx.fingerprint;
    wait->conf = ctx.conf;
    wait->step = first_step;
    wait->last.result = claim_result::found;
    wait->last.same_fingerprint = true;
    wait->poll.init(wait, poll_store, ngx_cycle->log);
    ngx_queue_init(&wait->waiters);
    ngx_queue_insert_tail(bucket_of(wait->name), &wait->link);

    return wait;
}


/* As long as anyone waits and nobody asks, the store is asked now and then. */
void
go_on(shared_wait *wait)
{
    if (wait->asker != nullptr) {
        return;
    }

    if (ngx_queue_empty(&wait->waiters)) {
        wait->poll.stop();
        ngx_queue_remove(&wait->link);
        ngx_free(wait);
        return;
    }

    if (!wait->poll.event.timer_set) {
        ngx_add_timer(
            &wait->poll.event,
            wait->step + static_cast<ngx_msec_t>(ngx_random()) % wait->step);
    }
}


bool
is_asker(const context &ctx)
{
    return ctx.wait.key != nullptr && ctx.wait.key->asker == &ctx;
}


/* Out of the queue, or no more the one who asks. */
shared_wait *
take_out(context &ctx)
{
    shared_wait *wait = ctx.wait.key;

    if (is_asker(ctx)) {
        wait->asker = nullptr;

    } else {
        ngx_queue_remove(&ctx.wait.link.queue);
    }

    ctx.wait.key = nullptr;

    return wait;
}


/* The first in the queue asks again, or has been told what it waited for. */
void
woken(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    if (ctx->at == stage::parked) {
        shared_wait *wait = take_out(*ctx);

        wait->asker = ctx;
        ctx->wait.key = wait;
        ctx->at = stage::ready;
    }

    resume(*ctx);
}


/*
 * Whether the record is known to be pending: it runs in this worker, or the
 * store has said so since this one came, and not too long ago.
 */
bool
is_sure(const context &ctx)
{
    const shared_wait *wait = ctx.wait.key;
    auto since_met = static_cast<ngx_msec_int_t>(ngx_current_msec
                                                 - wait->met_at);
    auto waited = static_cast<ngx_msec_int_t>(ngx_current_msec
                                              - ctx.wait.since);

    if (wait->asker != nullptr && wait->asker->at == stage::running) {
        return true;
    }

    return wait->met && since_met <= waited
           && since_met <= static_cast<ngx_msec_int_t>(3 * longest_step);
}


void
give_up(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    ctx->wait.over = true;

    if (ctx->at != stage::parked) {
        return;
    }

    bool next = ctx->wait.wake.event.posted;

    ctx->wait.wake.stop();
    ctx->at = is_sure(*ctx) ? stage::answered : stage::ready;
    ctx->wait.met = ctx->wait.key->met;
    ctx->wait.last = ctx->wait.key->last;

    shared_wait *wait = take_out(*ctx);

    if (next) {
        wake_first(wait);
    }

    go_on(wait);
    resume(*ctx);
}


void
start_waiting(context &ctx)
{
    ngx_log_t *log = ctx.request->connection->log;

    ctx.wait.started = true;
    ctx.wait.since = ngx_current_msec;
    ctx.wait.link.waiter = &ctx;
    ctx.wait.wake.init(&ctx, woken, log);
    ctx.wait.deadline.init(&ctx, give_up, log);
    ngx_add_timer(&ctx.wait.deadline.event, ctx.conf->wait);
}


/* As limit_req does: a client that leaves frees its place. */
bool
watch_client(ngx_http_request_t *r)
{
    ngx_event_t *rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return false;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return true;
}


/*
 * The asker's memory goes with its request, so a response that others are to
 * get is copied once, and goes with the last of them.
 */
struct shared_response {
    std::size_t users;

    std::uint8_t *bytes()
    {
        return reinterpret_cast<std::uint8_t *>(this + 1);
    }
};


shared_response *
copy_response(const claim_answer &answer)
{
    auto *copy = static_cast<shared_response *>(ngx_alloc(
        sizeof(shared_response) + answer.response.size(), ngx_cycle->log));

    if (copy != nullptr) {
        copy->users = 1;
        ngx_memcpy(copy->bytes(), answer.response.data(),
                   answer.response.size());
    }

    return copy;
}


void
drop_response(void *data)
{
    auto *copy = static_cast<shared_response *>(data);

    if (copy != nullptr && --copy->users == 0) {
        ngx_free(copy);
    }
}


void
tell(context &ctx, const claim_answer &answer, shared_response *copy)
{
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(ctx.request->pool, 0);

    ctx.answer = answer;
    ctx.at = stage::answered;

    if (cleanup != nullptr && copy != nullptr) {
        copy->users++;
        cleanup->handler = drop_response;
        cleanup->data = copy;
        ctx.answer.response = {copy->bytes(), answer.response.size()};

    } else if (!answer.response.empty()) {
        ctx.answer.result = claim_result::unreadable;
        ctx.answer.response = {};
    }

    wake(ctx);
}

}


void
init_waiting()
{
    for (ngx_queue_t &bucket : buckets) {
        ngx_queue_init(&bucket);
    }
}


/*
 * Before a request claims: true if another one of this worker does so, or
 * runs, for the same key.  Then it waits for what that one learns.
 */
bool
join(context &ctx)
{
    if (ctx.conf->wait == 0 || ctx.conf->dry_run || ctx.wait.started) {
        return false;
    }

    shared_wait *wait = find_wait(ctx);

    if (wait == nullptr) {
        wait = make_wait(ctx);

        if (wait != nullptr) {
            wait->asker = &ctx;
            ctx.wait.key = wait;
        }

        return false;
    }

    if (!watch_client(ctx.request)) {
        return false;
    }

    start_waiting(ctx);
    ctx.answer = wait->last;
    ctx.wait.key = wait;
    ctx.at = stage::parked;
    ngx_queue_insert_tail(&wait->waiters, &ctx.wait.link.queue);

    return true;
}


/* For one that has asked in vain: what was known before it asked. */
bool
was_pending(context &ctx)
{
    if (is_asker(ctx) && ctx.wait.key->met) {
        ctx.answer = ctx.wait.key->last;
        return true;
    }

    if (ctx.wait.met) {
        ctx.answer = ctx.wait.last;
        return true;
    }

    return false;
}


/* This one runs: what was known of the record is no more. */
void
note_claimed(context &ctx)
{
    if (is_asker(ctx)) {
        ctx.wait.key->met = false;
    }
}


/*
 * The record is pending.  False: this one cannot wait, or has waited long
 * enough.  Who has asked the store in vain goes back to the head of the queue,
 * and the next question comes later than the last.
 */
bool
park(context &ctx)
{
    if (!is_asker(ctx) || ctx.wait.over || !watch_client(ctx.request)) {
        return false;
    }

    shared_wait *wait = ctx.wait.key;

    if (!ctx.wait.started) {
        start_waiting(ctx);

    } else {
        wait->step = ngx_min(wait->step * 2, longest_step);
    }

    wait->last = ctx.answer;
    wait->met = true;
    wait->met_at = ngx_current_msec;
    wait->asker = nullptr;
    ctx.at = stage::parked;
    ngx_queue_insert_head(&wait->waiters, &ctx.wait.link.queue);

    go_on(wait);

    return true;
}


/*
 * It waits no more.  If it was to ask the store, or has run, the next one
 * does not have to wait for the timer.
 */
void
leave(context &ctx)
{
    if (ctx.wait.started) {
        ctx.wait.deadline.stop();
    }

    if (ctx.wait.key == nullptr) {

        /* It was told, and dies before it could hear. */
        if (ctx.wait.started) {
            ctx.wait.wake.stop();
        }

        return;
    }

    bool next = is_asker(ctx);

    if (!next) {
        next = ctx.wait.wake.event.posted;
        ctx.wait.wake.stop();
    }

    shared_wait *wait = take_out(ctx);

    if (next) {
        wake_first(wait);
    }

    go_on(wait);
}


/* All who wait get the answer that this one got. */
void
share_answer(context &ctx)
{
    if (!is_asker(ctx)) {
        return;
    }

    shared_wait *wait = take_out(ctx);
    shared_response *copy = nullptr;

    if (!ngx_queue_empty(&wait->waiters) && !ctx.answer.response.empty()) {
        copy = copy_response(ctx.answer);
    }

    while (!ngx_queue_empty(&wait->waiters)) {
        context *other = waiter_of(ngx_queue_head(&wait->waiters));

        take_out(*other);
        other->wait.deadline.stop();
        tell(*other, ctx.answer, copy);
    }

    drop_response(copy);
    go_on(wait);
}


/* The run of this key is over: whoever waits for it may ask. */
void
wake_one(context &ctx)
{
    ngx_queue_t *bucket = bucket_of(ctx.own.name);

    leave(ctx);

    for (ngx_queue_t *q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket); q = ngx_queue_next(q))
    {
        auto *wait = ngx_queue_data(q, shared_wait, link);

        if (wait->name == ctx.own.name) {
            wake_first(wait);
        }
    }
}

}
