#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace idempotency {

/*
 * A summary (an encoded response with a status, at most a Location, and no
 * body) is mostly zeros.  Its short form has three bytes and the Location:
 * small enough to lie in a record itself.
 *
 *     u8   form: 1 no Location, 2 "Location", 3 "location"
 *     u16  status
 *     Location
 */

/* The size of the short form in out; 0: it has none, or no room there. */
std::size_t shorten_summary(std::span<const std::uint8_t> summary,
                            std::span<std::uint8_t> out);

/* How long the summary is that a short form stands for; 0: it is none. */
std::size_t summary_size(std::span<const std::uint8_t> brief);

/* Writes as many bytes as summary_size() says. */
void restore_summary(std::span<const std::uint8_t> brief, std::uint8_t *out);

}
