#pragma once

#include "store/counters.h"

#include <span>
#include <string_view>

namespace idempotency {

/*
 * Numbers that belong together: what they are called in JSON and for
 * Prometheus, and where they are.  This table is all that the two have in
 * common with what is counted.
 */
struct metric {
    std::string_view json;
    std::string_view name; /* for Prometheus, without the prefix */
    std::string_view help;
    std::string_view label; /* empty: one number, or one histogram */
    std::size_t first;

    /* What the label says at this place; empty: there are no more. */
    std::string_view (*word)(std::size_t place);

    const histogram_bounds *bounds; /* null: plain counters */
};


std::span<const metric> zone_metrics();
std::span<const metric> store_metrics();


/* How many places of the label there are; one where there is no label. */
std::size_t places_of(const metric &m);

/* Where the numbers of a place begin. */
std::size_t place_at(const metric &m, std::size_t place);

}
