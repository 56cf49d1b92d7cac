#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace idempotency {

/* A field of a query string or of an urlencoded body, decoded. */
struct query_field {
    std::string_view name;
    std::string_view value;
};


/* How many fields there are; an empty text has one. */
std::size_t count_query_fields(std::string_view text);

/*
 * Decodes them into as many fields.  Their bytes are in room, which has the
 * size of the text.  What is no escape stands for itself.
 */
void read_query_fields(std::string_view text, std::span<query_field> fields,
                       std::span<char> room);

}
