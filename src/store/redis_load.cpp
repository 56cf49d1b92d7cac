#include "store/redis_load.h"

namespace idempotency {

namespace {

/* It takes about the timeout until a change of the limit shows. */
constexpr ngx_msec_t longest_period = 1000;
constexpr ngx_msec_t enough_calm = 500;

constexpr std::size_t least_limit = 4;
constexpr std::size_t least_queue = 32;

}


void
load_limit::reset()
{
    *this = load_limit(timeout_);
    since_ = ngx_current_msec;
}


void
load_limit::answered(ngx_msec_t waited)
{
    look();
    answered_++;
    longest_wait_ = ngx_max(longest_wait_, waited);
}


void
load_limit::overdue()
{
    std::size_t most = ngx_max(answered_in_time() / 2, least_limit);

    limit_ = limit_ == 0 ? most : ngx_min(limit_, most);
    calm_ = 0;
}


bool
load_limit::admits(std::size_t in_flight, ngx_msec_t oldest)
{
    look();

    /* More than it will answer in time, so do not wait until it is late. */
    if (limit_ == 0 && oldest > timeout_ / 2
        && in_flight > ngx_max(answered_in_time() * 3 / 4, least_queue))
    {
        overdue();
    }

    bool room = limit_ == 0 || in_flight < limit_;

    refused_ = refused_ || !room;

    return room;
}


bool
load_limit::admits_later(std::size_t in_flight)
{
    look();

    return limit_ == 0 || in_flight < limit_ / 2 + 1;
}


/* How many commands the server answers within the timeout. */
std::size_t
load_limit::answered_in_time() const
{
    ngx_msec_t length = ngx_current_msec - since_ + length_before_;

    return (answered_ + answered_before_) * timeout_
           / ngx_max(length, static_cast<ngx_msec_t>(1));
}


/* Ends a period when its time has come. */
void
load_limit::look()
{
    ngx_msec_t length = ngx_current_msec - since_;

    if (length < ngx_min(timeout_, longest_period)) {
        return;
    }

    if (is_on()) {
        adjust(length);
    }

    answered_before_ = answered_;
    length_before_ = length;
    since_ = ngx_current_msec;
    answered_ = 0;
    longest_wait_ = 0;
    refused_ = false;
}


void
load_limit::adjust(ngx_msec_t length)
{
    if (longest_wait_ > timeout_ / 2) {
        limit_ = ngx_min(limit_, ngx_max(answered_in_time() / 2, least_limit));
        calm_ = 0;
        return;
    }

    limit_ += limit_ / 4 + 1;
    calm_ = refused_ ? 0 : calm_ + length;

    if (calm_ >= enough_calm) {
        limit_ = 0;
        calm_ = 0;
    }
}

}
