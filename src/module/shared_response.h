#pragma once

#include "ngx.h"
#include "store/store.h"

namespace idempotency {

/*
 * A response that several requests get.  The memory of the request that asked
 * the store goes with that request, so a response lies in memory of its own,
 * which goes with the last request that uses it.
 */
struct shared_response;


/* Null: no memory.  The caller is the first user. */
shared_response *copy_response(std::span<const std::uint8_t> response);

/* Makes the request one more user; an empty span: no memory. */
std::span<const std::uint8_t> use_response(ngx_http_request_t *r,
                                           shared_response *response);

/* Where a store puts a response that may be shared later; null: no memory. */
std::uint8_t *room_to_share(ngx_http_request_t *r, std::size_t size);

/*
 * For a replay: if another request is answered with the same response now,
 * both use one copy, and the memory that the request has it in is freed.  So
 * clients that read slowly hold one copy of a response in each worker.
 */
std::span<const std::uint8_t>
share_response(ngx_http_request_t *r, const record_id &name,
               std::span<const std::uint8_t> response);

void drop_response(shared_response *response);

}
