#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

struct evp_md_ctx_st;

namespace idempotency {

using digest = std::array<std::uint8_t, 32>;


/*
 * Framed fields on their way into a digest.  A field is preceded by its
 * length, so that no two different lists of fields give the same bytes; a
 * number takes eight bytes; bytes() adds to the last, unframed part.
 *
 * A call of OpenSSL costs more than a few bytes do, so they are gathered
 * first.
 */
class framed {
public:
    framed(const framed &) = delete;
    framed &operator=(const framed &) = delete;

    void field(std::string_view value);
    void number(std::uint64_t value);
    void bytes(const void *data, std::size_t size);

protected:
    framed() = default;
    ~framed() = default;

    void forget() { held_ = 0; }
    void flush();

private:
    virtual void take(const void *data, std::size_t size) = 0;

    std::uint16_t held_ = 0; /* bytes gathered */
    std::array<std::uint8_t, 256> gathered_;
};


/*
 * SHA-256.  Made by whoever needs a digest, lives until its owner's end;
 * start() begins each digest.  Any failure inside (no memory, never started)
 * is reported by finish().  OpenSSL's context is borrowed from those the
 * process keeps.
 */
class hasher final : public framed {
public:
    hasher() = default;
    ~hasher();

    void start(std::string_view domain);
    [[nodiscard]] bool finish(digest &out);

private:
    void take(const void *data, std::size_t size) override;

    evp_md_ctx_st *context_ = nullptr;
    bool failed_ = false;
};

}
