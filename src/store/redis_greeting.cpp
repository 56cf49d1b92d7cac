#include "store/redis_greeting.h"

#include "store/redis_errors.h"
#include "store/redis_scripts.h"
#include "store/redis_sha.h"

#include <charconv>

namespace idempotency {

namespace {

constexpr const char *says_replica =
    "this server is a replica and accepts no writes";

constexpr std::string_view tried_value = "idempotency";

bool is_replica(const redisReply &role);
bool is_tried_value(const redisReply &reply);
std::uint64_t number_of(const redisReply &reply);
void copy_field(const redisReply &info, std::string_view field,
                std::span<char> out);

}


bool
redis_greeting::send(ngx_connection_t *c, const link_settings &settings,
                     const redis_route &route, bool lists)
{
    count_ = 0;
    answered_ = 0;
    first_error_ = {};
    list_refusal_ = {};
    policy_[0] = '\0';
    aof_[0] = '\0';
    identity_ = {};
    in_cluster_ = settings.in_cluster;
    past_ = {};
    is_untried_ = !route.serves_any();
    knows_set_get_ = false;
    writes_refused_ = false;

    if (settings.only_asks) {
        return log_in(c, settings)
               && add(c, step::name, {"CLIENT", "SETNAME", "idempotency"});
    }

    return log_in(c, settings)
           && add(c, step::name, {"CLIENT", "SETNAME", "idempotency"})
           && add(c, step::time, {"TIME"}) && add(c, step::role, {"ROLE"})
           && add(c, step::memory, {"INFO", "memory"})
           && add(c, step::process, {"INFO", "server"})
           && add(c, step::replication, {"INFO", "replication"})
           && add(c, step::persistence, {"INFO", "persistence"})
           && (is_untried_ || try_out(c, settings, route))
           && (!lists || add(c, step::list, {"SCAN", "0", "COUNT", "1"}))
           && try_durable(c, settings);
}


bool
redis_greeting::log_in(ngx_connection_t *c, const link_settings &settings)
{
    std::string_view user = view(settings.user);
    std::string_view password = view(settings.password);
    std::string_view db = view(settings.db);

    if (!user.empty() && !add(c, step::auth, {"AUTH", user, password})) {
        return false;
    }

    if (user.empty() && !password.empty()
        && !add(c, step::auth, {"AUTH", password}))
    {
        return false;
    }

    return db == "0" || add(c, step::select, {"SELECT", db});
}


/*
 * The script leaves a value, SET must return it and may not replace it, and
 * the script finds it again.
 */
bool
redis_greeting::try_out(ngx_connection_t *c, const link_settings &settings,
                        const redis_route &route)
{
    u_char name[longest_prefix + 64];
    std::string_view key;

    do {
        u_char *end = ngx_sprintf(name, "%Vtry:%08xD%08xD%P", &settings.prefix,
                                  static_cast<std::uint32_t>(ngx_random()),
                                  static_cast<std::uint32_t>(ngx_random()),
                                  ngx_pid);

        key = {reinterpret_cast<char *>(name),
               static_cast<std::size_t>(end - name)};
    } while (!route.serves(slot_of(key)));

    script_hash hash(try_out_script);

    return add(c, step::scripts,
               {"EVAL", try_out_script, "1", key, tried_value, "0"})
           && add(c, step::set_get,
                  {"SET", key, "other", "NX", "GET", "PX", "10000"})
           && add(c, step::scripts_end,
                  {"EVALSHA", hash, "1", key, tried_value, "1"});
}


/* A server that cannot tell is not used. */
bool
redis_greeting::try_durable(ngx_connection_t *c, const link_settings &settings)
{
    switch (settings.asks_for) {

    case durability_settings::kind::replicas:
        return add(c, step::durable, {"WAIT", "0", "1"});

    case durability_settings::kind::disk:
        return add(c, step::durable, {"WAITAOF", "1", "0", "1"});

    default: return true;
    }
}


const char *
redis_greeting::take(const redisReply &reply)
{
    step what = steps_[answered_++];

    if (reply.type == REDIS_REPLY_ERROR) {
        return take_error(what, reply);
    }

    switch (what) {

    case step::role: return is_replica(reply) ? says_replica : nullptr;

    case step::time: take_time(reply); return nullptr;

    case step::memory:
        copy_field(reply, "\nmaxmemory_policy:", policy_);
        return nullptr;

    case step::process:
        copy_field(reply, "\nrun_id:", identity_.process);
        return nullptr;

    case step::replication:
        copy_field(reply, "\nmaster_replid:", identity_.history);
        copy_field(reply, "\nmaster_replid2:", past_);
        return nullptr;

    case step::persistence:
        copy_field(reply, "\naof_enabled:", aof_);
        return nullptr;

    case step::set_get: knows_set_get_ = is_tried_value(reply); return nullptr;

    case step::scripts_end:
        knows_set_get_ = knows_set_get_ && is_tried_value(reply);
        return nullptr;

    default: return nullptr;
    }
}


/*
 * Without login, database or scripts the server cannot be used.  A server that
 * accepts no writes for now can at least be read, and in a cluster the slot of
 * the key that is tried may be on its way to another node.  A node that does
 * not serve its slots yet is not used: claims have to wait from when it does.
 * An ACL may forbid the other commands; their replies are not required.
 */
const char *
redis_greeting::take_error(step what, const redisReply &reply)
{
    std::string_view code = error_code(reply);
    bool tries_scripts = what == step::scripts || what == step::scripts_end;

    /* What a server says about a login may contain the password. */
    if (what == step::auth) {
        bool known = code == "ERR" || means_not_executed(code);

        refusal_ = error_text("login failed, check user and password: the "
                              "reply begins with \"%.*s\"",
                              known ? code : "?");
        return refusal_.text();
    }

    if (code == "READONLY") {
        return says_replica;
    }

    if (what == step::durable) {
        refusal_ = error_text("it cannot do what \"durability\" asks for, "
                              "the reply is \"%.*s\"",
                              text_of(reply).substr(0, 150));
        return refusal_.text();
    }

    if (what == step::select || code == "NOAUTH"
        || (tries_scripts && !refuses_writes(code) && code != "NOSCRIPT"
            && !(in_cluster_ && is_about_slots(code)
                 && code != "CLUSTERDOWN")))
    {
        refusal_ = error_text(reply);
        return refusal_.text();
    }

    writes_refused_ = writes_refused_ || refuses_writes(code);

    /* A server that is loading will list later. */
    if (what == step::list) {
        list_refusal_ = code == "NOPERM" || code == "ERR" ? error_text(reply)
                                                          : error_text();
        return nullptr;
    }

    /* That SET does not know GET is no news of an older server. */
    if (first_error_.empty() && what != step::set_get) {
        first_error_ = error_text(reply);
    }

    return nullptr;
}


const char *
redis_greeting::first_error() const
{
    return first_error_.empty() ? nullptr : first_error_.text();
}


const char *
redis_greeting::list_refusal() const
{
    return list_refusal_.empty() ? nullptr : list_refusal_.text();
}


/* A replica that becomes master keeps the id of what it has copied. */
bool
redis_greeting::was_promoted() const
{
    std::string_view id = past_.data();

    return id.empty() || id.find_first_not_of('0') != id.npos;
}


bool
redis_greeting::was_replica_of(const server_identity &master) const
{
    return was_promoted()
           && (past_[0] == '\0' || master.history[0] == '\0'
               || past_ == master.history);
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
    std::array<const char *, 8> words;
    std::array<std::size_t, 8> sizes;
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


namespace {

bool
is_replica(const redisReply &role)
{
    return role.type == REDIS_REPLY_ARRAY && role.elements > 0
           && role.element[0]->type == REDIS_REPLY_STRING
           && text_of(*role.element[0]) == "slave";
}


bool
is_tried_value(const redisReply &reply)
{
    return reply.type == REDIS_REPLY_STRING && text_of(reply) == tried_value;
}


std::uint64_t
number_of(const redisReply &reply)
{
    std::string_view text = text_of(reply);
    std::uint64_t value = 0;

    std::from_chars(text.data(), text.data() + text.size(), value);

    return value;
}


/* The value of a field, which stands at the start of a line. */
void
copy_field(const redisReply &info, std::string_view field, std::span<char> out)
{
    if (info.type != REDIS_REPLY_STRING) {
        return;
    }

    std::string_view text = text_of(info);
    std::size_t at = text.find(field);

    if (at == text.npos) {
        return;
    }

    text = text.substr(at + field.size());
    text = text.substr(0, text.find_first_of("\r\n"));
    text = text.substr(0, out.size() - 1);
    out[text.copy(out.data(), text.size())] = '\0';
}

}

}
