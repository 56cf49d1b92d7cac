#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

struct evp_md_ctx_st;

namespace idempotency {

using digest = std::array<std::uint8_t, 32>;


/*
 * SHA-256 over framed fields.  Made by whoever needs a digest, lives until
 * its owner's end; start() begins each digest.  A field is preceded by its
 * length, so that no two different lists of fields give the same bytes; a
 * number takes eight bytes; bytes() adds to the last, unframed part.  Any
 * failure inside (no memory, never started) is reported by finish().
 *
 * A call of OpenSSL costs more than a few bytes do, so they are gathered
 * first.  OpenSSL's context is borrowed from those the process keeps.
 */
class hasher {
public:
    hasher() = default;
    ~hasher();

    hasher(const hasher &) = delete;
    hasher &operator=(const hasher &) = delete;

    void start(std::string_view domain);
    void field(std::string_view value);
    void number(std::uint64_t value);
    void bytes(const void *data, std::size_t size);
    [[nodiscard]] bool finish(digest &out);

private:
    void flush();
    void hash(const void *data, std::size_t size);

    evp_md_ctx_st *context_ = nullptr;
    bool failed_ = false;
    std::uint16_t held_ = 0; /* bytes gathered */
    std::array<std::uint8_t, 256> gathered_;
};

}
