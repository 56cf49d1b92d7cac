#pragma once

#include "contract/json_array.h"
#include "contract/json_tokens.h"

#include <array>
#include <bit>
#include <cstdint>

namespace idempotency {

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


/* Reads a body into the workspace. */
json_result read_json(json_workspace &space, std::string_view body,
                      const json_rules &rules);

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
