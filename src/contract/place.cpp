#include "contract/place.h"

#include "contract/ascii.h"

#include <algorithm>

namespace idempotency {

namespace {

bool take_part(std::string_view &rest, std::string_view &part);
bool is_safe(std::string_view uri);

}


std::optional<way>
read_place(std::string_view place)
{
    constexpr std::string_view kinds = "@=~/";
    std::string_view condition;
    way to;

    if (!take_part(place, to.location) || !take_part(place, condition)
        || !take_part(place, to.uri)
        || place.find(place_separator) != place.npos || to.location.size() < 2
        || !is_one_of(to.location[0], kinds))
    {
        return std::nullopt;
    }

    bool named = to.location[0] == '@';

    to.location.remove_prefix(1);
    to.arguments = place;

    bool right = named ? to.uri.empty() && to.arguments.empty()
                       : is_safe(to.uri);

    return right ? std::optional(to) : std::nullopt;
}


namespace {

bool
take_part(std::string_view &rest, std::string_view &part)
{
    std::size_t end = rest.find(place_separator);

    if (end == rest.npos) {
        return false;
    }

    part = rest.substr(0, end);
    rest.remove_prefix(end + 1);

    return true;
}


/* As nginx asks it of X-Accel-Redirect: no way out of a root. */
bool
is_safe(std::string_view uri)
{
    if (!uri.starts_with('/')) {
        return false;
    }

    while (!uri.empty()) {
        uri.remove_prefix(1);

        std::string_view segment = uri.substr(0, uri.find('/'));

        if (segment == "..") {
            return false;
        }

        uri.remove_prefix(segment.size());
    }

    return true;
}

}

}
