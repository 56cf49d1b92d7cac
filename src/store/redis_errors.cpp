#include "store/redis_errors.h"

namespace idempotency {

namespace {

constexpr std::string_view write_refusals[] = {"OOM", "MISCONF", "NOREPLICAS"};

constexpr std::string_view slot_errors[] = {"MOVED", "ASK", "TRYAGAIN",
                                            "CLUSTERDOWN"};

constexpr std::string_view other_refusals[] = {
    "READONLY",  "LOADING",   "MASTERDOWN", "BUSY",      "NOAUTH",  "NOPERM",
    "WRONGPASS", "WRONGTYPE", "NOSCRIPT",   "CROSSSLOT", "NOPROTO",
};


bool
is_among(std::string_view code, std::span<const std::string_view> codes)
{
    return std::find(codes.begin(), codes.end(), code) != codes.end();
}


std::string_view
first_word(std::string_view text)
{
    return text.substr(0, text.find_first_of(" \r\n"));
}

}


std::string_view
error_code(const redisReply &reply)
{
    constexpr std::string_view script_error = "ERR Error running script";
    constexpr std::string_view place = "@user_script:";

    if (reply.type != REDIS_REPLY_ERROR) {
        return {};
    }

    std::string_view text = text_of(reply);

    if (!text.starts_with(script_error)) {
        return first_word(text);
    }

    /* "… @user_script:6: @user_script: 6: -OOM command not allowed …" */
    std::size_t at = text.rfind(place);

    at = at == text.npos ? at : text.find(": ", at + place.size());

    if (at == text.npos) {
        return first_word(text);
    }

    std::string_view code = first_word(text.substr(at + 2));

    if (code.starts_with('-')) {
        code.remove_prefix(1);
    }

    return means_not_executed(code) ? code : first_word(text);
}


bool
means_not_executed(std::string_view code)
{
    return refuses_writes(code) || is_about_slots(code)
           || is_among(code, other_refusals);
}


bool
is_about_slots(std::string_view code)
{
    return is_among(code, slot_errors);
}


bool
refuses_writes(std::string_view code)
{
    return is_among(code, write_refusals);
}

}
