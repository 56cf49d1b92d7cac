#pragma once

#include "ngx.h"

namespace idempotency {

/*
 * Keeps a server that is slower than the load from being asked for more than
 * it can answer in time: its queue would only hold commands whose requests
 * have been refused by the time they are executed.  There is no limit until a
 * command is overdue, or is going to be.  From then on half as many commands
 * may be on their way as the server answers within the timeout.  The limit
 * grows while replies are in time, and ends when nobody is refused any more.
 * A link has one; it lives as long as the link.
 */
class load_limit {
public:
    explicit load_limit(ngx_msec_t timeout) : timeout_(timeout) {}

    /* A new connection has nothing on its way. */
    void reset();

    void answered(ngx_msec_t waited);
    void overdue();

    /*
     * Whether one more command may be sent, or one that has time.  The oldest
     * on its way has waited so long.
     */
    bool admits(std::size_t in_flight, ngx_msec_t oldest);
    bool admits_later(std::size_t in_flight);

    bool is_on() const { return limit_ != 0; }

private:
    void look();
    void adjust(ngx_msec_t length);
    std::size_t answered_in_time() const;

    ngx_msec_t timeout_;
    std::size_t limit_ = 0; /* 0: none */

    /* In the current period, and in the one before. */
    ngx_msec_t since_ = 0;
    std::size_t answered_ = 0;
    std::size_t answered_before_ = 0;
    ngx_msec_t length_before_ = 0;

    ngx_msec_t longest_wait_ = 0;
    bool refused_ = false;
    ngx_msec_t calm_ = 0; /* how long nobody was refused */
};

}
