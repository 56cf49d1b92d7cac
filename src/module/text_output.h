#pragma once

#include "ngx.h"

#include <cstdint>

namespace idempotency {

/*
 * Text of any length, in the memory of a request.  A failure to get memory
 * shows at the end.
 */
class text_output {
public:
    explicit text_output(ngx_pool_t *pool) : pool_(pool) {}

    text_output &operator<<(std::string_view text);
    text_output &operator<<(std::uint64_t number);

    /* Milliseconds, written as seconds. */
    void seconds(std::uint64_t ms);

    /* Between quotes, escaped. */
    void json_string(std::string_view text);
    void prometheus_string(std::string_view text);

    /* Null: no memory. */
    ngx_chain_t *finish();
    off_t size() const { return size_; }

private:
    bool grow(std::size_t size);

    ngx_pool_t *pool_;
    ngx_chain_t *first_ = nullptr;
    ngx_chain_t *last_ = nullptr;
    off_t size_ = 0;
    bool failed_ = false;
};

}
