#pragma once

#include "contract/outcome.h"
#include "module/problem.h"
#include "ngx.h"
#include "store/counters.h"
#include "store/store.h"

namespace idempotency {

struct context;
struct location_conf;
enum class not_kept : std::uint8_t;


/* How a run ended, as $idempotency_outcome says it. */
enum class run_end : std::uint8_t {
    released,
    unknown,
    completed,
    not_kept,
    late, /* the store has not got the outcome yet */
    lost, /* the lease was lost, and with it the outcome */
};


/* Empty: the request is no run, or has not ended. */
std::string_view outcome_of(const context &ctx);

/* Empty beyond the last. */
std::string_view name_of(run_end how);


/* Why the outcome of a run is unknown. */
enum class unknown_reason : std::uint8_t {
    no_response,
    status,
    earlier_attempt,
};


inline constexpr histogram_bounds age_bounds = {
    1000,   5000,    15000,    60000,    300000,
    900000, 3600000, 21600000, 86400000, 604800000};
inline constexpr histogram_bounds wait_bounds = {
    10, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000};
inline constexpr histogram_bounds store_bounds = {1,  2,   5,   10,  25,
                                                  50, 100, 250, 500, 1000};


/* The request could have had a key, but has none. */
void count_keyless(const location_conf *conf);

/* It is decided what the request gets: once per request. */
void count_status(const context &ctx, status as);
void count_refusal(const context &ctx, const refusal &why);
void count_dry_run(const context &ctx, error_code code);
void count_claimed(const context &ctx);
void count_replay(const context &ctx);
void count_damaged(const context &ctx);

void count_client_gone(context &ctx);
void count_unknown(const context &ctx, unknown_reason why);
void count_end(const context &ctx, settle_result result);

/* The store has answered, or has not in time. */
void count_claim(const context &ctx, claim_result result);
void count_settlement(const context &ctx, settle_result result);
void count_renewal(const context &ctx, settle_result result);

}
