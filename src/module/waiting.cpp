#include "module/context.h"

namespace idempotency {

/*
 * The requests of this worker that wait for one record.  Made by the first
 * that parks, freed when the last leaves.  Only the first in the queue asks
 * the store again, woken by the owner's end if that is in this worker and by
 * the timer else; what it learns decides about the rest.
 */
struct parked_key {
    ngx_queue_t link;
    ngx_queue_t waiters;
    digest name;
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


parked_key *
find_parked(const digest &name)
{
    ngx_queue_t *bucket = bucket_of(name);

    for (ngx_queue_t *q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket); q = ngx_queue_next(q))
    {
        auto *key = ngx_queue_data(q, parked_key, link);

        if (key->name == name) {
            return key;
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
wake_first(parked_key *key)
{
    wake(*waiter_of(ngx_queue_head(&key->waiters)));
}


void
poll_store(ngx_event_t *event)
{
    wake_first(own_event::owner_of<parked_key>(event));
}


parked_key *
make_parked(const digest &name)
{
    void *memory = ngx_alloc(sizeof(parked_key), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *key = ::new (memory) parked_key{};

    key->name = name;
    key->step = first_step;
    key->poll.init(key, poll_store, ngx_cycle->log);
    ngx_queue_init(&key->waiters);
    ngx_queue_insert_tail(bucket_of(name), &key->link);

    return key;
}


/* As long as anyone waits, the store is asked now and then. */
void
go_on_polling(parked_key *key)
{
    if (!key->poll.event.timer_set) {
        ngx_add_timer(&key->poll.event,
                      key->step
                          + static_cast<ngx_msec_t>(ngx_random()) % key->step);
    }
}


/* Out of the queue, to ask the store or to give up. */
void
take_out(context &ctx)
{
    parked_key *key = ctx.wait.key;

    ngx_queue_remove(&ctx.wait.link.queue);
    ctx.wait.key = nullptr;
    ctx.wait.wake.stop();

    if (!ngx_queue_empty(&key->waiters)) {
        go_on_polling(key);
        return;
    }

    key->poll.stop();
    ngx_queue_remove(&key->link);
    ngx_free(key);
}


void
ask_again(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    take_out(*ctx);
    ctx->at = stage::ready;
    resume(*ctx);
}


void
give_up(ngx_event_t *event)
{
    auto *ctx = own_event::owner_of<context>(event);

    ctx->wait.over = true;

    if (ctx->wait.key == nullptr) {
        return;
    }

    take_out(*ctx);
    ctx->at = stage::answered;
    resume(*ctx);
}


void
start_waiting(context &ctx)
{
    ngx_log_t *log = ctx.request->connection->log;

    ctx.wait.started = true;
    ctx.wait.link.waiter = &ctx;
    ctx.wait.wake.init(&ctx, ask_again, log);
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

}


void
init_waiting()
{
    for (ngx_queue_t &bucket : buckets) {
        ngx_queue_init(&bucket);
    }
}


/*
 * False: it cannot wait, or has waited long enough.  Who has asked the store
 * in vain goes back to the head of the queue, and the next question comes
 * later than the last.
 */
bool
park(context &ctx)
{
    bool again = ctx.wait.started;

    if (ctx.wait.over || !watch_client(ctx.request)) {
        return false;
    }

    parked_key *key = find_parked(ctx.own.name);

    if (key == nullptr) {
        key = make_parked(ctx.own.name);

        if (key == nullptr) {
            return false;
        }
    }

    if (!again) {
        start_waiting(ctx);
        ngx_queue_insert_tail(&key->waiters, &ctx.wait.link.queue);

    } else {
        ngx_queue_insert_head(&key->waiters, &ctx.wait.link.queue);
        key->step = ngx_min(ctx.wait.step * 2, longest_step);
    }

    ctx.wait.key = key;
    ctx.wait.step = key->step;
    ctx.at = stage::parked;

    go_on_polling(key);

    return true;
}


/* It waits no more; if it was about to ask the store, the next one does. */
void
leave(context &ctx)
{
    if (!ctx.wait.started) {
        return;
    }

    ctx.wait.deadline.stop();

    if (ctx.wait.key == nullptr) {
        return;
    }

    bool woken = ctx.wait.wake.event.posted;

    take_out(ctx);

    if (woken) {
        wake_one(ctx.own.name);
    }
}


void
wake_one(const digest &name)
{
    parked_key *key = find_parked(name);

    if (key != nullptr) {
        wake_first(key);
    }
}


void
wake_all(const digest &name)
{
    parked_key *key = find_parked(name);

    if (key == nullptr) {
        return;
    }

    for (ngx_queue_t *q = ngx_queue_head(&key->waiters);
         q != ngx_queue_sentinel(&key->waiters); q = ngx_queue_next(q))
    {
        wake(*waiter_of(q));
    }
}

}
