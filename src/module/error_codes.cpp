#include "module/error_codes.h"

#include "module/context.h"

namespace idempotency {

namespace {

constexpr unsigned invalid_argument = 3;
constexpr unsigned failed_precondition = 9;
constexpr unsigned aborted = 10;
constexpr unsigned unavailable = 14;

/* By error_code. */
constexpr problem problems[] = {
    {"", 0, 0, "", ""},

    {"key_missing", 400, invalid_argument, "Idempotency key is missing",
     "This request needs an idempotency key. Send it again with a key."},

    {"key_invalid", 400, invalid_argument, "Idempotency key is invalid",
     ""}, /* see rule_of() */

    {"key_not_supported", 400, invalid_argument,
     "Idempotency key is not supported for this method",
     "Idempotency keys have no effect on this method. Send the request "
     "without "
     "a key."},

    {"scope_missing", 400, invalid_argument, "Caller is unknown",
     "An idempotency key can only be used by a known caller. Send the request "
     "again with your credentials."},

    {"first_sent_invalid", 400, invalid_argument,
     "Time of first sending is invalid",
     "An idempotency key must come with the time at which the request was "
     "first sent, as an HTTP date that is not in the future. The request was "
     "not run."},

    {"key_expired", 412, failed_precondition, "Idempotency key has expired",
     "The request was first sent too long ago: whether it was executed is no "
     "longer known here. Check that before you send it with a new key."},

    {"in_progress", 409, aborted, "Request is in progress",
     "A request with this idempotency key is still running. Retry later with "
     "the same key."},

    {"outcome_unknown", 409, failed_precondition, "Outcome is unknown",
     "An earlier request with this idempotency key was sent to the "
     "application, but its outcome is not known. It will not be run again "
     "with "
     "this key. Check whether it was executed before you send it with a new "
     "key."},

    {"response_not_kept", 409, failed_precondition,
     "Response is not available",
     "An earlier request with this idempotency key was executed, but its "
     "response was not stored. It will not be run again."},

    {"key_reused", 422, failed_precondition,
     "Idempotency key was used for another request",
     "This idempotency key was already used for a different request. Use a "
     "new "
     "key for a new request."},

    {"store_unavailable", 503, unavailable, "Idempotency store is unavailable",
     "This attempt was not sent to the application; an earlier attempt may "
     "have been. Retry later with the same key."},
};


static_assert(std::size(problems)
              == static_cast<std::size_t>(error_code::store_unavailable) + 1);


/* A format for one of the limits of a key. */
const char *
rule_of(key_fault fault)
{
    switch (fault) {

    case key_fault::empty:
        return "The idempotency key is empty. Send a key, or send the request "
               "without one.";

    case key_fault::repeated:
        return "The idempotency key was sent more than once. Send it once.";

    case key_fault::too_short:
        return "The idempotency key is too short. It must have at least %uz "
               "characters.";

    case key_fault::too_long:
        return "The idempotency key is too long. It must have at most %uz "
               "characters.";

    case key_fault::not_printable:
        return "The idempotency key must have printable ASCII characters "
               "only.";

    case key_fault::not_uuid: return "The idempotency key must be a UUID.";

    case key_fault::not_string:
        return "The idempotency key in the request body must be a string of "
               "at most %uz characters.";

    case key_fault::name_repeated:
        return "The request body has the name of the idempotency key, or a "
               "name on the way to it, twice. Send it once.";

    case key_fault::unreadable:
        return "The idempotency key cannot be read, because the request body "
               "is not valid JSON.";

    case key_fault::encoded:
        return "The idempotency key cannot be read from a body with a "
               "Content-Encoding. Send the body without it.";

    default:
        return "The value of the idempotency key is malformed. Send a string "
               "in quotes, or a value without spaces, quotes and commas.";
    }
}

}


const problem &
describe(error_code code)
{
    return problems[static_cast<std::size_t>(code)];
}


ngx_uint_t
status_of(const location_conf *conf, error_code code)
{
    for (const error_status &e : elements<error_status>(conf->errors)) {
        if (e.code == code) {
            return e.status;
        }
    }

    return describe(code).status;
}


ngx_str_t
detail_of(const context &ctx)
{
    ngx_pool_t *pool = ctx.request->pool;

    if (ctx.error != error_code::key_invalid) {
        return str(describe(ctx.error).detail);
    }

    const char *broken = rule_of(ctx.fault);
    std::size_t limit = ctx.fault == key_fault::too_short ? ctx.conf->key_min
                                                          : ctx.conf->key_max;

    return format(pool, 128 + NGX_SIZE_T_LEN, broken, limit);
}


std::string_view
name_of(error_code code)
{
    auto i = static_cast<std::size_t>(code);

    return i < std::size(problems) ? problems[i].name : std::string_view();
}


error_code
error_by_name(std::string_view name)
{
    for (std::size_t i = 1; i < std::size(problems); i++) {
        if (problems[i].name == name) {
            return static_cast<error_code>(i);
        }
    }

    return error_code::none;
}

}
