#include "module/shared_response.h"

namespace idempotency {

struct shared_response {
    std::size_t users;
    std::size_t size;

    std::uint8_t *bytes()
    {
        return reinterpret_cast<std::uint8_t *>(this + 1);
    }
};


shared_response *
copy_response(std::span<const std::uint8_t> response)
{
    auto *copy = static_cast<shared_response *>(
        ngx_alloc(sizeof(shared_response) + response.size(), ngx_cycle->log));

    if (copy != nullptr) {
        copy->users = 1;
        copy->size = response.size();
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
    cleanup->handler = [](void *data) {
        drop_response(static_cast<shared_response *>(data));
    };

    return {response->bytes(), response->size};
}


void
drop_response(shared_response *response)
{
    if (response != nullptr && --response->users == 0) {
        ngx_free(response);
    }
}

}
