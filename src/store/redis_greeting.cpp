#include "store/redis_greeting.h"

#include <charconv>

namespace idempotency {

namespace {

bool is_replica(const redisReply &role);
std::uint64_t number_of(const redisReply &reply);

}


bool
redis_greeting::send(ngx_connection_t *c, const link_settings &settings)
{
    std::string_view user = view(settings.user);
    std::string_view password = view(settings.password);
    std::string_view db = view(settings.db);

    count_ = 0;
    answered_ = 0;
    first_error_ = {};
    policy_[0] = '\0';

    if (!user.empty() && !add(c, step::auth, {"AUTH", user, password})) {
        return false;
    }

    if (user.empty() && !password.empty()
        && !add(c, step::auth, {"AUTH", password}))
    {
        return false;
    }

    if (db != "0" && !add(c, step::select, {"SELECT", db})) {
        return false;
    }

    return add(c, step::name, {"CLIENT", "SETNAME", "idempotency"})
           && add(c, step::time, {"TIME"}) && add(c, step::role, {"ROLE"})
           && add(c, step::memory, {"INFO", "memory"});
}


/*
 * If AUTH or SELECT fails, the server cannot be used.  An ACL may forbid the
 * other commands; their replies are not required.
 */
const char *
redis_greeting::take(const redisReply &reply)
{
    step what = steps_[answered_++];

    if (reply.type == REDIS_REPLY_ERROR) {
        if (what == step::auth || what == step::select
            || is_error(reply, "NOAUTH")) {
            refusal_ = error_text(reply);
            return refusal_.text();
        }

        if (first_error_.empty()) {
            first_error_ = error_text(reply);
        }

        return nullptr;
    }

    if (what == step::role && is_replica(reply)) {
        return "this server is a replica and accepts no writes";
    }

    if (what == step::time) {
        take_time(reply);
    }

    if (what == step::memory && reply.type == REDIS_REPLY_STRING) {
        take_memory(text_of(reply));
    }

    return nullptr;
}


const char *
redis_greeting::first_error() const
{
    return first_error_.empty() ? nullptr : first_error_.text();
}


/* If the server did not tell its time, use the time of this host. */
std::uint64_t
redis_greeting::server_time() const
{
    if (server_time_ == 0) {
        return static_cast<std::uint64_t>(ngx_time()) * 1000;
    }

    return server_time_ + (ngx_current_msec - server_time_read_at_);
}


bool
redis_greeting::add(ngx_connection_t *c, step what,
                    std::initializer_list<std::string_view> command)
{
    std::array<const char *, 4> words;
    std::array<std::size_t, 4> sizes;
    char *formatted = nullptr;
    std::size_t count = 0;

    for (std::string_view word : command) {
        words[count] = word.data();
        sizes[count++] = word.size();
    }

    int size = static_cast<int>(redisFormatCommandArgv(
        &formatted, static_cast<int>(count), words.data(), sizes.data()));

    if (size < 0) {
        return false;
    }

    /* The socket buffer of a new connection has room for all of it. */
    ssize_t sent = c->send(c, reinterpret_cast<u_char *>(formatted),
                           static_cast<std::size_t>(size));
    redisFreeCommand(formatted);

    steps_[count_++] = what;

    return sent == size;
}


void
redis_greeting::take_time(const redisReply &reply)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_STRING)
    {
        return;
    }

    server_time_ = number_of(*reply.element[0]) * 1000
                   + number_of(*reply.element[1]) / 1000;
    server_time_read_at_ = ngx_current_msec;
}


void
redis_greeting::take_memory(std::string_view info)
{
    constexpr std::string_view field = "maxmemory_policy:";
    std::size_t at = info.find(field);

    if (at == std::string_view::npos) {
        return;
    }

    std::string_view policy = info.substr(at + field.size());

    policy = policy.substr(0, policy.find_first_of("\r\n"));
    policy = policy.substr(0, policy_.size() - 1);
    policy_[policy.copy(policy_.data(), policy.size())] = '\0';
}


namespace {

bool
is_replica(const redisReply &role)
{
    return role.type == REDIS_REPLY_ARRAY && role.elements > 0
           && role.element[0]->type == REDIS_REPLY_STRING
           && text_of(*role.element[0]) == "slave";
}


std::uint64_t
number_of(const redisReply &reply)
{
    std::string_view text = text_of(reply);
    std::uint64_t value = 0;

    std::from_chars(text.data(), text.data() + text.size(), value);

    return value;
}

}

}
