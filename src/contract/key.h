#pragma once

#include "contract/digest.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace idempotency {

struct key_rules {
    std::size_t min = 1;
    std::size_t max = 255;
    bool uuid = false;
};


/* The rule that a key broke. */
enum class key_fault : std::uint8_t {
    none,
    empty,
    malformed,
    repeated,
    too_short,
    too_long,
    not_printable,
    not_uuid,
    not_string, /* or too long a one */

    /* Of a key in a body: it is not certain which one it is. */
    name_repeated,
    unreadable,
    encoded,
};


/*
 * The key that a header field's value spells: an RFC 8941 string (its
 * parameters are ignored) or a bare value.  The result lies in the value
 * itself or, where escapes were resolved, in out, which is as long as the
 * value.  Nothing: the value is empty or malformed.
 */
std::optional<std::string_view> parse_key_field(std::string_view value,
                                                std::span<char> out);

/*
 * Whether the key may be used: none.  Under the uuid rule the key is
 * lower-cased into out (as long as the key) and points there afterwards.
 */
key_fault check_key(std::string_view &key, const key_rules &rules,
                    std::span<char> out);


/* The parts of a request's route that count; what is not there does not. */
struct route {
    std::optional<std::string_view> host;
    std::optional<std::string_view> port;
    std::optional<std::string_view> method;
    std::optional<std::string_view> path;
};


/* 128 bits of a digest: by chance two names are never the same. */
using record_id = std::array<std::uint8_t, 16>;


/* What a dry run remembers is not to be met by a real run. */
enum class run_kind : std::uint8_t { real, dry };


/*
 * The name of a record: whose key, on which route, which key, and nothing
 * else but the kind of run.  It is all that a store ever sees of them.  The
 * hasher is only lent: a new one costs an allocation.
 */
bool record_name(hasher &hash, std::span<const std::string_view> scope,
                 const route &where, std::string_view key, record_id &out,
                 run_kind kind = run_kind::real);

}
