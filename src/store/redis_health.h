#pragma once

#include "ngx.h"
#include "store/redis_reply.h"

namespace idempotency {

/*
 * What the log says of a server, in one worker: when it becomes unavailable,
 * when it is back, and what happened meanwhile.  Everything is told to it;
 * lines are for changes, or are at most one in a minute.
 */
class server_health {
public:
    explicit server_health(const ngx_str_t &prefix) : prefix_(prefix) {}

    void link_down(const ngx_str_t &server, const char *why, ngx_err_t err);
    void link_up(const ngx_str_t &server, unsigned links_down);

    /* The server answers, and does or does not do what it was told. */
    void accepted(const ngx_str_t &server);
    void refused(const ngx_str_t &server, const char *why);

    /* What one record or one setting is the reason of. */
    void wrong_type(const ngx_str_t &server);
    void unreadable_record(const ngx_str_t &server);
    void evicts(const ngx_str_t &server, std::string_view policy);

    void claim_failed() { claims_failed_++; }
    void claim_not_returned(const ngx_str_t &server);

    /* An outcome is late from when it fails first until it is over. */
    void outcome_late() { outcomes_late_++; }
    void outcome_stored_late() { outcomes_stored_++; }
    void outcome_lost(const ngx_str_t &server);
    void outcome_over(const ngx_str_t &server);

private:
    /* Lets one line through in a minute. */
    struct once_a_minute {
        time_t next = 0;

        bool now();
    };

    bool available() const { return links_down_ == 0 && !refusing_; }
    void say_unavailable(const ngx_str_t &server, const char *why,
                         ngx_err_t err);
    void say_available(const ngx_str_t &server);

    ngx_str_t prefix_;

    unsigned links_down_ = 0;
    bool refusing_ = false;
    ngx_msec_t refused_at_ = 0;
    ngx_msec_t unavailable_since_ = 0;

    ngx_uint_t claims_failed_ = 0;
    ngx_uint_t outcomes_late_ = 0; /* yet to be stored */
    ngx_uint_t outcomes_stored_ = 0;
    ngx_uint_t outcomes_lost_ = 0;

    bool said_evicts_ = false;
    once_a_minute wrong_types_;
    once_a_minute unreadable_records_;
    once_a_minute claims_not_returned_;
};

}
