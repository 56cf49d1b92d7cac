#pragma once

#include "contract/key.h"
#include "ngx.h"
#include "store/counters.h"
#include "store/redis_reply.h"

namespace idempotency {

/*
 * What the log says about a server, in one worker: when it becomes
 * unavailable, when it is available again, and what happened meanwhile.  The
 * store reports events; a line is logged when the state changes, or at most
 * once a minute.  A server that comes and goes again and again has to work for
 * a while before it is called available.
 */
class server_health {
public:
    explicit server_health(const ngx_str_t &prefix) : prefix_(prefix) {}

    void report_to(counters *counts) { counts_ = counts; }

    void link_down(const ngx_str_t &server, const char *why, ngx_err_t err);
    void link_up(const ngx_str_t &server, unsigned links_down);

    /* One of the connections is slower than the load, or no longer. */
    void link_overloaded(const ngx_str_t &server);
    void link_recovered(const ngx_str_t &server);

    /* The server replied, and did or did not execute the command. */
    void accepted(const ngx_str_t &server);
    void refused(const ngx_str_t &server, const char *why);

    /* Problems with one record or with one setting of the server. */
    void wrong_type(const ngx_str_t &server);
    void unreadable_record(const ngx_str_t &server, const record_id &name);
    void evicts(const ngx_str_t &server, std::string_view policy);
    void lists_nothing(const ngx_str_t &server, const char *why);

    void claim_failed() { claims_failed_++; }

    /* No majority of the Sentinels says that this is the master. */
    void claim_not_confirmed(const ngx_str_t &server);

    /* Too few servers had a claim in time. */
    void not_durable(const ngx_str_t &server);
    void claim_not_returned(const ngx_str_t &server);

    /* The server had lost the record of a running request. */
    void put_back(const ngx_str_t &server);

    /* A server that may have lost its memory has been asked for all of it. */
    void memory_checked(const ngx_str_t &server, ngx_uint_t lost,
                        ngx_uint_t there, bool has_no_aof);

    /* It has the claim of another request where a lost one had been. */
    void foreign_owner(const ngx_str_t &server);

    /* An outcome is late from its first failure until it is stored or lost. */
    void outcome_late();
    void outcome_stored_late();
    void outcome_superseded() { outcomes_superseded_++; }
    void outcome_lost(const ngx_str_t &server);
    void outcome_over(const ngx_str_t &server);

private:
    /* Limits a log line to one a minute. */
    struct once_a_minute {
        time_t next = 0;

        bool now();
    };

    bool available() const { return links_down_ == 0 && !refusing_; }
    bool is_unsteady() const;
    void say_unavailable(const ngx_str_t &server, const char *why,
                         ngx_err_t err);
    void say_available(const ngx_str_t &server);

    ngx_str_t prefix_;
    counters *counts_ = nullptr;

    unsigned links_down_ = 0;
    bool refusing_ = false;
    ngx_msec_t refused_at_ = 0;
    ngx_msec_t unavailable_since_ = 0;
    ngx_msec_t available_since_ = 0;
    unsigned short_times_ = 0; /* in a row, in which it was available */

    unsigned links_overloaded_ = 0;
    ngx_msec_t overloaded_since_ = 0;
    ngx_uint_t claims_before_ = 0; /* failed when the overload began */

    ngx_uint_t claims_failed_ = 0;
    ngx_uint_t records_lost_ = 0;
    ngx_uint_t foreign_owners_ = 0;
    ngx_uint_t outcomes_late_ = 0; /* not stored yet */
    ngx_uint_t outcomes_stored_ = 0;
    ngx_uint_t outcomes_superseded_ = 0;
    ngx_uint_t outcomes_lost_ = 0;

    bool said_evicts_ = false;
    bool said_lists_nothing_ = false;
    once_a_minute wrong_types_;
    once_a_minute unreadable_records_;
    once_a_minute claims_not_returned_;
    once_a_minute records_put_back_;
    once_a_minute foreign_owners_said_;
    once_a_minute not_confirmed_said_;
    once_a_minute not_durable_said_;
};

}
