#include "store/redis_commands.h"

#include "store/redis_record.h"
#include "store/redis_scripts.h"

extern "C" {
#include <ngx_sha1.h>
}

#include <charconv>

namespace idempotency {

namespace {

struct script {
    std::string_view text;
    char sha[40];
};

script claim_by_script = {claim_script, {}};
script complete_by_script = {complete_script, {}};
script mark_unknown_by_script = {mark_unknown_script, {}};
script release_by_script = {release_script, {}};
script renew_by_script = {renew_script, {}};

script *const scripts[] = {&claim_by_script, &complete_by_script,
                           &mark_unknown_by_script, &release_by_script,
                           &renew_by_script};


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
std::array<std::uint8_t, redis_record_head> claimed_record(const operation &);
void add_response(redis_output &out, pieces response);

}


/* Redis identifies a script by its SHA-1. */
void
redis_commands::hash_scripts()
{
    for (script *s : scripts) {
        u_char hash[20];
        ngx_sha1_t sha;

        ngx_sha1_init(&sha);
        ngx_sha1_update(&sha, s->text.data(), s->text.size());
        ngx_sha1_final(hash, &sha);
        ngx_hex_dump(reinterpret_cast<u_char *>(s->sha), hash, sizeof(hash));
    }
}


void
redis_commands::send(operation &op) const
{
    if (op.written == form::plain_set) {
        set_record(op);

    } else {
        run_script(op);
    }

    op.link->end(op);
}


void
redis_commands::set_record(operation &op) const
{
    redis_output &out = op.link->begin(op, 7);

    out.add("SET");
    out.add(key_name(prefix_, op.whose.name));
    out.add(text_of(claimed_record(op)));
    out.add("NX");
    out.add("GET");
    out.add("PX");
    out.add(decimal(op.expiry));
}


void
redis_commands::run_script(operation &op) const
{
    std::string_view owner = text_of(op.whose.owner);

    switch (op.why) {

    case purpose::claim: {
        redis_output &out = begin_script(op, 3);
        out.add(text_of(claimed_record(op)));
        out.add(decimal(op.expiry));
        out.add(op.take_over ? "1" : "0");
        break;
    }

    case purpose::complete: {
        redis_output &out = begin_script(op, 4);
        out.add(owner);
        out.add(decimal(static_cast<std::uint64_t>(op.state)));
        out.add(decimal(op.expiry));
        add_response(out, op.response);
        break;
    }

    case purpose::mark_unknown: {
        redis_output &out = begin_script(op, 2);
        out.add(owner);
        out.add(decimal(op.expiry));
        break;
    }

    case purpose::renew: begin_script(op, 1).add(owner); break;

    case purpose::release:
    case purpose::give_back:
    case purpose::take_back: {
        redis_output &out = begin_script(op, 2);
        out.add(owner);
        out.add(op.returns_claim() ? "1" : "0");
        break;
    }
    }
}


redis_output &
redis_commands::begin_script(operation &op, unsigned arguments) const
{
    const script &s = script_for(op.why);
    redis_output &out = op.link->begin(op, 4 + arguments);

    if (op.written == form::script_in_full) {
        out.add("EVAL");
        out.add(s.text);

    } else {
        out.add("EVALSHA");
        out.add({s.sha, sizeof(s.sha)});
    }

    out.add("1");
    out.add(key_name(prefix_, op.whose.name));

    return out;
}


namespace {

const script &
script_for(purpose why)
{
    switch (why) {
    case purpose::claim: return claim_by_script;
    case purpose::complete: return complete_by_script;
    case purpose::mark_unknown: return mark_unknown_by_script;
    case purpose::renew: return renew_by_script;
    default: return release_by_script;
    }
}


std::array<std::uint8_t, redis_record_head>
claimed_record(const operation &op)
{
    return encode_redis_head({record_state::pending,
                              1,
                              op.whose.owner,
                              op.fingerprint,
                              op.expiry,
                              op.whose.lease,
                              {}});
}


/* The script fills in the head, for which the argument has room. */
void
add_response(redis_output &out, pieces response)
{
    static constexpr std::array<std::uint8_t, redis_record_head> room = {};

    out.add_size(room.size() + size_of(response));
    out.add_part(room);

    for (bytes part : response) {
        if (!part.empty()) {
            out.add_part(part);
        }
    }

    out.add_part({});
}

}

}
