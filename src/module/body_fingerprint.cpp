#include "contract/form.h"
#include "module/context.h"
#include "module/headers.h"
#include "module/known_bodies.h"

namespace idempotency {

namespace {

enum class meaning : std::uint8_t { hashed, not_of_its_type, failed };

media_type media_of(ngx_http_request_t *r, std::span<char> boundary);
body_kind kind_of(const location_conf *conf, media type);
void start_hash(context &ctx, body_kind kind);
fingerprint_result finish_memory(context &ctx);
fingerprint_result finish_multipart(context &ctx);
fingerprint_result finish_hash(context &ctx);
meaning hash_meaning(context &ctx, std::string_view text);
meaning hash_form(context &ctx, std::string_view text);
meaning hash_json(context &ctx, std::string_view text);
void hash_bytes(context &ctx, std::string_view text);

json_parser *parser;

}


bool
prepare_fingerprint(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    body_state &body = ctx.body;
    std::array<char, max_boundary> room;
    media_type type = media_of(r, room);

    body.kind = kind_of(ctx.conf, type.kind);
    body.json = type.kind == media::json;
    body.may_have_key = ctx.key.len == 0 && may_have_json_key(r);

    /* What has to be understood first is hashed when it is. */
    if (body.kind == body_kind::raw || body.kind == body_kind::none) {
        start_hash(ctx, body.kind);
    }

    /* If mirror or Lua has read the body, our filter does not see it. */
    body.hashed_as_read = r->request_body == nullptr
                          && body.kind == body_kind::raw;

    if (body.kind != body_kind::multipart) {
        return true;
    }

    body.parts = make<multipart_hasher>(r->pool);

    if (body.parts == nullptr) {
        return false;
    }

    body.parts->start(type.boundary);
    return true;
}


void
count_as_bytes(context &ctx)
{
    body_state &body = ctx.body;

    body.too_large = true;

    if (body.kind == body_kind::json || body.kind == body_kind::form) {
        body.kind = body_kind::raw;
        start_hash(ctx, body_kind::raw);
    }
}


fingerprint_result
finish_fingerprint(context &ctx)
{
    switch (ctx.body.into) {

    case body_state::sink::memory: return finish_memory(ctx);
    case body_state::sink::multipart: return finish_multipart(ctx);
    default: return finish_hash(ctx);
    }
}


bool
is_json_request(ngx_http_request_t *r)
{
    std::array<char, max_boundary> unused;

    return media_of(r, unused).kind == media::json;
}


/* Servers differ in which one they take if there are several types. */
bool
may_have_json_key(ngx_http_request_t *r)
{
    bool named = false;

    each_field(r->headers_in.headers, [&](ngx_table_elt_t &h) {
        named |= same_name(view(h.key), "content-type")
                 && names_json(view(h.value));
    });

    return named;
}


bool
is_encoded(ngx_http_request_t *r)
{
    ngx_str_t name = ngx_string("content-encoding");
    ngx_str_t value;
    unsigned count = find_header(r, name, value);

    return count > 1 || (count == 1 && !same_name(view(value), "identity"));
}


json_parser *
worker_json_parser()
{
    if (parser == nullptr) {
        parser = ::new (std::nothrow) json_parser;
    }

    return parser;
}


void
free_json_parser()
{
    delete parser;
    parser = nullptr;
}


namespace {

media_type
media_of(ngx_http_request_t *r, std::span<char> boundary)
{
    if (r->headers_in.content_type == nullptr || is_encoded(r)) {
        return {};
    }

    return parse_media_type(view(r->headers_in.content_type->value), boundary);
}


body_kind
kind_of(const location_conf *conf, media type)
{
    if (conf->fingerprint == static_cast<ngx_uint_t>(fingerprint_mode::off)) {
        return body_kind::none;
    }

    if (conf->fingerprint == static_cast<ngx_uint_t>(fingerprint_mode::raw)) {
        return body_kind::raw;
    }

    switch (type) {

    case media::json: return body_kind::json;
    case media::form: return body_kind::form;
    case media::multipart: return body_kind::multipart;
    default: return body_kind::raw;
    }
}


void
start_hash(context &ctx, body_kind kind)
{
    start_fingerprint(ctx.body.hash,
                      {view(ctx.method), view(ctx.path), view(ctx.arguments)},
                      ctx.admitted, kind);
}


fingerprint_result
finish_memory(context &ctx)
{
    body_state &body = ctx.body;
    std::string_view text = body.text();

    if (body.json && !body.too_large && ctx.conf->jsonrpc
        && !look_for_call(ctx, text))
    {
        return fingerprint_result::failed;
    }

    if (body.kind == body_kind::json || body.kind == body_kind::form) {
        start_hash(ctx, body.kind);

        switch (hash_meaning(ctx, text)) {

        case meaning::hashed: break;

        case meaning::not_of_its_type: hash_bytes(ctx, text); break;

        case meaning::failed: return fingerprint_result::failed;
        }

    } else if (body.kind == body_kind::raw && !body.hashed_as_read) {
        body.hash.bytes(text.data(), text.size());
    }

    return finish_hash(ctx);
}


fingerprint_result
finish_multipart(context &ctx)
{
    start_hash(ctx, body_kind::multipart);

    switch (ctx.body.parts->finish(ctx.body.hash)) {

    case multipart_result::ok: return finish_hash(ctx);

    case multipart_result::not_multipart:
        start_hash(ctx, body_kind::raw);
        return fingerprint_result::walk_again;

    default: return fingerprint_result::failed;
    }
}


fingerprint_result
finish_hash(context &ctx)
{
    if (!ctx.body.hash.finish(ctx.body.fingerprint)) {
        ngx_log_error(NGX_LOG_ERR, ctx.request->connection->log, 0,
                      "idempotency: could not compute the fingerprint of the "
                      "request; it is refused with 500");
        return fingerprint_result::failed;
    }

    remember_body(ctx);

    return fingerprint_result::done;
}


meaning
hash_meaning(context &ctx, std::string_view text)
{
    return ctx.body.kind == body_kind::form ? hash_form(ctx, text)
                                            : hash_json(ctx, text);
}


meaning
hash_form(context &ctx, std::string_view text)
{
    switch (canonical_form(text, ctx.body.hash)) {

    case form_result::ok: return meaning::hashed;
    case form_result::not_form: return meaning::not_of_its_type;
    default: return meaning::failed;
    }
}


meaning
hash_json(context &ctx, std::string_view text)
{
    const location_conf *conf = ctx.conf;
    json_parser *json = worker_json_parser();
    json_rules rules = {elements<const json_pointer>(conf->include),
                        elements<const json_pointer>(conf->exclude),
                        conf->jsonrpc != 0, ctx.jsonrpc.mcp};

    if (json == nullptr) {
        return meaning::failed;
    }

    switch (canonical_json(*json, text, rules, ctx.body.hash)) {

    case json_result::ok: return meaning::hashed;
    case json_result::not_json: return meaning::not_of_its_type;
    default: return meaning::failed;
    }
}


/*
 * A body without a canonical form.  If it is a call of JSON-RPC it is the same
 * call whatever its id.
 */
void
hash_bytes(context &ctx, std::string_view text)
{
    const auto &not_compared = ctx.jsonrpc.not_compared;
    hasher &hash = ctx.body.hash;

    if (not_compared.back().size == 0) {
        start_hash(ctx, body_kind::raw);
        hash.bytes(text.data(), text.size());
        return;
    }

    std::size_t done = 0;

    start_hash(ctx, body_kind::call);

    for (const json_extent &part : not_compared) {
        hash.field(text.substr(done, part.at - done));
        done = part.at + part.size;
    }

    hash.field(text.substr(done));
}

}

}
