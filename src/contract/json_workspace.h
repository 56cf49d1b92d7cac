#pragma once

#include "contract/json_tokens.h"

#include <array>
#include <bit>
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


/* A member of an object that is not yet at its end. */
struct json_member {
    std::uint64_t prefix; /* of its name, for the comparison */
    std::uint32_t at;     /* of its name in the form, up to the next one's */
    std::uint32_t object; /* as in json_segment; UINT32_MAX: it is left out */
};


/* A member of an object that has to be put in order. */
struct json_segment {
    std::uint32_t at;
    std::uint32_t size;
    std::uint32_t object; /* the first of objects that begins behind at */
};


/*
 * An object in the form, in the order in which they begin.  Those whose
 * members are in order already are passed over, and are here only because
 * they came before others in them.
 */
struct json_object {
    std::uint32_t at;
    std::uint32_t end;      /* where its closing brace is */
    std::uint32_t next;     /* the first object behind it */
    std::uint32_t segments; /* the first of them */
    std::uint32_t count;    /* 0: in order */
};


/* The order of the members of a small object, as others may be like it. */
struct json_shape {
    std::size_t count = 0;
    std::array<std::uint64_t, 16> prefixes;
    std::array<std::uint8_t, 16> which; /* comes at this place */
};


/*
 * The form is first written with the members as they come.  How to put them
 * in order is noted beside it, so that each byte is moved only once however
 * deep it is nested.
 */
struct json_workspace {
    json_scanner scanner;
    json_array<char> form;
    json_array<json_member> members;
    json_array<json_object> objects;
    json_array<json_segment> segments;
    std::array<json_shape, 32> shapes;

    std::size_t memory() const
    {
        return scanner.memory() + form.memory() + members.memory()
               + objects.memory() + segments.memory();
    }
};


/* What is found beside the form. */
struct json_search {
    std::span<const std::string_view> names; /* in the outermost object */
    std::span<json_extent> values;

    /* the first value that an include points to; for a pointer alone */
    json_string found = json_string::absent;
    std::span<char> out;
    std::string_view string;
};


/* Reads a body into the workspace. */
json_result read_json(json_workspace &space, std::string_view body,
                      const json_rules &rules, json_search &search);

/*
 * Ends an object, from its first member on, at this place in the form, which
 * may be an earlier one then.  not_json: two members have the same name.
 */
json_result order_members(json_workspace &space, std::uint32_t object,
                          std::uint32_t first, std::uint32_t &end);

/* Adds what was read, in order, to a hash. */
void hash_json(json_workspace &space, hasher &hash);


/* A string in the form, of which at is the first byte. */
inline std::string_view
string_in_form(const char *at)
{
    auto first = static_cast<unsigned char>(*at);

    if (first >= 0x80) {
        return {at + 1, first & 0x7fU};
    }

    std::uint32_t size;

    std::memcpy(&size, at + 1, sizeof(size));

    if constexpr (std::endian::native == std::endian::big) {
        size = __builtin_bswap32(size);
    }

    return {at + 5, size};
}

}
