#include "store/redis_admin.h"
#include "store/redis_admin_scripts.h"

namespace idempotency {

namespace {

constexpr std::size_t keys_per_scan = 500;
constexpr std::size_t list_limit = 4 * keys_per_scan;

/* Where a list goes on, in a cluster: the cursor, and the master below it. */
constexpr unsigned master_bits = 10;
constexpr std::uint64_t master_mask = (1u << master_bits) - 1;

std::size_t pattern_of(const ngx_str_t &prefix, char *out);

}


/* In a cluster each master has a part of it, one after the other. */
void
redis_store::list_unknown(std::uint64_t from, admin_waiter &waiter)
{
    std::size_t index = cluster_ != nullptr ? from & master_mask : 0;
    redis_node *node = cluster_ != nullptr ? cluster_->master(index) : server_;
    std::uint64_t cursor = cluster_ != nullptr ? from >> master_bits : from;
    char pattern[2 * longest_prefix + 1];
    std::size_t length = pattern_of(commands_.prefix(), pattern);

    admin_operation *op = make_admin(
        node != nullptr ? node->links[0] : cluster_->nowhere(), waiter);

    if (op == nullptr) {
        return;
    }

    op->take = listed;
    op->script = "list";
    op->master = index;

    redis_output &out = op->link->begin(*op, 6);

    out.add("EVAL");
    out.add(list_script);
    out.add("0");
    out.add(number_text(cursor));
    out.add({pattern, length});
    out.add(number_text(keys_per_scan));
    op->link->end(*op);
}


void
redis_store::listed(admin_operation &op, const redisReply &reply)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_ARRAY)
    {
        answer_refused(op, reply);
        return;
    }

    std::string_view cursor = text_of(*reply.element[0]);
    const redisReply &found = *reply.element[1];
    std::size_t most = std::min<std::size_t>(found.elements, list_limit);
    auto *records = static_cast<admin_record *>(
        ngx_alloc((most + 1) * sizeof(admin_record), ngx_cycle->log));
    std::size_t count = 0;
    std::uint64_t next = 0;
    std::uint64_t now = op.link->server_time();

    std::from_chars(cursor.data(), cursor.data() + cursor.size(), next);
    next = op.store->list_goes_on(op.master, next);

    for (std::size_t i = 0; records != nullptr && i < most; i++) {
        count += read_admin_record(*found.element[i], now, records[count]);
    }

    answer_admin(
        op, records == nullptr
                ? admin_answer{}
                : admin_answer{admin_result::done, {records, count}, next});
    ngx_free(records);
}


/* After its last page another master may follow; 0: none. */
std::uint64_t
redis_store::list_goes_on(std::size_t master, std::uint64_t cursor)
{
    if (cluster_ == nullptr) {
        return cursor;
    }

    if (cursor != 0) {
        return cursor << master_bits | master;
    }

    return cluster_->master(master + 1) != nullptr ? master + 1 : 0;
}


namespace {

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

}

}
