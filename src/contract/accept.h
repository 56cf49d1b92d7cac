#pragma once

#include <string_view>

namespace idempotency {

/*
 * How much the value of an Accept header wants a media type, from 0 (not at
 * all) to 1000.  The most specific range that covers the type decides.
 */
unsigned quality_of(std::string_view accept, std::string_view type);

}
