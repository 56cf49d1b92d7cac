#include "store/redis.h"

#include "store/redis_record.h"
#include "store/redis_store.h"

namespace idempotency {

operation *
redis_store::make_operation(script_id what, const ownership &whose)
{
    void *memory = ngx_alloc(sizeof(operation), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *op = ::new (memory) operation{};

    op->owner = this;
    op->link_late.late = op;
    op->command::answered = answered;
    op->command::slow = slow;
    op->what = what;
    op->whose = whose;

    /* All that is done to one record goes one way, in order. */
    op->link = &links_[whose.name[sizeof(digest) - 1] % settings_.connections];

    return op;
}


void
redis_store::free_operation(operation *op)
{
    ngx_free(const_cast<std::uint8_t *>(op->own_response.data()));
    ngx_free(op->summary);
    ngx_free(op);
}


void
redis_store::claim_record(const claim &what, claim_waiter &waiter)
{
    ownership whose = {what.name, what.owner, what.lease};
    operation *op = make_operation(script_id::claim, whose);

    if (op == nullptr || !op->link->usable()) {
        ngx_free(op);
        claims_failed_++;
        waiter.answered(waiter, {});
        return;
    }

    op->claimer = &waiter;
    op->fingerprint = what.fingerprint;
    op->take_over = what.take_over;
    op->expiry = what.keep == forever ? redis_longest
                                      : redis_expiry(what.lease + what.keep);
    op->plain = !what.again && !op->link->needs_claim_script;

    waiter.under_way = op;
    send(*op);
}


void
redis_store::settle(operation *op, settle_waiter *waiter)
{
    if (op == nullptr) {
        if (waiter != nullptr) {
            waiter->settled(*waiter, settle_result::unavailable);
        }

        return;
    }

    op->settler = waiter;

    if (waiter != nullptr) {
        waiter->under_way = op;
    }

    if (op->link->usable()) {
        send(*op);

    } else {
        settle_failed(*op);
    }
}


void
redis_store::complete(const ownership &whose, const completion &how,
                      settle_waiter *waiter)
{
    operation *op = make_operation(script_id::complete, whose);

    if (op != nullptr) {
        op->state = how.state;
        op->expiry = redis_expiry(how.ttl);
        op->response = how.response;
        op->summary_expiry = redis_expiry(how.summary_ttl);
        op->summary_size = size_of(how.summary);
        op->summary = static_cast<std::uint8_t *>(
            ngx_alloc(op->summary_size + 1, ngx_cycle->log));

        std::uint8_t *p = op->summary;

        for (bytes part : p != nullptr ? how.summary : pieces()) {
            p = ngx_cpymem(p, part.data(), part.size());
        }
    }

    settle(op, waiter);
}


void
redis_store::release(const ownership &whose, settle_waiter *waiter)
{
    settle(make_operation(script_id::release, whose), waiter);
}


void
redis_store::mark_unknown(const ownership &whose, std::uint64_t keep,
                          settle_waiter *waiter)
{
    operation *op = make_operation(script_id::mark_unknown, whose);

    if (op != nullptr) {
        op->expiry = redis_expiry(keep);
    }

    settle(op, waiter);
}


void
redis_store::renew(const ownership &whose, settle_waiter &waiter)
{
    settle(make_operation(script_id::renew, whose), &waiter);
}


void
redis_store::forget(claim_waiter &waiter)
{
    waiter.under_way->claimer = nullptr;
    waiter.under_way = nullptr;
}


/* The bytes of the response go with the request. */
void
redis_store::forget(settle_waiter &waiter)
{
    operation &op = *waiter.under_way;

    op.settler = nullptr;
    waiter.under_way = nullptr;

    if (!own_response(op)) {
        op.link->give_up("no memory for a response");
    }
}


void
redis_store::start()
{
    name_scripts();
    ngx_queue_init(&late_);
    tick_.init(this, on_tick, ngx_cycle->log);

    for (redis_link &link : std::span(links_, settings_.connections)) {
        link.start();
    }
}


void
redis_store::stop()
{
    stopping_ = true;
    tick_.stop();

    for (redis_link &link : std::span(links_, settings_.connections)) {
        link.stop();
    }

    while (!ngx_queue_empty(&late_)) {
        operation &op = late_at(ngx_queue_head(&late_));

        ngx_queue_remove(&op.link_late.queue);
        free_operation(&op);
    }
}


store *
make_redis_store(ngx_conf_t *cf, const redis_settings &settings)
{
    auto *links = static_cast<redis_link *>(
        ngx_palloc(cf->pool, settings.connections * sizeof(redis_link)));
    auto *made = make<redis_store>(cf->pool, settings, links);

    if (links == nullptr || made == nullptr) {
        return nullptr;
    }

    for (ngx_uint_t i = 0; i < settings.connections; i++) {
        ::new (&links[i]) redis_link(settings.server, *made);
    }

    return made;
}

}