#include "store/redis_admin.h"

#include "store/redis_admin_scripts.h"
#include "store/redis_errors.h"
#include "store/redis_record.h"
#include "store/redis_store.h"

namespace idempotency {

namespace {

constexpr std::size_t head_and_status = redis_record_head + 4;
constexpr unsigned most_hops = 5;
constexpr std::size_t longest_reply = 300;


/* Where a record is in Redis, and back. */
class admin_key {
public:
    admin_key(const ngx_str_t &prefix, const record_id &name)
    {
        u_char *p = ngx_cpymem(text_, prefix.data, prefix.len);

        end_ = ngx_hex_dump(p, const_cast<u_char *>(name.data()), name.size());
    }

    operator std::string_view() const
    {
        return {reinterpret_cast<const char *>(text_),
                static_cast<std::size_t>(end_ - text_)};
    }

    static bool parse(std::string_view key, const ngx_str_t &prefix,
                      record_id &name);

private:
    u_char text_[longest_prefix + 2 * sizeof(record_id)];
    u_char *end_;
};


void free_operation(admin_operation *op);
void too_late(command &c);
void looked_up(admin_operation &op, const redisReply &reply);
void settled(admin_operation &op, const redisReply &reply);
void add_response(redis_output &out, const admin_operation &op);
std::uint64_t age_of(const redis_record &record, std::uint64_t left,
                     std::uint64_t now);
std::string_view word_for(admin_act act);
bool lacks_permission(const redisReply &reply);
std::string_view reply_of(const redisReply &reply);

}


void
redis_store::look_up(const record_id &name, admin_waiter &waiter)
{
    admin_operation *op = make_admin(home_of(name), waiter);

    if (op != nullptr) {
        op->take = looked_up;
        op->script = "look up";
        op->name = name;
        send_admin(*op);
    }
}


void
redis_store::settle_unknown(const record_id &name, const admin_settlement &how,
                            admin_waiter &waiter)
{
    admin_operation *op = make_admin(home_of(name), waiter);

    if (op == nullptr) {
        return;
    }

    op->take = settled;
    op->script = word_for(how.act);
    op->name = name;
    op->settles = true;
    op->act = how.act;
    op->owner = how.owner;
    op->ttl = how.ttl;
    op->size = size_of(how.response);
    op->response = static_cast<std::uint8_t *>(
        ngx_alloc(op->size + 1, ngx_cycle->log));

    if (op->response == nullptr) {
        answer_admin(*op, {admin_result::unreachable, {}, 0});
        free_operation(op);
        return;
    }

    std::uint8_t *p = op->response;

    for (bytes part : how.response) {
        p = ngx_cpymem(p, part.data(), part.size());
    }

    op->local = local_;
    send_admin(*op);
}


/* About one record. */
void
redis_store::send_admin(admin_operation &op)
{
    redis_link &link = *op.link;
    unsigned arguments = op.settles ? 9 : 4;

    redis_output &out = link.begin(op, arguments, op.is_asking);

    out.add("EVAL");
    out.add(op.settles ? settle_script : look_up_script);
    out.add("1");
    out.add(admin_key(commands_.prefix(), op.name));

    if (op.settles) {
        std::uint64_t expiry = std::min(op.ttl, redis_longest);
        auto head = encode_redis_head({record_state::completed,
                                       0,
                                       op.owner,
                                       {},
                                       expiry,
                                       link.server_time(),
                                       {}});

        out.add(word_for(op.act));
        out.add(text_of(op.owner));
        out.add(number_text(expiry));
        out.add(text_of(bytes(head).last(2 * sizeof(std::uint64_t))));
        add_response(out, op);
    }

    link.end(op);
}


/* Null: the waiter was told that it cannot be done. */
admin_operation *
redis_store::make_admin(redis_link &link, admin_waiter &waiter)
{
    void *memory = nullptr;

    waiter.under_way = nullptr;

    if (link.usable()) {
        memory = ngx_alloc(sizeof(admin_operation), ngx_cycle->log);
    }

    if (memory == nullptr) {
        waiter.answered(waiter, {admin_result::unreachable, {}, 0});
        return nullptr;
    }

    auto *op = ::new (memory) admin_operation{};

    op->store = this;
    op->link = &link;
    op->waiter = &waiter;
    op->command::answered = admin_answered;
    op->command::overdue = too_late;
    waiter.under_way = op;

    return op;
}


void
redis_store::admin_answered(command &c, const redisReply *reply,
                            unanswered why)
{
    auto &op = static_cast<admin_operation &>(c);

    if (reply != nullptr && op.waiter != nullptr
        && op.store->admin_redirected(op, *reply))
    {
        return;
    }

    /* Without a reply it may have been done too. */
    if (op.local != nullptr) {
        op.local->drop(op.name);
    }

    if (reply != nullptr && op.waiter != nullptr) {
        op.take(op, *reply);

    } else if (why == unanswered::not_sent) {
        answer_admin(op, {admin_result::unreachable, {}, 0});

    } else {
        answer_admin(op, {});
    }

    free_operation(&op);
}


bool
redis_store::admin_redirected(admin_operation &op, const redisReply &reply)
{
    redirection to;

    if (cluster_ == nullptr || reply.type != REDIS_REPLY_ERROR
        || !read_redirection(text_of(reply), to) || ++op.hops > most_hops)
    {
        return false;
    }

    redis_link *link = link_after(to, *op.link, op.name);

    if (link == nullptr || !link->usable()) {
        return false;
    }

    op.link = link;
    op.is_asking = to.ask;
    send_admin(op);

    return true;
}


void
redis_store::forget(admin_waiter &waiter)
{
    waiter.under_way->waiter = nullptr;
    waiter.under_way = nullptr;
}


void
answer_admin(admin_operation &op, const admin_answer &what)
{
    admin_waiter *waiter = op.waiter;

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        waiter->answered(*waiter, what);
    }
}


