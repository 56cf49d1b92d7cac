#include "store/redis_record.h"
#include "store/redis_scripts.h"
#include "store/redis_store.h"

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


script scripts[] = {{claim_script, {}},
                    {complete_script, {}},
                    {mark_unknown_script, {}},
                    {release_script, {}},
                    {renew_script, {}}};


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


/* prefix + 64 hexadecimal digits */
class key_name {
public:
    key_name(const ngx_str_t &prefix, const digest &name)
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
    u_char text_[longest_prefix + 2 * sizeof(digest)];
    u_char *end_;
};

}


/* Redis names a script by its SHA-1. */
void
redis_store::name_scripts()
{
    for (script &s : scripts) {
        u_char hash[20];
        ngx_sha1_t sha;

        ngx_sha1_init(&sha);
        ngx_sha1_update(&sha, s.text.data(), s.text.size());
        ngx_sha1_final(hash, &sha);
        ngx_hex_dump(reinterpret_cast<u_char *>(s.sha), hash, sizeof(hash));
    }
}


void
redis_store::send_claim(operation &op)
{
    redis_link &link = *op.link;
    auto head = encode_redis_head({record_state::pending,
                                   1,
                                   op.whose.owner,
                                   op.fingerprint,
                                   op.expiry,
                                   op.whose.lease,
                                   {}});

    if (op.plain) {
        link.begin(op, 7);
        link.add("SET");
        link.add(key_name(settings_.prefix, op.whose.name));
        link.add(text_of(head));
        link.add("NX");
        link.add("GET");
        link.add("PX");
        link.add(decimal(op.expiry));
        return;
    }

    send_script(op, 3);
    link.add(text_of(head));
    link.add(decimal(op.expiry));
    link.add(op.take_over ? "1" : "0");
}


void
redis_store::send_script(operation &op, unsigned arguments)
{
    redis_link &link = *op.link;
    const script &s = scripts[static_cast<std::size_t>(op.what)];

    link.begin(op, 4 + arguments);
    link.add(op.whole ? "EVAL" : "EVALSHA");
    link.add(op.whole ? s.text : std::string_view(s.sha, sizeof(s.sha)));
    link.add("1");
    link.add(key_name(settings_.prefix, op.whose.name));
}


/* The script writes the head; here is room for it. */
void
redis_store::send_response(operation &op)
{
    static constexpr std::array<std::uint8_t, redis_record_head> room = {};
    redis_link &link = *op.link;

    link.add_size(room.size() + size_of(op.response));
    link.add_part(room);

    for (bytes part : op.response) {
        if (!part.empty()) {
            link.add_part(part);
        }
    }

    link.add_part({});
}


void
redis_store::send(operation &op)
{
    redis_link &link = *op.link;
    std::string_view owner = text_of(op.whose.owner);

    switch (op.what) {

    case script_id::claim: send_claim(op); break;

    case script_id::complete:
        send_script(op, 4);
        link.add(owner);
        link.add(decimal(static_cast<std::uint64_t>(op.state)));
        link.add(decimal(op.expiry));
        send_response(op);
        break;

    case script_id::mark_unknown:
        send_script(op, 2);
        link.add(owner);
        link.add(decimal(op.expiry));
        break;

    case script_id::release:
        send_script(op, 2);
        link.add(owner);
        link.add(op.give_back ? "1" : "0");
        break;

    case script_id::renew:
        send_script(op, 1);
        link.add(owner);
        break;
    }

    link.end(op);
}

}
