#include "store/redis_store.h"

#include <algorithm>
#include <cstdio>

namespace idempotency {

namespace {

/* How long nothing must have been refused before all is well. */
constexpr ngx_msec_t calm = 2000;

}


void
redis_store::say_down(const ngx_str_t &name, const char *why, ngx_err_t err)
{
    bad_since_ = ngx_current_msec;
    claims_failed_ = 0;

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, err,
                  "idempotency: redis \"%V\" is not available: %s", &name,
                  why);
}


void
redis_store::say_up(const ngx_str_t &name)
{
    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "idempotency: redis \"%V\" is available again after %M ms, "
                  "meanwhile %ui claims failed, %ui outcomes are yet to be "
                  "stored",
                  &name, ngx_current_msec - bad_since_, claims_failed_,
                  outcomes_late_);
}


/* When the last outcome that was late is stored, or given up. */
void
redis_store::say_settled(const ngx_str_t &name)
{
    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "idempotency: redis \"%V\": %ui outcomes were stored late, "
                  "%ui were lost",
                  &name, outcomes_stored_, outcomes_lost_);

    outcomes_stored_ = 0;
    outcomes_lost_ = 0;
}


void
redis_store::link_down(redis_link &link, const char *why, ngx_err_t err)
{
    if (links_down_++ == 0 && !refusing_) {
        say_down(link.name(), why, err);
    }
}


void
redis_store::link_up(redis_link &link)
{
    unsigned down = 0;

    for (redis_link &other : std::span(links_, settings_.connections)) {
        down += !other.usable();
    }

    if (links_down_ != 0 && down == 0 && !refusing_) {
        say_up(link.name());
    }

    links_down_ = down;
    send_late(true);
}


/* An error that is about one key is not the server's state. */
void
redis_store::say_wrong_key(redis_link &link)
{
    static time_t next;

    if (ngx_time() < next) {
        return;
    }

    next = ngx_time() + 60;

    ngx_log_error(
        NGX_LOG_ERR, ngx_cycle->log, 0,
        "idempotency: redis \"%V\" has a key of another type (WRONGTYPE) "
        "where a record should be: let nobody else use the prefix \"%V\"",
        &link.name(), &settings_.prefix);
}


void
redis_store::refused(redis_link &link, const redisReply &reply)
{
    static char why[256];

    if (is_error(reply, "WRONGTYPE")) {
        say_wrong_key(link);
        return;
    }

    std::snprintf(why, sizeof(why), "it answers \"%.*s\"",
                  static_cast<int>(std::min<std::size_t>(
                      static_cast<std::size_t>(reply.len), 200)),
                  reply.str);

    if (!refusing_ && links_down_ == 0) {
        say_down(link.name(), why, 0);
    }

    refusing_ = true;
    refused_at_ = ngx_current_msec;

    /* Another server may be behind the name by now. */
    if (is_error(reply, "READONLY") || is_error(reply, "NOAUTH")) {
        link.give_up(why);
    }
}


/* Some commands may be taken while others are refused. */
void
redis_store::accepted()
{
    if (!refusing_ || ngx_current_msec - refused_at_ < calm) {
        return;
    }

    refusing_ = false;

    if (links_down_ == 0) {
        say_up(links_[0].name());
    }
}


void
redis_store::server_evicts(redis_link &link, std::string_view policy)
{
    ngx_str_t text = str(policy);

    if (said_evicts_ || ngx_worker != 0) {
        return;
    }

    said_evicts_ = true;

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency: redis \"%V\" may evict records before their "
                  "time, and their requests could run again: set its "
                  "\"maxmemory-policy\" to \"noeviction\", it is \"%V\"",
                  &link.name(), &text);
}

}
