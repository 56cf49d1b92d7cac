#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

namespace idempotency {

/* An array that grows, and says so when it cannot. */
template <typename Item>
class json_array {
    static_assert(std::is_trivially_copyable_v<Item>);

public:
    json_array() = default;
    ~json_array() { std::free(items_); }

    json_array(const json_array &) = delete;
    json_array &operator=(const json_array &) = delete;

    Item *data() { return items_; }
    Item &operator[](std::size_t i) { return items_[i]; }
    const Item &operator[](std::size_t i) const { return items_[i]; }
    Item &back() { return items_[size_ - 1]; }
    Item *end() { return items_ + size_; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(size_); }
    std::size_t capacity() const { return capacity_; }
    std::size_t memory() const { return capacity_ * sizeof(Item); }

    /* Drops what is behind, or takes in what was written into room(). */
    void resize(std::size_t size) { size_ = size; }

    [[nodiscard]] bool room(std::size_t more)
    {
        return capacity_ - size_ >= more || grow(more);
    }

    [[nodiscard]] bool push(const Item &item)
    {
        if (!room(1)) {
            return false;
        }

        items_[size_++] = item;
        return true;
    }

private:
    bool grow(std::size_t more)
    {
        std::size_t wanted = size_ + more + size_ / 2;
        void *grown = std::realloc(items_, wanted * sizeof(Item));

        if (grown == nullptr) {
            return false;
        }

        items_ = static_cast<Item *>(grown);
        capacity_ = wanted;
        return true;
    }

    Item *items_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

}
