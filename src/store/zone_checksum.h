#pragma once

#include "store/store.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace idempotency {

/*
 * Tells bytes that were lost or mixed up with others, eight at a time; in
 * which pieces they come makes no difference.  It is no match for anyone who
 * wants to forge them: who can write to the file can do that anyway.
 */
class checksum_of {
public:
    void add(std::span<const std::uint8_t> bytes)
    {
        if (held_ > 0) {
            bytes = bytes.subspan(hold(bytes));
        }

        for (/* void */; bytes.size() >= sizeof(word_);
             bytes = bytes.subspan(sizeof(word_)))
        {
            mix(bytes.data());
        }

        hold(bytes);
    }

    [[nodiscard]] std::uint32_t value()
    {
        std::uint8_t length = static_cast<std::uint8_t>(held_);

        add({&length, 1});
        std::memset(word_ + held_, 0, sizeof(word_) - held_);
        mix(word_);

        return static_cast<std::uint32_t>(state_ >> 32);
    }

private:
    /* Odd, so that no bit is ever lost. */
    static constexpr std::uint64_t factor = 0x9fb21c651e98df25;

    void mix(const std::uint8_t *bytes)
    {
        std::uint64_t word;

        std::memcpy(&word, bytes, sizeof(word));
        state_ = (state_ ^ word) * factor;
        state_ ^= state_ >> 29;
    }

    /* What does not make a word yet; returns how many bytes it took. */
    std::size_t hold(std::span<const std::uint8_t> bytes)
    {
        std::size_t n = std::min(bytes.size(), sizeof(word_) - held_);

        std::copy_n(bytes.begin(), n, word_ + held_);
        held_ += n;

        if (held_ == sizeof(word_)) {
            mix(word_);
            held_ = 0;
        }

        return n;
    }

    std::uint64_t state_ = 0x2545f4914f6cdd1d;
    std::uint8_t word_[8];
    std::size_t held_ = 0;
};


inline std::uint32_t
checksum(pieces all)
{
    checksum_of sum;

    for (auto part : all) {
        sum.add(part);
    }

    return sum.value();
}

}
