#pragma once

#include <cstdint>
#include <string_view>

namespace idempotency {

enum class redis_kind : std::uint8_t { single, sentinel, cluster };


/* The parts of a Redis store's address, still percent-encoded. */
struct redis_url {
    redis_kind kind = redis_kind::single;
    bool tls = false;
    std::string_view user;
    std::string_view password;
    std::string_view host;    /* or several, with ports; empty: a socket */
    std::string_view service; /* what the Sentinels call their master */
    std::string_view path;    /* of the Unix socket */
    std::string_view db = "0";
};


bool is_redis_url(std::string_view text);

/* Null if it is well-formed, else what is wrong with it. */
const char *parse_redis_url(std::string_view text, redis_url &url);

}
