#include "store/redis_admin_scripts.h"
#include "store/redis_record.h"
#include "store/redis_store.h"

#include <charconv>

namespace idempotency {

/*
 * A command of an administrator: rare, so its script is always sent in full.
 * It belongs to itself, and ends when it is answered.
 */
struct admin_operation : command {
    admin_waiter *waiter;
    std::uint8_t *response; /* its own copy */

    /* Where a copy of the record that it changes may be, or null. */
    local_copies *local;
    record_id name;
};


namespace {

constexpr std::size_t keys_per_scan = 500;
constexpr std::size_t list_limit = 4 * keys_per_scan;
constexpr std::size_t head_and_status = redis_record_head + 4;


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


/* A number as an argument. */
struct number_text {
    char text[24];
    std::size_t length;

    explicit number_text(std::uint64_t value)
        : length(static_cast<std::size_t>(
            std::to_chars(text, text + sizeof(text), value).ptr - text))
    {}

    operator std::string_view() const { return {text, length}; }
};


admin_operation *make_operation(admin_waiter &waiter);
void free_operation(admin_operation *op);
void too_late(command &c);
void answer(admin_operation &op, const admin_answer &what);
template <void (*Reply)(admin_operation &, const redisReply &)>
void replied(command &c, const redisReply *reply, unanswered why);
void looked_up(admin_operation &op, const redisReply &reply);
void listed(admin_operation &op, const redisReply &reply);
void settled(admin_operation &op, const redisReply &reply);
bool read_record(const redisReply &reply, admin_record &out);
std::uint64_t age_of(const redis_record &record, std::uint64_t left,
                     long long seconds);
std::size_t pattern_of(const ngx_str_t &prefix, char *out);
std::string_view word_for(admin_act act);

}


void
redis_store::look_up(const record_id &name, admin_waiter &waiter)
{
    redis_link &link = links_[name.back() % links_.size()];
    admin_operation *op = make_operation(waiter);

    if (op == nullptr || !link.usable()) {
        ngx_free(op);
        waiter.under_way = nullptr;
        waiter.answered(waiter, {});
        return;
    }

    op->answered = replied<looked_up>;

    redis_output &out = link.begin(*op, 4);

    out.add("EVAL");
    out.add(look_up_script);
    out.add("1");
    out.add(admin_key(commands_.prefix(), name));
    link.end(*op);
}


void
redis_store::list_unknown(std::uint64_t from, admin_waiter &waiter)
{
    redis_link &link = links_[0];
    admin_operation *op = make_operation(waiter);
    char pattern[2 * longest_prefix + 1];
    std::size_t length = pattern_of(commands_.prefix(), pattern);

    if (op == nullptr || !link.usable()) {
        ngx_free(op);
        waiter.under_way = nullptr;
        waiter.answered(waiter, {});
        return;
    }

    op->answered = replied<listed>;

    redis_output &out = link.begin(*op, 6);

    out.add("EVAL");
    out.add(list_script);
    out.add("0");
    out.add(number_text(from));
    out.add({pattern, length});
    out.add(number_text(keys_per_scan));
    link.end(*op);
}


void
redis_store::settle_unknown(const record_id &name, const admin_settlement &how,
                            admin_waiter &waiter)
{
    redis_link &link = links_[name.back() % links_.size()];
    admin_operation *op = make_operation(waiter);
    std::size_t size = redis_record_head + size_of(how.response);

    if (op != nullptr) {
        op->response = static_cast<std::uint8_t *>(
            ngx_calloc(size, ngx_cycle->log));
    }

    if (op == nullptr || op->response == nullptr || !link.usable()) {
        if (op != nullptr) {
            free_operation(op);
        }

        waiter.under_way = nullptr;
        waiter.answered(waiter, {});
        return;
    }

    std::uint8_t *p = op->response + redis_record_head;

    for (bytes part : how.response) {
        p = ngx_cpymem(p, part.data(), part.size());
    }

    op->answered = replied<settled>;
    op->local = local_;
    op->name = name;

    redis_output &out = link.begin(*op, 8);

    out.add("EVAL");
    out.add(settle_script);
    out.add("1");
    out.add(admin_key(commands_.prefix(), name));
    out.add(word_for(how.act));
    out.add(text_of(how.owner));
    out.add(number_text(std::min(how.ttl, redis_longest)));
    out.add_size(size);
    out.add_part({op->response, size});
    out.add_part({});
    link.end(*op);
}


void
redis_store::forget(admin_waiter &waiter)
{
    waiter.under_way->waiter = nullptr;
    waiter.under_way = nullptr;
}


namespace {

admin_operation *
make_operation(admin_waiter &waiter)
{
    void *memory = ngx_alloc(sizeof(admin_operation), ngx_cycle->log);

    if (memory == nullptr) {
        return nullptr;
    }

    auto *op = ::new (memory) admin_operation{};

    op->waiter = &waiter;
    op->command::overdue = too_late;
    waiter.under_way = op;

    return op;
}


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


template <void (*Reply)(admin_operation &, const redisReply &)>
void
replied(command &c, const redisReply *reply, unanswered)
{
    auto &op = static_cast<admin_operation &>(c);

    /* Without a reply it may have been done too. */
    if (op.local != nullptr) {
        op.local->drop(op.name);
    }

    if (reply != nullptr && op.waiter != nullptr) {
        Reply(op, *reply);

    } else {
        answer(op, {});
    }

    free_operation(&op);
}


void
answer(admin_operation &op, const admin_answer &what)
{
    admin_waiter *waiter = op.waiter;

    if (waiter != nullptr) {
        waiter->under_way = nullptr;
        waiter->answered(*waiter, what);
    }
}


void
looked_up(admin_operation &op, const redisReply &reply)
{
    admin_record record;

    if (reply.type == REDIS_REPLY_INTEGER) {
        answer(op, {admin_result::not_found, {}, 0});

    } else if (read_record(reply, record)) {
        answer(op, {admin_result::done, {&record, 1}, 0});

    } else {
        answer(op, {});
    }
}


void
listed(admin_operation &op, const redisReply &reply)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_ARRAY)
    {
        answer(op, {});
        return;
    }

