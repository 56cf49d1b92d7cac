#include "module/first_sent.h"

#include "module/context.h"

namespace idempotency {

namespace {

/* A client's clock may be ahead by so many seconds. */
constexpr time_t clock_skew = 60;

error_code judge_time(const location_conf *conf, time_t first_sent);

}


bool
check_first_sent(context &ctx, error_code &problem)
{
    ngx_str_t value;
    ngx_http_complex_value_t *source = ctx.conf->first_sent;

    problem = error_code::none;

    if (source == nullptr) {
        return true;
    }

    if (ngx_http_complex_value(ctx.request, source, &value) != NGX_OK) {
        return false;
    }

    time_t time = ngx_parse_http_time(value.data, value.len);

    problem = time == NGX_ERROR ? error_code::first_sent_invalid
                                : judge_time(ctx.conf, time);
    return true;
}


namespace {

/*
 * A record lasts from the end of its run, which is after the request was sent:
 * one that was sent within that time is still known, if it ever ran.  Both
 * times have lost their parts of a second, so the age may be one more.
 */
error_code
judge_time(const location_conf *conf, time_t first_sent)
{
    std::uint64_t ttl = ttl_without_response(rules_of(conf).ttl);
    time_t age = ngx_time() - first_sent;

    if (age < -clock_skew) {
        return error_code::first_sent_invalid;
    }

    if (age <= 0 || ttl == forever
        || static_cast<std::uint64_t>(age + 1) * 1000 <= ttl)
    {
        return error_code::none;
    }

    return error_code::key_expired;
}

}

}
