#include "store/redis_commands.h"

#include "store/redis_record.h"
#include "store/redis_scripts.h"
#include "store/redis_sha.h"

#include <charconv>

namespace idempotency {

namespace {

struct script {
    std::string_view text;
    script_hash hash;

    explicit script(std::string_view source) : text(source), hash(source) {}
};


/* A number as an argument. */
class decimal {
public:
    explicit decimal(std::uint64_t value)
        : end_(std::to_chars(text_, text_ + sizeof(text_), value).ptr)
    {}

    operator std::string_view() const
    {
        return {text_, static_cast<std::size_t>(end_ - text_)};
    }

private:
    char text_[24];
    char *end_;
};


/* prefix + 32 hexadecimal digits */
class key_name {
public:
    key_name(const ngx_str_t &prefix, const record_id &name)
    {
        u_char *p = ngx_cpymem(text_, prefix.data, prefix.len);

        end_ = ngx_hex_dump(p, const_cast<u_char *>(name.data()), name.size());
    }

    operator std::string_view() const
    {
        return {reinterpret_cast<const char *>(text_),
                static_cast<std::size_t>(end_ - text_)};
    }

private:
    u_char text_[longest_prefix + 2 * sizeof(record_id)];
    u_char *end_;
};


const script &script_for(purpose why);
void add_record(redis_output &out, const operation &op);
void add_expiry(redis_output &out, const operation &op);
std::string_view what_gives_way(const operation &op);

}


void
redis_commands::send(operation &op) const
{
    switch (op.written) {
    case form::plain_set: set_record(op, true); break;

    case form::set_and_get:
        set_record(op, false);
        get_record(op);
        break;

    default: run_script(op);
    }

    op.link->end(op);
}


/* WAIT looks at the writes of its own connection only. */
void
redis_commands::ask_durable(redis_link &link, command &c,
                            const durability_settings &wanted,
                            std::string_view key, bool asking) const
{
    bool disk = wanted.what == durability_settings::kind::disk;

    redis_output &set = link.begin(c, 5, asking);

    set.add("SET");
    set.add(key);
    set.add("1");
    set.add("PX");
    set.add("60000");

    redis_output &wait = link.begin_next(c, disk ? 4 : 3);

    wait.add(disk ? "WAITAOF" : "WAIT");

    if (disk) {
        wait.add("1");
    }

    wait.add(decimal(wanted.replicas));
    wait.add(decimal(wanted.timeout));
    link.end(c);
}


std::uint16_t
redis_commands::slot(const record_id &name) const
{
    return slot_of(key_name(prefix_, name));
}


void
redis_commands::set_record(operation &op, bool get) const
{
    redis_output &out = op.link->begin(op, get ? 7 : 6);

    out.add("SET");
    out.add(key_name(prefix_, op.whose.name));
    out.add(text_of(record_head(op)));
    out.add("NX");

    if (get) {
        out.add("GET");
    }

    out.add("PX");
    out.add(decimal(op.expiry));
}


/* The second of a pair. */
void
redis_commands::get_record(operation &op) const
{
    redis_output &out = op.link->begin_next(op, 2);

    out.add("GET");
    out.add(key_name(prefix_, op.whose.name));
}


void
redis_commands::run_script(operation &op) const
{
    std::string_view owner = text_of(op.whose.owner);

    switch (op.why) {

    case purpose::claim: {
        redis_output &out = begin_script(op, 3);
        add_record(out, op);
        add_expiry(out, op);
        out.add(op.take_over ? "1" : "0");
        break;
    }

    case purpose::complete:
    case purpose::mark_unknown:
    case purpose::renew: {
        redis_output &out = begin_script(op, 4);
        out.add(owner);
        add_record(out, op);
        add_expiry(out, op);
        out.add(what_gives_way(op));
        break;
    }

    case purpose::release:
    case purpose::give_back:
    case purpose::take_back: {
        redis_output &out = begin_script(op, 3);
        auto head = record_head(op);
        out.add(owner);
        out.add(op.returns_claim() ? "1" : "0");
        out.add(text_of(bytes(head).last(sizeof(std::uint64_t))));
        break;
    }
    }
}


redis_output &
redis_commands::begin_script(operation &op, unsigned arguments) const
{
    const script &s = script_for(op.why);

    redis_output &out = op.link->begin(op, 4 + arguments, op.is_asking);

    if (op.written == form::script_in_full) {
        out.add("EVAL");
        out.add(s.text);

    } else {
        out.add("EVALSHA");
        out.add(s.hash);
    }

    out.add("1");
    out.add(key_name(prefix_, op.whose.name));

    return out;
}


namespace {

const script &
script_for(purpose why)
{
    static const script claim(claim_script);
    static const script complete(complete_script);
    static const script mark_unknown(mark_unknown_script);
    static const script release(release_script);
    static const script renew(renew_script);

    switch (why) {
    case purpose::claim: return claim;
    case purpose::complete: return complete;
    case purpose::mark_unknown: return mark_unknown;
    case purpose::renew: return renew;
    default: return release;
    }
}


/* The head, then the response. */
void
add_record(redis_output &out, const operation &op)
{
    auto head = record_head(op);

    if (op.response.empty()) {
        out.add(text_of(head));
        return;
    }

    out.add_size(head.size() + size_of(op.response));
    out.add_part(head);

    for (bytes part : op.response) {
        if (!part.empty()) {
            out.add_part(part);
        }
    }

    out.add_part({});
}


void
add_expiry(redis_output &out, const operation &op)
{
    out.add(decimal(op.expiry == redis_never ? 0 : op.expiry - op.elapsed));
}


std::string_view
what_gives_way(const operation &op)
{
    if (op.replaces) {
        return "1";
    }

    /* One that was stored before may have expired, sooner than its lease. */
    bool first = op.why == purpose::complete && !op.puts_back
                 && op.late.state == lateness::on_time;

    return first && op.is_leased() ? "2" : "0";
}

}


std::array<std::uint8_t, redis_record_head>
record_head(const operation &op)
{
    bool pending = op.why == purpose::claim || op.why == purpose::renew;
    record_state state = op.why == purpose::complete ? op.state
                         : pending                   ? record_state::pending
                                                     : record_state::unknown;

    return encode_redis_head({state,
                              op.whose.attempt,
                              op.whose.owner,
                              op.whose.fingerprint,
                              op.expiry,
                              pending        ? op.whose.lease
                              : op.mark != 0 ? op.mark
                                             : op.link->server_time(),
                              {}});
}

}