    std::string_view cursor = text_of(*reply.element[0]);
    const redisReply &found = *reply.element[1];
    std::size_t most = std::min<std::size_t>(found.elements, list_limit);
    auto *records = static_cast<admin_record *>(
        ngx_alloc((most + 1) * sizeof(admin_record), ngx_cycle->log));
    std::size_t count = 0;
    std::uint64_t next = 0;

    std::from_chars(cursor.data(), cursor.data() + cursor.size(), next);

    for (std::size_t i = 0; records != nullptr && i < most; i++) {
        count += read_record(*found.element[i], records[count]);
    }

    answer(op, records == nullptr
                   ? admin_answer{}
                   : admin_answer{admin_result::done, {records, count}, next});
    ngx_free(records);
}


void
settled(admin_operation &op, const redisReply &reply)
{
    bool known = reply.type == REDIS_REPLY_INTEGER && reply.integer >= 0
                 && reply.integer
                        <= static_cast<int>(admin_result::not_unknown);

    if (known) {
        answer(op, {static_cast<admin_result>(reply.integer), {}, 0});

    } else if (is_error(reply, "OOM")) {
        answer(op, {admin_result::no_room, {}, 0});

    } else {
        answer(op, {});
    }
}


/*
 * Key, head and the first bytes of the response, PTTL, length, and the time of
 * Redis in seconds.
 */
bool
read_record(const redisReply &reply, admin_record &out)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 5
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_STRING
        || reply.element[2]->type != REDIS_REPLY_INTEGER
        || reply.element[3]->type != REDIS_REPLY_INTEGER
        || reply.element[4]->type != REDIS_REPLY_INTEGER)
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
    out.age = age_of(*record, left, reply.element[4]->integer);
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


/* Of a pending record, since it was renewed; of another, since it ended. */
std::uint64_t
age_of(const redis_record &record, std::uint64_t left, long long seconds)
{
    if (record.state == record_state::pending) {
        return record.expiry - std::min(left, record.expiry);
    }

    auto now = static_cast<std::uint64_t>(seconds) * 1000;

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


/* Every key with the prefix, taken as it is. */
std::size_t
pattern_of(const ngx_str_t &prefix, char *out)
{
    char *p = out;

    for (char c : view(prefix)) {
        if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') {
            *p++ = '\\';
        }

        *p++ = c;
    }

    *p++ = '*';

    return static_cast<std::size_t>(p - out);
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

}

}
