#include "contract/outcome.h"

#include "contract/ascii.h"

#include <algorithm>
#include <charconv>

namespace idempotency {

namespace {

bool parse_token(std::string_view token, app_word &word);
bool parse_seconds(std::string_view text, std::uint64_t &ms);
outcome end_of_run(const evidence &seen, const app_word &word,
                   const outcome_rules &rules);
outcome kept(ending end, std::uint64_t ttl, const app_word &word);
bool is_unknown_status(const outcome_rules &rules, unsigned status);
bool is_unknown_grpc_status(int status);

}


ttl_match
ttl_of(std::span<const ttl_rule> rules, unsigned status)
{
    const ttl_rule *best = nullptr;

    for (const ttl_rule &rule : rules) {
        if (status < rule.first || status > rule.last) {
            continue;
        }

        if (best == nullptr
            || rule.last - rule.first < best->last - best->first) {
            best = &rule;
        }
    }

    if (best != nullptr) {
        return {best->ttl, best->first == best->last};
    }

    if (status >= 200 && status <= 399) {
        return {default_ttl, false};
    }

    return {0, false};
}


std::uint64_t
ttl_without_response(std::span<const ttl_rule> rules)
{
    std::uint64_t ttl = ttl_of(rules, 200).ttl;

    return ttl != 0 ? ttl : default_ttl;
}


bool
parse_app_word(std::string_view value, app_word &word)
{
    static constexpr std::string_view separators = ", \t";

    app_word said = word;
    std::size_t start = value.find_first_not_of(separators);

    if (start == value.npos) {
        return false;
    }

    while (start != value.npos) {
        std::size_t end = std::min(value.find_first_of(separators, start),
                                   value.size());

        if (!parse_token({value.data() + start, end - start}, said)) {
            return false;
        }

        start = value.find_first_not_of(separators, end);
    }

    /* "nothing was executed" leaves nothing to discard or to time. */
    if (said.release && (said.discard || said.has_ttl)) {
        return false;
    }

    word = said;
    return true;
}


outcome
decide(const evidence &seen, const app_word &word, const outcome_rules &rules)
{
    outcome how = end_of_run(seen, word, rules);

    /*
     * Nobody has spoken of the earlier run, or of what is still under way,
     * unless by "release".
     */
    if (how.end == ending::released && (seen.again || seen.unfinished)
        && !word.release)
    {
        return {ending::unknown, ttl_without_response(rules.ttl)};
    }

    return how;
}


namespace {

bool
parse_token(std::string_view token, app_word &word)
{
    static constexpr std::string_view ttl = "ttl=";

    if (same_but_for_case(token, "release")) {
        word.release = true;
        return true;
    }

    if (same_but_for_case(token, "discard")) {
        word.discard = true;
        return true;
    }

    if (!starts_with_but_for_case(token, ttl)) {
        return false;
    }

    std::uint64_t ms = 0;

    token.remove_prefix(ttl.size());

    if (!parse_seconds(token, ms)) {
        return false;
    }

    /* Each one only shortens, so the shortest holds. */
    word.ttl = word.has_ttl ? std::min(word.ttl, ms) : ms;
    word.has_ttl = true;
    return true;
}


bool
parse_seconds(std::string_view text, std::uint64_t &ms)
{
    std::uint64_t seconds = 0;
    const char *end = text.data() + text.size();
    std::from_chars_result parsed = std::from_chars(text.data(), end, seconds);

    if (parsed.ec != std::errc() || parsed.ptr != end
        || seconds > UINT64_MAX / 1000)
    {
        return false;
    }

    ms = seconds * 1000;
    return true;
}


outcome
end_of_run(const evidence &seen, const app_word &word,
           const outcome_rules &rules)
{
    const outcome released = {ending::released, 0};
    const outcome unknown = {ending::unknown, ttl_without_response(rules.ttl)};

    /* Without either, a response is nginx's own error page. */
    if (!seen.sent && !seen.own_handler) {
        return released;
    }

    /* Even if complete: error_page or a later peer may have dressed it up. */
    if ((seen.sent && seen.unanswered) || !seen.complete) {
        return unknown;
    }

    if (word.release) {
        return released;
    }

    if (word.discard) {
        return kept(ending::not_kept, unknown.ttl, word);
    }

    if (seen.grpc && seen.grpc_status != 0) {
        return is_unknown_grpc_status(seen.grpc_status) ? unknown : released;
    }

    /* An interim answer that nginx took for the last one, or an upgrade. */
    if (seen.status < 200) {
        return unknown;
    }

    ttl_match match = ttl_of(rules.ttl, seen.status);

    if (!(match.exact && match.ttl != 0)
        && is_unknown_status(rules, seen.status)) {
        return unknown;
    }

    if (seen.rpc_error && !spoken(word)) {
        return released;
    }

    return kept(ending::completed, match.ttl, word);
}


outcome
kept(ending end, std::uint64_t ttl, const app_word &word)
{
    if (word.has_ttl) {
        ttl = std::min(ttl, word.ttl);
    }

    /* A record that lasts no time is none. */
    if (ttl == 0) {
        return {ending::released, 0};
    }

    return {end, ttl};
}


bool
is_unknown_status(const outcome_rules &rules, unsigned status)
{
    return std::find(rules.unknown_status.begin(), rules.unknown_status.end(),
                     status)
           != rules.unknown_status.end();
}


bool
is_unknown_grpc_status(int status)
{
    /*
     * CANCELLED, UNKNOWN and DEADLINE_EXCEEDED are also what a gateway or
     * a client library says that got no answer.  No status is no word.
     */

    return status < 0 || status == 1 || status == 2 || status == 4;
}

}

}
