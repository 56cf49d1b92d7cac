#include "store/redis_health.h"

namespace idempotency {

namespace {

/* The server counts as available after so long without an error. */
constexpr ngx_msec_t calm = 2000;

/* Or so long, if it was so often in a row for a shorter time than this. */
constexpr ngx_msec_t long_calm = 10000;
constexpr unsigned too_often = 5;

}


void
server_health::link_down(const ngx_str_t &server, const char *why,
                         ngx_err_t err)
{
    bool was_available = available();

    links_down_++;

    if (was_available) {
        say_unavailable(server, why, err);
    }
}


void
server_health::link_up(const ngx_str_t &server, unsigned links_down)
{
    bool was_available = available();

    links_down_ = links_down;

    if (!was_available && is_unsteady()) {
        refusing_ = true;
        refused_at_ = ngx_current_msec;
    }

    if (!was_available && available()) {
        say_available(server);
    }
}


void
server_health::link_overloaded(const ngx_str_t &server)
{
    if (links_overloaded_++ != 0) {
        return;
    }

    overloaded_since_ = ngx_current_msec;
    claims_before_ = claims_failed_;

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" is overloaded, its replies "
                  "take longer than \"timeout\": requests that it cannot "
                  "serve in time are refused at once",
                  &server);
}


void
server_health::link_recovered(const ngx_str_t &server)
{
    if (--links_overloaded_ != 0) {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" is no longer overloaded after "
                  "%M ms, meanwhile %ui requests could not claim their key",
                  &server, ngx_current_msec - overloaded_since_,
                  claims_failed_ - claims_before_);
}


/* A server may accept some commands while it refuses others. */
void
server_health::accepted(const ngx_str_t &server)
{
    ngx_msec_t enough = is_unsteady() ? long_calm : calm;

    if (!refusing_ || ngx_current_msec - refused_at_ < enough) {
        return;
    }

    refusing_ = false;

    if (available()) {
        say_available(server);
    }
}


void
server_health::refused(const ngx_str_t &server, const char *why)
{
    if (available()) {
        say_unavailable(server, why, 0);
    }

    refusing_ = true;
    refused_at_ = ngx_current_msec;
}


bool
server_health::is_unsteady() const
{
    return short_times_ >= too_often;
}


void
server_health::say_unavailable(const ngx_str_t &server, const char *why,
                               ngx_err_t err)
{
    unavailable_since_ = ngx_current_msec;
    short_times_ = is_due(available_since_ + long_calm) ? 0 : short_times_ + 1;
    claims_failed_ = 0;
    counts_->set_unavailable(why);
    claims_before_ = 0;

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, err,
                  "idempotency: Redis at \"%V\" is unavailable: %s", &server,
                  why);
}


void
server_health::say_available(const ngx_str_t &server)
{
    available_since_ = ngx_current_msec;
    counts_->set_available();

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" is available again after %M "
                  "ms, meanwhile %ui requests could not claim their key and "
                  "%ui outcomes still have to be stored",
                  &server, ngx_current_msec - unavailable_since_,
                  claims_failed_, outcomes_late_);
}


void
server_health::wrong_type(const ngx_str_t &server)
{
    if (!wrong_types_.now()) {
        return;
    }

    ngx_log_error(
        NGX_LOG_ERR, ngx_cycle->log, 0,
        "idempotency: Redis at \"%V\" has a key of another type (WRONGTYPE) "
        "in place of a record: make sure that no other application uses the "
        "prefix \"%V\"",
        &server, &prefix_);
}


void
server_health::unreadable_record(const ngx_str_t &server,
                                 const record_id &name)
{
    u_char id[2 * sizeof(record_id)];

    if (!unreadable_records_.now()) {
        return;
    }

    ngx_hex_dump(id, const_cast<u_char *>(name.data()), name.size());

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: record %*s: Redis at \"%V\" has it in a "
                  "format that this version of the module cannot read, "
                  "requests with its key are refused",
                  sizeof(id), id, &server);
}


