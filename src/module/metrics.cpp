#include "module/metrics.h"

#include "module/context.h"
#include "module/counting.h"

namespace idempotency {

namespace {

template <class E>
std::string_view
name_at(std::size_t place)
{
    return name_of(static_cast<E>(place));
}


template <std::size_t N>
std::string_view
word_at(const std::string_view (&words)[N], std::size_t place)
{
    return place < N ? words[place] : std::string_view();
}


std::string_view would_be(std::size_t place);
std::string_view refusal_at(std::size_t place);
std::string_view unknown_at(std::size_t place);
std::string_view not_kept_at(std::size_t place);
std::string_view operation_at(std::size_t place);


constexpr metric of_zones[] = {
    {"requests", "requests_total",
     "Requests to protected locations, by $idempotency_status.", "status",
     zone_count::requests, name_at<status>, nullptr},

    {"refusals", "refusals_total", "Requests refused, by error code.", "code",
     zone_count::refusals + 1, refusal_at, nullptr},

    {"runs", "runs_total", "Runs that have ended, by their outcome.",
     "outcome", zone_count::runs, name_at<run_end>, nullptr},

    {"unknown", "unknown_outcomes_total",
     "Runs whose outcome is unknown, by reason.", "reason",
     zone_count::unknown, unknown_at, nullptr},

    {"not_kept", "responses_not_kept_total",
     "Completed runs whose response is not kept, by reason.", "reason",
     zone_count::not_kept, not_kept_at, nullptr},

    {"replay_age_seconds", "replay_age_seconds",
     "Time from the completion of a run to its replay.", "",
     zone_count::replay_age, nullptr, &age_bounds},

    {"wait_seconds", "wait_seconds",
     "Time that retries waited for the request that was running.", "",
     zone_count::wait_time, nullptr, &wait_bounds},

    {"wait_timeouts", "wait_timeouts_total",
     "Retries that waited as long as idempotency_wait allows, in vain.", "",
     zone_count::wait_timeouts, nullptr, nullptr},

    {"leases_lost", "leases_lost_total",
     "Runs that lost their lease before they ended.", "",
     zone_count::leases_lost, nullptr, nullptr},

    {"take_overs", "takeovers_total",
     "Requests with an unknown outcome that were run again.", "",
     zone_count::take_overs, nullptr, nullptr},

    {"clients_gone", "clients_gone_total",
     "Runs that went on after their client had disconnected.", "",
     zone_count::clients_gone, nullptr, nullptr},

    {"dry_run", "dry_run_total",
     "What would have happened to requests in a dry run.", "would",
     zone_count::dry_run, would_be, nullptr},
};


constexpr metric of_stores[] = {
    {"operation_seconds", "store_operation_seconds",
     "Time until the store answered, by operation.", "operation",
     store_count::time, operation_at, &store_bounds},

    {"errors", "store_errors_total",
     "Operations that the store could not perform in time.", "operation",
     store_count::errors, operation_at, nullptr},

    {"outcomes_late", "outcomes_late_total",
     "Outcomes that could not be stored at once.", "",
     store_count::outcomes_late, nullptr, nullptr},

    {"outcomes_stored_late", "outcomes_stored_late_total",
     "Late outcomes that have been stored since.", "",
     store_count::outcomes_stored_late, nullptr, nullptr},

    {"outcomes_lost", "outcomes_lost_total",
     "Late outcomes that were given up.", "", store_count::outcomes_lost,
     nullptr, nullptr},

    {"responses_damaged", "responses_damaged_total",
     "Retries that met a stored response which was damaged or changed.", "",
     store_count::damaged, nullptr, nullptr},
};

}


std::span<const metric>
zone_metrics()
{
    return of_zones;
}


std::span<const metric>
store_metrics()
{
    return of_stores;
}


std::size_t
places_of(const metric &m)
{
    std::size_t count = 0;

    if (m.word == nullptr) {
        return 1;
    }

    while (!m.word(count).empty()) {
        count++;
    }

    return count;
}


std::size_t
place_at(const metric &m, std::size_t place)
{
    return m.first + place * (m.bounds != nullptr ? histogram_size : 1);
}


namespace {

std::string_view
would_be(std::size_t place)
{
    return place == 0 ? "replay" : name_at<error_code>(place);
}


/* The place of no error is left out. */
std::string_view
refusal_at(std::size_t place)
{
    return name_at<error_code>(place + 1);
}


std::string_view
unknown_at(std::size_t place)
{
    static constexpr std::string_view words[] = {"no_response", "status",
                                                 "earlier_attempt"};

    return word_at(words, place);
}


std::string_view
not_kept_at(std::size_t place)
{
    static constexpr std::string_view words[] = {
        "store_full", "too_large",         "in_file",   "not_encodable",
        "incomplete", "subrequest_output", "discarded", "elsewhere",
        "encoded",    "no_memory"};

    static_assert(std::size(words)
                  == static_cast<std::size_t>(not_kept::no_memory) + 1);

    return word_at(words, place);
}


std::string_view
operation_at(std::size_t place)
{
    static constexpr std::string_view words[] = {
        "claim", "complete", "release", "mark_unknown", "renew", "local"};

    static_assert(std::size(words)
                  == static_cast<std::size_t>(store_operation::count));

    return word_at(words, place);
}

}

}
