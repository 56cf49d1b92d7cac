#include "contract/stage.h"

#include <array>
#include <initializer_list>

namespace idempotency {

namespace {

struct row {
    std::string_view name;
    std::uint16_t next; /* a bit for each stage that may follow */
};


constexpr std::uint16_t
to(std::initializer_list<stage> stages)
{
    unsigned bits = 0;

    for (stage s : stages) {
        bits |= 1u << static_cast<unsigned>(s);
    }

    return static_cast<std::uint16_t>(bits);
}


using enum stage;

/* In the order of the enumeration. */
constexpr std::array<row, stage_count> table = {{
    {"start", to({reading, passed, refused, failed})},

    /* failed: also if nginx itself refused the body, e.g. as too large */
    {"reading", to({ready, failed})},

    /* The key may be in the body, so what a key decides comes here too. */
    {"ready", to({claiming, parked, passed, refused, failed})},

    {"claiming", to({answered})},
    {"answered", to({parked, running, passed, replayed, refused})},

    /* Woken up to ask the store, or told what another one has learned. */
    {"parked", to({ready, answered})},

    {"running", to({settling})},
    {"settling", to({settled})},
    {"settled", to({})},
    {"passed", to({})},
    {"replayed", to({})},

    /* An error page brought a refused request back: it is refused again. */
    {"refused", to({refused})},

    {"failed", to({})},
}};

}


bool
is_legal_move(stage from, stage to)
{
    unsigned next = table[static_cast<std::size_t>(from)].next;

    return (next >> static_cast<unsigned>(to) & 1) != 0;
}


std::string_view
name_of(stage s)
{
    return table[static_cast<std::size_t>(s)].name;
}

}
