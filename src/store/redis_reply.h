#pragma once

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>

namespace idempotency {

using bytes = std::span<const std::uint8_t>;


struct free_reply {
    void operator()(redisReply *reply) const { freeReplyObject(reply); }
};

using owned_reply = std::unique_ptr<redisReply, free_reply>;


inline std::string_view
text_of(bytes b)
{
    return {reinterpret_cast<const char *>(b.data()), b.size()};
}


inline std::string_view
text_of(const redisReply &reply)
{
    return {reply.str, reply.len};
}


inline bytes
bytes_of(const redisReply &reply)
{
    return {reinterpret_cast<const std::uint8_t *>(reply.str), reply.len};
}


inline bool
is_error(const redisReply &reply, std::string_view prefix)
{
    return reply.type == REDIS_REPLY_ERROR
           && text_of(reply).starts_with(prefix);
}


/* An error reply as text for the log. */
class error_text {
public:
    error_text() = default;

    explicit error_text(const redisReply &reply)
    {
        std::snprintf(text_.data(), text_.size(), "the reply is \"%.*s\"",
                      static_cast<int>(std::min<std::size_t>(reply.len, 200)),
                      reply.str);
    }

    error_text(const char *format, std::string_view word)
    {
        std::snprintf(text_.data(), text_.size(), format,
                      static_cast<int>(word.size()), word.data());
    }

    bool empty() const { return text_[0] == '\0'; }
    const char *text() const { return text_.data(); }

private:
    std::array<char, 256> text_ = {};
};

}
