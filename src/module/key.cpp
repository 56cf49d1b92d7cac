#include "module/key.h"

#include "contract/ascii.h"
#include "contract/key.h"
#include "module/context.h"
#include "module/headers.h"

#include <algorithm>

namespace idempotency {

namespace {

key_found first_present(ngx_http_request_t *r, const location_conf *conf,
                        context *ctx, key_search &out);
key_found key_from(ngx_http_request_t *r, key_source &source, context *ctx,
                   key_search &out);
key_found key_from_header(ngx_http_request_t *r, const key_source &source,
                          key_search &out);
key_found key_from_value(ngx_http_request_t *r, key_source &source,
                         key_search &out);
key_found key_from_body(context &ctx, const key_source &source,
                        key_search &out);
const json_target &target_of(const body_state &body, const key_source &source);
key_found text_of(const json_target &target, key_search &out);
key_found bad(key_search &out, key_fault fault);
std::string_view host_of(ngx_http_request_t *r);
bool read_scope(context &ctx, std::span<std::string_view> values);
bool route_of(context &ctx, route &where);
ngx_str_t port_of(ngx_http_request_t *r);

}


key_found
find_key(ngx_http_request_t *r, const location_conf *conf, context *ctx,
         key_search &out)
{
    key_found found = first_present(r, conf, ctx, out);

    if (found != key_found::yes) {
        return found;
    }

    auto lower = make_array<char>(r->pool,
                                  conf->key_uuid ? out.key.size() : 0);

    if (lower.data() == nullptr) {
        return key_found::failed;
    }

    key_rules rules = {conf->key_min, conf->key_max, conf->key_uuid != 0};

    out.fault = check_key(out.key, rules, lower);

    return out.fault == key_fault::none ? key_found::yes : key_found::bad;
}


bool
prepare_key_search(context &ctx)
{
    ngx_pool_t *pool = ctx.request->pool;
    body_state &body = ctx.body;

    if (!body.may_have_key || is_encoded(ctx.request)) {
        return true;
    }

    auto sources = elements<key_source>(ctx.conf->keys);
    std::size_t longest = ctx.conf->key_max;
    std::size_t count = 0;

    for (const key_source &source : sources) {
        for (std::string_view segment : source.pointer.segments) {
            longest = ngx_max(longest, segment.size());
        }

        count += !source.pointer.segments.empty();
    }

    auto room = make_array<char>(pool, json_finder::room_for(longest));
    auto out = make_array<char>(pool, ctx.conf->key_max * count);

    body.targets = make_array<json_target>(pool, count);

    if (room.data() == nullptr || out.data() == nullptr
        || body.targets.data() == nullptr)
    {
        return false;
    }

    std::size_t n = 0;

    for (const key_source &source : sources) {
        if (!source.pointer.segments.empty()) {
            body.targets[n] = {};
            body.targets[n].pointer = source.pointer;
            body.targets[n].out = out.subspan(n * ctx.conf->key_max,
                                              ctx.conf->key_max);
            n++;
        }
    }

    body.finder = make<json_finder>(pool, body.targets, room);

    return body.finder != nullptr;
}


bool
has_key(ngx_http_request_t *r, const location_conf *conf)
{
    auto sources = elements<key_source>(conf->keys);
    key_search unused;

    return std::any_of(
        sources.begin(), sources.end(), [&](key_source &source) {
            key_found found = key_from(r, source, nullptr, unused);

            return found != key_found::no && found != key_found::in_body;
        });
}


naming
name_record(context &ctx)
{
    std::array<std::string_view, scope_limit> room;
    auto scope = std::span(room).first(ctx.conf->scope->nelts);
    route where;

    if (!read_scope(ctx, scope)) {
        return naming::failed;
    }

    /* One value that is missing is a caller who is not known. */
    for (std::string_view value : scope) {
        if (value.empty()) {
            return naming::scope_empty;
        }
    }

    if (!route_of(ctx, where)
        || !record_name(ctx.body.hash, scope, where, view(ctx.key),
                        ctx.claim.own.name,
                        ctx.conf->dry_run ? run_kind::dry : run_kind::real))
    {
        return naming::failed;
    }

    ctx.named = true;
    return naming::done;
}


/* The path is everything before the arguments, as it came. */
void
split_target(context &ctx)
{
    std::string_view target = view(ctx.request->unparsed_uri);
    std::size_t question = target.find('?');

    ctx.path = str(target.substr(0, question));
    ctx.arguments = question == std::string_view::npos
                        ? ngx_str_t ngx_null_string
                        : str(target.substr(question + 1));
}


namespace {

key_found
bad(key_search &out, key_fault fault)
{
    out.fault = fault;

    return key_found::bad;
}


/* The first source that is present decides. */
key_found
first_present(ngx_http_request_t *r, const location_conf *conf, context *ctx,
              key_search &out)
{
    for (key_source &source : elements<key_source>(conf->keys)) {
        key_found found = key_from(r, source, ctx, out);

        if (found != key_found::no) {
            return found;
        }
    }

    return key_found::no;
}


/* Without a context the body is not there yet. */
key_found
key_from(ngx_http_request_t *r, key_source &source, context *ctx,
         key_search &out)
{
    if (source.header.len != 0) {
        return key_from_header(r, source, out);
    }

    if (source.pointer.segments.empty()) {
        return key_from_value(r, source, out);
    }

    return ctx != nullptr ? key_from_body(*ctx, source, out)
                          : key_found::in_body;
}


key_found
key_from_header(ngx_http_request_t *r, const key_source &source,
                key_search &out)
{
    ngx_str_t value;
    unsigned found = find_header(r, source.header, value);

    if (found == 0) {
        return key_found::no;
    }

    if (found > 1) {
        return bad(out, key_fault::repeated);
    }

    auto unescaped = make_array<char>(r->pool, value.len);

    if (unescaped.data() == nullptr) {
        return key_found::failed;
    }

    auto parsed = parse_key_field(view(value), unescaped);

    if (!parsed) {
        return bad(out, trim_blanks(view(value)).empty()
                            ? key_fault::empty
                            : key_fault::malformed);
    }

    out.key = *parsed;
    return key_found::yes;
}


key_found
key_from_value(ngx_http_request_t *r, key_source &source, key_search &out)
{
    ngx_str_t value;

    if (ngx_http_complex_value(r, &source.value, &value) != NGX_OK) {
        return key_found::failed;
    }

    out.key = view(value);
    return value.len == 0 ? key_found::no : key_found::yes;
}


/*
 * A body of another type has no key, nor has an empty one.  Of a JSON type, it
 * has one, or it is certain that it has none, or the request is refused.
 */
key_found
key_from_body(context &ctx, const key_source &source, key_search &out)
{
    body_state &body = ctx.body;

    if (!body.may_have_key || size_of_body(ctx) == 0) {
        return key_found::no;
    }

    if (body.finder == nullptr) {
        return bad(out, key_fault::encoded);
    }

    const json_target &target = target_of(body, source);

    switch (target.found) {

    case json_target::result::found: return text_of(target, out);

    case json_target::result::repeated:
        return bad(out, key_fault::name_repeated);

    default: break;
    }

    switch (body.finder->finish()) {

    case json_text::no_memory: return key_found::failed;
    case json_text::broken: return bad(out, key_fault::unreadable);
    default: return key_found::no;
    }
}


const json_target &
target_of(const body_state &body, const key_source &source)
{
    return *std::find_if(body.targets.begin(), body.targets.end(),
                         [&](const json_target &target) {
                             return target.pointer.segments.data()
                                    == source.pointer.segments.data();
                         });
}


key_found
text_of(const json_target &target, key_search &out)
{
    if (target.first != '"' || !target.readable) {
        return bad(out, key_fault::not_string);
    }

    out.key = target.text;
    return key_found::yes;
}


bool
read_scope(context &ctx, std::span<std::string_view> values)
{
    auto sources = elements<ngx_http_complex_value_t>(ctx.conf->scope);

    for (std::size_t i = 0; i < sources.size(); i++) {
        ngx_str_t value;

        if (ngx_http_complex_value(ctx.request, &sources[i], &value) != NGX_OK)
        {
            return false;
        }

        values[i] = view(value);
    }

    return true;
}


bool
route_of(context &ctx, route &where)
{
    ngx_uint_t parts = ctx.conf->scope_route;

    if ((parts & route_host) != 0) {
        where.host = host_of(ctx.request);
    }

    if ((parts & route_port) != 0) {
        ngx_str_t port = port_of(ctx.request);

        if (port.data == nullptr) {
            return false;
        }

        where.port = view(port);
    }

    if ((parts & route_method) != 0) {
        where.method = view(ctx.method);
    }

    if ((parts & route_path) != 0) {
        where.path = view(ctx.path);
    }

    return true;
}


/* As $host has it. */
std::string_view
host_of(ngx_http_request_t *r)
{
    if (r->headers_in.server.len != 0) {
        return view(r->headers_in.server);
    }

    auto *server = static_cast<ngx_http_core_srv_conf_t *>(
        ngx_http_get_module_srv_conf(r, ngx_http_core_module));

    return view(server->server_name);
}


/*
 * Of the socket that nginx listens on: the client cannot choose it by a
 * header.  A Unix socket has its path instead.  No data: no memory.
 */
ngx_str_t
port_of(ngx_http_request_t *r)
{
    ngx_listening_t *listening = r->connection->listening;

    if (listening->sockaddr->sa_family == AF_UNIX) {
        return listening->addr_text;
    }

    return format(
        r->pool, NGX_INT_T_LEN, "%ui",
        static_cast<ngx_uint_t>(ngx_inet_get_port(listening->sockaddr)));
}

}

}
