#include "module/shared_response.h"

#include <algorithm>
#include <cstring>

namespace idempotency {

struct shared_response {
    std::size_t users;
    std::size_t size;
    shared_response *next; /* in its row, see rows */
    bool listed;
    record_id name;

    std::uint8_t *bytes()
    {
        return reinterpret_cast<std::uint8_t *>(this + 1);
    }

    std::span<const std::uint8_t> view() { return {bytes(), size}; }
};


namespace {

/* Smaller ones are not worth it, and the pool would not give them back. */
constexpr std::size_t worth_sharing = 8 * 1024;

/* Those of this worker that replays use now, by a byte of their names. */
shared_response *rows[256];

shared_response *make_shared(std::size_t size);
shared_response *find(const record_id &name,
                      std::span<const std::uint8_t> response);
void enlist(shared_response *response, const record_id &name);
void strike(shared_response *response);
ngx_pool_cleanup_t *find_use(ngx_http_request_t *r, const std::uint8_t *bytes);
void end_use(void *data);

}


shared_response *
copy_response(std::span<const std::uint8_t> response)
{
    shared_response *copy = make_shared(response.size());

    if (copy != nullptr) {
        ngx_memcpy(copy->bytes(), response.data(), response.size());
    }

    return copy;
}


std::span<const std::uint8_t>
use_response(ngx_http_request_t *r, shared_response *response)
{
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool, 0);

    if (cleanup == nullptr) {
        return {};
    }

    response->users++;
    cleanup->data = response;
    cleanup->handler = end_use;

    return response->view();
}


std::uint8_t *
room_to_share(ngx_http_request_t *r, std::size_t size)
{
    if (size < worth_sharing) {
        return static_cast<std::uint8_t *>(ngx_pnalloc(r->pool, size));
    }

    shared_response *own = make_shared(size);

    if (own == nullptr) {
        return nullptr;
    }

    auto used = use_response(r, own);

    drop_response(own);

    return used.empty() ? nullptr : own->bytes();
}


std::span<const std::uint8_t>
share_response(ngx_http_request_t *r, const record_id &name,
               std::span<const std::uint8_t> response)
{
    ngx_pool_cleanup_t *use = response.size() < worth_sharing
                                  ? nullptr
                                  : find_use(r, response.data());

    if (use == nullptr) {
        return response;
    }

    auto *own = static_cast<shared_response *>(use->data);

    if (own->listed) {
        return response;
    }

    shared_response *other = find(name, response);

    if (other == nullptr) {
        enlist(own, name);
        return response;
    }

    other->users++;
    use->data = other;
    drop_response(own);

    return other->view();
}


void
drop_response(shared_response *response)
{
    if (response == nullptr || --response->users != 0) {
        return;
    }

    if (response->listed) {
        strike(response);
    }

    ngx_free(response);
}


namespace {

/* Null: no memory.  The caller is the first user. */
shared_response *
make_shared(std::size_t size)
{
    auto *made = static_cast<shared_response *>(
        ngx_alloc(sizeof(shared_response) + size, ngx_cycle->log));

    if (made != nullptr) {
        *made = {1, size, nullptr, false, {}};
    }

    return made;
}


/* Of one name there may be two, if a record has expired meanwhile. */
shared_response *
find(const record_id &name, std::span<const std::uint8_t> response)
{
    shared_response *s = rows[name[0]];

    while (s != nullptr
           && (s->name != name || !std::ranges::equal(s->view(), response)))
    {
        s = s->next;
    }

    return s;
}


void
enlist(shared_response *response, const record_id &name)
{
    shared_response *&row = rows[name[0]];

    response->name = name;
    response->listed = true;
    response->next = row;
    row = response;
}


void
strike(shared_response *response)
{
    shared_response **link = &rows[response->name[0]];

    while (*link != response) {
        link = &(*link)->next;
    }

    *link = response->next;
}


/* What makes the request a user of these bytes; null: they are its own. */
ngx_pool_cleanup_t *
find_use(ngx_http_request_t *r, const std::uint8_t *bytes)
{
    for (ngx_pool_cleanup_t *c = r->pool->cleanup; c != nullptr; c = c->next) {
        if (c->handler == end_use
            && static_cast<shared_response *>(c->data)->bytes() == bytes)
        {
            return c;
        }
    }

    return nullptr;
}


void
end_use(void *data)
{
    drop_response(static_cast<shared_response *>(data));
}

}

}
