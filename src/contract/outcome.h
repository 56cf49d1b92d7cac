#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace idempotency {

inline constexpr std::uint64_t forever = UINT64_MAX;
inline constexpr std::uint64_t default_ttl = 24ull * 60 * 60 * 1000;


/* A line of idempotency_ttl for one code, a class (5xx) or any status. */
struct ttl_rule {
    std::uint16_t first;
    std::uint16_t last;
    std::uint64_t ttl; /* milliseconds, 0: not kept */
};


struct ttl_match {
    std::uint64_t ttl;
    bool exact;
};


/*
 * The narrowest rule that covers the status wins, of equals the first; 2xx
 * and 3xx that no rule covers are kept for default_ttl, anything else is not
 * kept.
 */
ttl_match ttl_of(std::span<const ttl_rule> rules, unsigned status);

/* How long a record lasts that has no response to show: as long as a 200. */
std::uint64_t ttl_without_response(std::span<const ttl_rule> rules);


/* What the application said in X-Accel-Idempotency. */
struct app_word {
    bool release = false;
    bool discard = false;
    bool has_ttl = false;
    std::uint64_t ttl = 0; /* milliseconds */
};


inline bool
spoken(const app_word &word)
{
    return word.release || word.discard || word.has_ttl;
}


/*
 * Adds what the value says to word; a header sent twice is one list.  False:
 * the value is not one that is known, or release stands beside another word;
 * word is then left untouched.
 */
bool parse_app_word(std::string_view value, app_word &word);


/* What is known of a run at its end. */
struct evidence {
    bool sent = false;        /* a byte went to some upstream peer */
    bool unanswered = false;  /* ... and one of these gave no whole answer */
    bool own_handler = false; /* answered inside nginx, without a peer */
    bool complete = false;    /* a whole response came */
    unsigned status = 0;      /* as the application gave it */
    bool grpc = false;
    int grpc_status = -1;    /* -1: none was given */
    bool rpc_error = false;  /* a JSON-RPC error answer */
    bool again = false;      /* what an earlier run did is not known */
    bool unfinished = false; /* a subrequest is still under way */
};


enum class ending : std::uint8_t {
    released,
    unknown,
    completed,
    not_kept,
};


struct outcome {
    ending end;
    std::uint64_t ttl; /* 0 for released */
};


struct outcome_rules {
    std::span<const ttl_rule> ttl;
    std::span<const std::uint16_t> unknown_status;
};


/* How a run ends: the first line of the table in docs/guarantees.md. */
outcome decide(const evidence &seen, const app_word &word,
               const outcome_rules &rules);

}
