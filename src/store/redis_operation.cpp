#include "store/redis_operation.h"

#include "store/redis_record.h"

namespace idempotency {

operation *
make_operation(redis_store &owner, redis_link &link, purpose why,
               const ownership &whose)
{
    void *memory = ngx_alloc(sizeof(operation), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *op = ::new (memory) operation{};

    op->owner = &owner;
    op->link = &link;
    op->why = why;

    /* Sent again in full, a renewal would come after what followed it. */
    op->written = why == purpose::renew ? form::script_in_full
                                        : form::script_by_hash;

    op->whose = whose;
    op->asked_at = ngx_current_msec;
    op->late.op = op;

    return op;
}


void
free_operation(operation *op)
{
    op->leave_gate();
    ngx_free(const_cast<std::uint8_t *>(op->own_response.data()));
    ngx_free(op->summary);
    ngx_free(op);
}


void
operation::copy_summary(pieces from, std::uint64_t ttl)
{
    summary_expiry = redis_expiry(ttl);
    summary_size = size_of(from);
    summary = static_cast<std::uint8_t *>(
        ngx_alloc(summary_size + 1, ngx_cycle->log));

    if (summary == nullptr) {
        return;
    }

    std::uint8_t *p = summary;

    for (bytes part : from) {
        p = ngx_cpymem(p, part.data(), part.size());
    }
}


bool
operation::own_the_response()
{
    std::size_t size = size_of(response);

    if (own_response.data() != nullptr || size == 0) {
        return true;
    }

    auto *copy = static_cast<std::uint8_t *>(ngx_alloc(size, ngx_cycle->log));

    if (copy == nullptr) {
        return false;
    }

    std::uint8_t *p = copy;

    for (bytes part : response) {
        ngx_memcpy(p, part.data(), part.size());
        link->part_moved(part, p);
        p += part.size();
    }

    own_response = {copy, size};
    response = {&own_response, 1};

    return true;
}


void
operation::enter_gate()
{
    if (!holds_gate) {
        holds_gate = true;
        link->gate.outcomes_in_doubt++;
    }
}


void
operation::leave_gate()
{
    if (holds_gate) {
        holds_gate = false;
        link->gate.outcomes_in_doubt--;
    }
}


void
operation::move_to(redis_link &to)
{
    bool held_gate = holds_gate;

    leave_gate();
    link = &to;

    if (held_gate) {
        enter_gate();
    }
}


bool
operation::use_summary()
{
    if (summary == nullptr) {
        return false;
    }

    ngx_free(const_cast<std::uint8_t *>(own_response.data()));
    own_response = {summary, summary_size};
    response = {&own_response, 1};
    summary = nullptr;
    is_summary = true;
    state = record_state::not_kept;
    expiry = summary_expiry;

    return true;
}

}
