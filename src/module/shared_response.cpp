#include "module/shared_response.h"

#include <algorithm>
#include <cstring>

namespace idempotency {

struct shared_response {
    std::size_t users;
    std::size_t size;
    shared_response *next; /* in its row, see rows */
    bool listed;
    digest name;

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

shared_response *find(const digest &name,
                      std::span<const std::uint8_t> response);
void enlist(shared_response *response, const digest &name);
void strike(shared_response *response);
bool is_user(ngx_http_request_t *r, const std::uint8_t *bytes);
void end_use(void *data);

}


shared_response *
copy_response(std::span<const std::uint8_t> response)
{
    auto *copy = static_cast<shared_response *>(
        ngx_alloc(sizeof(shared_response) + response.size(), ngx_cycle->log));

    if (copy != nullptr) {
        *copy = {1, response.size(), nullptr, false, {}};
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


std::span<const std::uint8_t>
share_response(ngx_http_request_t *r, const digest &name,
               std::span<const std::uint8_t> response)
{
    if (response.size() < worth_sharing || is_user(r, response.data())) {
        return response;
    }

    shared_response *shared = find(name, response);

    if (shared != nullptr) {
        shared->users++;

    } else {
        shared = copy_response(response);

        if (shared == nullptr) {
            return response;
        }

        enlist(shared, name);
    }

    auto used = use_response(r, shared);

    drop_response(shared);

    if (used.empty()) {
        return response;
    }

    ngx_pfree(r->pool, const_cast<std::uint8_t *>(response.data()));

    return used;
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

/* Of one name there may be two, if a record has expired meanwhile. */
shared_response *
find(const digest &name, std::span<const std::uint8_t> response)
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
enlist(shared_response *response, const digest &name)
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


/* A request that waited for another one has its response from there. */
bool
is_user(ngx_http_request_t *r, const std::uint8_t *bytes)
{
    for (ngx_pool_cleanup_t *c = r->pool->cleanup; c != nullptr; c = c->next) {
        if (c->handler == end_use
            && static_cast<shared_response *>(c->data)->bytes() == bytes)
        {
            return true;
        }
    }

    return false;
}


void
end_use(void *data)
{
    drop_response(static_cast<shared_response *>(data));
}

}

}
