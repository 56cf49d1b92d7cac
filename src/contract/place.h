#pragma once

#include <optional>
#include <string_view>

namespace idempotency {

/*
 * Where the content handler of a request has sent it, as a record has it: kind
 * and name of the location, the condition of an if block, URI and arguments,
 * see docs/record-format.md.  Neither a URI that nginx accepts nor the name of
 * a location has the separator.
 */
inline constexpr char place_separator = '\0';


/* How to come there. */
struct way {
    std::string_view location;
    std::string_view uri; /* empty: the location is a named one */
    std::string_view arguments;
};


/*
 * What a store hands out may be anything.  Nothing: it is no place, or one
 * that nginx would not lead a client to, such as "/../".
 */
std::optional<way> read_place(std::string_view place);

}