/* The page helps most where a permission is missing. */
void
answer_refused(admin_operation &op, const redisReply &reply)
{
    bool permission = lacks_permission(reply);
    admin_answer what;

    what.result = admin_result::refused;
    what.refusal = {
        .server = view(op.link->name()),
        .command = op.script,
        .reply = reply_of(reply),
        .page = permission ? "docs/redis.md#permissions-of-the-user"
                           : "docs/redis.md",
        .had_no_effect = permission || means_not_executed(error_code(reply)),
    };
    answer_admin(op, what);
}


/*
 * Key, head and the first bytes of the response, PTTL, length.  Now is the
 * time of Redis.
 */
bool
read_admin_record(const redisReply &reply, std::uint64_t now,
                  admin_record &out)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 4
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_STRING
        || reply.element[2]->type != REDIS_REPLY_INTEGER
        || reply.element[3]->type != REDIS_REPLY_INTEGER)
    {
        return false;
    }

    bytes head = bytes_of(*reply.element[1]);
    auto record = decode_redis_record(head);
    std::string_view key = text_of(*reply.element[0]);
    std::size_t digits = 2 * sizeof(record_id);

    if (!record || key.size() < digits) {
        return false;
    }

    ngx_str_t prefix = str(key.substr(0, key.size() - digits));

    if (!admin_key::parse(key, prefix, out.name)) {
        return false;
    }

    auto left = static_cast<std::uint64_t>(
        std::max<long long>(reply.element[2]->integer, 0));

    out.state = record->state;
    out.attempt = record->attempt;
    out.age = age_of(*record, left, now);
    out.remaining = record->expiry == redis_never ? forever : left;
    out.response_size = static_cast<std::uint64_t>(reply.element[3]->integer)
                        - redis_record_head;

    if (record->state == record_state::pending && out.age >= record->mark) {
        out.state = record_state::unknown;
    }

    ngx_memzero(out.response_head, sizeof(out.response_head));

    if (head.size() >= head_and_status) {
        ngx_memcpy(out.response_head, head.data() + redis_record_head,
                   sizeof(out.response_head));
    }

    return true;
}


namespace {

void
free_operation(admin_operation *op)
{
    ngx_free(op->response);
    ngx_free(op);
}


/* A reply may still come, but nobody waits for it any more. */
void
too_late(command &c)
{
    auto &op = static_cast<admin_operation &>(c);
    admin_waiter *waiter = op.waiter;

    if (waiter != nullptr) {
        op.waiter = nullptr;
        waiter->under_way = nullptr;
        waiter->answered(*waiter, {});
    }
}


void
looked_up(admin_operation &op, const redisReply &reply)
{
    admin_record record;

    if (reply.type == REDIS_REPLY_INTEGER) {
        answer_admin(op, {admin_result::not_found, {}, 0});

    } else if (read_admin_record(reply, op.link->server_time(), record)) {
        answer_admin(op, {admin_result::done, {&record, 1}, 0});

    } else if (reply.type == REDIS_REPLY_ARRAY) {
        answer_admin(op, {admin_result::unreadable, {}, 0});

    } else {
        answer_refused(op, reply);
    }
}


void
settled(admin_operation &op, const redisReply &reply)
{
    bool known = reply.type == REDIS_REPLY_INTEGER && reply.integer >= 0
                 && reply.integer
                        <= static_cast<int>(admin_result::not_unknown);

    if (known) {
        answer_admin(op, {static_cast<admin_result>(reply.integer), {}, 0});

    } else if (has_code(reply, "OOM")) {
        answer_admin(op, {admin_result::no_room, {}, 0});

    } else {
        answer_refused(op, reply);
    }
}


void
add_response(redis_output &out, const admin_operation &op)
{
    if (op.size == 0) {
        out.add("");
        return;
    }

    out.add_size(op.size);
    out.add_part({op.response, op.size});
    out.add_part({});
}


/* Of a pending record, since it was renewed; of another, since it ended. */
std::uint64_t
age_of(const redis_record &record, std::uint64_t left, std::uint64_t now)
{
    if (record.state == record_state::pending) {
        return record.expiry - std::min(left, record.expiry);
    }

    return now - std::min(now, record.mark);
}


bool
admin_key::parse(std::string_view key, const ngx_str_t &prefix,
                 record_id &name)
{
    std::string_view digits = key.substr(prefix.len);

    for (std::size_t i = 0; i < name.size(); i++) {
        ngx_str_t pair = str(digits.substr(2 * i, 2));
        ngx_int_t value = ngx_hextoi(pair.data, pair.len);

        if (value == NGX_ERROR) {
            return false;
        }

        name[i] = static_cast<std::uint8_t>(value);
    }

    return true;
}


std::string_view
word_for(admin_act act)
{
    switch (act) {
    case admin_act::release: return "release";
    case admin_act::complete: return "complete";
    default: return "delete";
    }
}


/* Of a script's commands Redis 6 and 7 say it in other words. */
bool
lacks_permission(const redisReply &reply)
{
    std::string_view text = reply_of(reply);

    return text.find("NOPERM") != text.npos
           || text.find("ACL failure") != text.npos
           || text.find("can't run this command") != text.npos;
}


std::string_view
reply_of(const redisReply &reply)
{
    return reply.type == REDIS_REPLY_ERROR
               ? text_of(reply).substr(0, longest_reply)
               : "a reply that is none to this script";
}

}

}