/* One worker logs this once, not every worker on every connection. */
void
server_health::evicts(const ngx_str_t &server, std::string_view policy)
{
    ngx_str_t text = str(policy);

    if (said_evicts_ || ngx_worker != 0) {
        return;
    }

    said_evicts_ = true;

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" may evict records before they "
                  "expire, so that a retry runs again: set its "
                  "\"maxmemory-policy\" to \"noeviction\", it is \"%V\"",
                  &server, &text);
}


void
server_health::lists_nothing(const ngx_str_t &server, const char *why)
{
    if (said_lists_nothing_ || ngx_worker != 0) {
        return;
    }

    said_lists_nothing_ = true;

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" does not let SCAN list "
                  "unknown outcomes for \"idempotency_admin\", %s; other acts "
                  "work, see docs/redis.md#permissions-of-the-user",
                  &server, why);
}


void
server_health::claim_not_confirmed(const ngx_str_t &server)
{
    if (!not_confirmed_said_.now()) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: no majority of the Sentinels confirms that "
                  "Redis at \"%V\" is the master, requests are refused: "
                  "make sure that this host can reach most of them",
                  &server);
}


void
server_health::not_durable(const ngx_str_t &server)
{
    if (!not_durable_said_.now()) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" did not have claims on as "
                  "many disks or replicas as \"durability\" asks for within "
                  "\"durability_timeout\", their requests are refused: look "
                  "at its replicas and its disk",
                  &server);
}


void
server_health::claim_not_returned(const ngx_str_t &server)
{
    if (!claims_not_returned_.now()) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" left too many claims without "
                  "a reply, some cannot be undone and their keys may stay "
                  "locked until the records expire",
                  &server);
}


void
server_health::outcome_late()
{
    outcomes_late_++;
    counts_->add(store_count::outcomes_late);
}


void
server_health::outcome_stored_late()
{
    outcomes_stored_++;
    counts_->add(store_count::outcomes_stored_late);
}


void
server_health::put_back(const ngx_str_t &server)
{
    records_lost_++;

    if (!records_put_back_.now()) {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: record of a running request was lost by Redis "
                  "at \"%V\" and is put back, a retry may have run meanwhile: "
                  "%ui records since this worker began; make sure that Redis "
                  "keeps its data when it restarts or fails over",
                  &server, records_lost_);
}


void
server_health::memory_checked(const ngx_str_t &server, ngx_uint_t lost,
                              ngx_uint_t there, bool has_no_aof)
{
    ngx_uint_t level = lost != 0 ? NGX_LOG_WARN : NGX_LOG_NOTICE;
    const char *advice = lost != 0 && has_no_aof
                             ? "; \"appendonly\" is off there, set it to "
                               "\"yes\" so that Redis keeps its data"
                             : "";

    records_lost_ += lost;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" has restarted or is another "
                  "server: it had lost %ui records of this worker, which are "
                  "put back, and still had %ui%s",
                  &server, lost, there, advice);
}


void
server_health::foreign_owner(const ngx_str_t &server)
{
    foreign_owners_++;

    if (!foreign_owners_said_.now()) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" had lost a record, and has "
                  "one of another request with the same key: this operation "
                  "may have run twice, %ui of them since this worker began",
                  &server, foreign_owners_);
}


/* Only the first is logged; outcome_over() logs the total. */
void
server_health::outcome_lost(const ngx_str_t &server)
{
    counts_->add(store_count::outcomes_lost);

    if (outcomes_lost_++ != 0) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\" did not store an outcome in "
                  "time, retries of that request get \"outcome_unknown\"",
                  &server);
}


/* The outcome is stored or lost; after the last one, log the total. */
void
server_health::outcome_over(const ngx_str_t &server)
{
    if (--outcomes_late_ != 0) {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "idempotency: Redis at \"%V\": %ui outcomes were stored "
                  "late, %ui were lost, %ui came after another request had "
                  "taken over",
                  &server, outcomes_stored_, outcomes_lost_,
                  outcomes_superseded_);

    outcomes_stored_ = 0;
    outcomes_superseded_ = 0;
    outcomes_lost_ = 0;
}


bool
server_health::once_a_minute::now()
{
    if (ngx_time() < next) {
        return false;
    }

    next = ngx_time() + 60;
    return true;
}

}
