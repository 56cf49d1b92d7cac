#pragma once

#include "contract/digest.h"

struct evp_cipher_ctx_st;

namespace idempotency {

using byte_tag = std::array<std::uint8_t, 16>;
using tag_key = std::array<std::uint8_t, 16>;


/*
 * GMAC over framed fields, always with the same nonce: a hash whose key is
 * secret.  Whoever does not know the key, and never sees a tag, cannot find
 * two messages with the same tag but by a chance of one in 2^100.  It costs a
 * fifth of SHA-256.  Not to be shown, or the key can be computed.
 */
class tagger final : public framed {
public:
    tagger() = default;
    ~tagger();

    /* Any failure is reported by finish(). */
    void start(const tag_key &key);
    [[nodiscard]] bool finish(byte_tag &out);

private:
    void take(const void *data, std::size_t size) override;
    bool prepare(const tag_key &key);

    evp_cipher_ctx_st *context_ = nullptr;
    tag_key key_ = {}; /* that context_ has */
    bool failed_ = true;
};

}
