#pragma once

#include "check.h"
#include "contract/json.h"
#include "json_oracle.h"

#include <cstring>
#include <memory>

/* A body in memory of just its size and padding. */
class padded {
public:
    explicit padded(std::string_view text, char filler = '}')
        : memory_(new char[text.size() + idempotency::json_padding]),
          size_(text.size())
    {
        if (!text.empty()) {
            std::memcpy(memory_.get(), text.data(), text.size());
        }
        std::memset(memory_.get() + size_, filler, idempotency::json_padding);
    }

    std::string_view view() const { return {memory_.get(), size_}; }

private:
    std::unique_ptr<char[]> memory_;
    std::size_t size_;
};


inline idempotency::digest
digest_of(std::string_view form)
{
    idempotency::hasher hash;
    idempotency::digest d;

    hash.start("json");
    hash.bytes(form.data(), form.size());
    check(hash.finish(d), "there is a digest");
    return d;
}


/* The digest of a body; nothing: it is no JSON, and nothing was hashed. */
inline std::optional<idempotency::digest>
canonical(idempotency::json_parser &parser, std::string_view body,
          const idempotency::json_rules &rules = {}, char filler = '}')
{
    using namespace idempotency;

    padded in(body, filler);
    hasher hash;
    digest d;

    hash.start("json");

    json_result r = canonical_json(parser, in.view(), rules, hash);

    check(r != json_result::no_memory, "there is memory");
    check(hash.finish(d), "there is a digest");
    check(r == json_result::ok || d == digest_of(""),
          "nothing is added for what is no JSON");

    return r == json_result::ok ? std::optional<digest>(d) : std::nullopt;
}
