#include "module/key.h"

#include "contract/key.h"
#include "module/context.h"
#include "module/headers.h"

#include <algorithm>

namespace idempotency {

namespace {

key_found first_present(ngx_http_request_t *r, const location_conf *conf,
                        context *ctx, std::string_view &key);
key_found key_from(ngx_http_request_t *r, key_source &source, context *ctx,
                   std::string_view &key);
key_found key_from_header(ngx_http_request_t *r, const key_source &source,
                          std::string_view &key);
key_found key_from_value(ngx_http_request_t *r, key_source &source,
                         std::string_view &key);
key_found key_from_body(context &ctx, const key_source &source,
                        std::string_view &key);
std::string_view host_of(ngx_http_request_t *r);
std::string_view page_of(ngx_http_request_t *r);

}


key_found
find_key(ngx_http_request_t *r, const location_conf *conf, context *ctx,
         std::string_view &key)
{
    key_found found = first_present(r, conf, ctx, key);

    if (found != key_found::yes) {
        return found;
    }

    auto out = make_array<char>(r->pool, conf->key_uuid ? key.size() : 0);

    if (out.data() == nullptr) {
        return key_found::failed;
    }

    key_rules rules = {conf->key_min, conf->key_max, conf->key_uuid != 0};

    return check_key(key, rules, out) ? key_found::yes : key_found::bad;
}


bool
has_key(ngx_http_request_t *r, const location_conf *conf)
{
    auto sources = elements<key_source>(conf->keys);
    std::string_view key;

    return std::any_of(
        sources.begin(), sources.end(), [&](key_source &source) {
            key_found found = key_from(r, source, nullptr, key);

            return found != key_found::no && found != key_found::in_body;
        });
}


naming
name_record(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    const location_conf *conf = ctx.conf;
    std::array<std::string_view, scope_limit> values;
    std::size_t count = 0;
    bool empty = true;

    for (auto &source : elements<ngx_http_complex_value_t>(conf->scope)) {
        ngx_str_t value;

        if (ngx_http_complex_value(r, &source, &value) != NGX_OK) {
            return naming::failed;
        }

        values[count++] = view(value);
        empty = empty && value.len == 0;
    }

    if (count != 0 && empty) {
        return naming::scope_empty;
    }

    route where = {host_of(r), view(ctx.method), view(ctx.path)};

    if (!record_name(ctx.body.hash, {values.data(), count},
                     conf->scope_route ? &where : nullptr, page_of(r),
                     view(ctx.key), ctx.claim.own.name))
    {
        return naming::failed;
    }

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

/* The first source that is present decides. */
key_found
first_present(ngx_http_request_t *r, const location_conf *conf, context *ctx,
              std::string_view &key)
{
    for (key_source &source : elements<key_source>(conf->keys)) {
        key_found found = key_from(r, source, ctx, key);

        if (found != key_found::no) {
            return found;
        }
    }

    return key_found::no;
}


/* Without a context the body is not there yet. */
key_found
key_from(ngx_http_request_t *r, key_source &source, context *ctx,
         std::string_view &key)
{
    if (source.header.len != 0) {
        return key_from_header(r, source, key);
    }

    if (source.pointer.segments.empty()) {
        return key_from_value(r, source, key);
    }

    return ctx != nullptr ? key_from_body(*ctx, source, key)
                          : key_found::in_body;
}


key_found
key_from_header(ngx_http_request_t *r, const key_source &source,
                std::string_view &key)
{
    ngx_str_t value;
    unsigned found = find_header(r, source.header, value);

    if (found == 0) {
        return key_found::no;
    }

    if (found > 1) {
        return key_found::bad;
    }

    auto out = make_array<char>(r->pool, value.len);

    if (out.data() == nullptr) {
        return key_found::failed;
    }

    auto parsed = parse_key_field(view(value), out);

    if (!parsed) {
        return key_found::bad;
    }

    key = *parsed;
    return key_found::yes;
}


key_found
key_from_value(ngx_http_request_t *r, key_source &source,
               std::string_view &key)
{
    ngx_str_t value;

    if (ngx_http_complex_value(r, &source.value, &value) != NGX_OK) {
        return key_found::failed;
    }

    key = view(value);
    return value.len == 0 ? key_found::no : key_found::yes;
}


/* A body that is not JSON, whatever its type says, has no key. */
key_found
key_from_body(context &ctx, const key_source &source, std::string_view &key)
{
    if (!ctx.body.json) {
        return key_found::no;
    }

    json_parser *parser = worker_json_parser();
    auto out = make_array<char>(ctx.request->pool, ctx.conf->key_max);

    if (parser == nullptr || out.data() == nullptr) {
        return key_found::failed;
    }

    switch (
        find_json_string(*parser, ctx.body.text(), source.pointer, out, key)) {

    case json_string::found: return key_found::yes;
    case json_string::not_string: return key_found::bad;
    case json_string::no_memory: return key_found::failed;
    default: return key_found::no;
    }
}


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
 * An error page must not be a back door: a client that was refused and is
 * answered by an application of its own there has keys of its own there too.
 * nginx leaves no trace of an error page that hides the status and may lead to
 * further ones; where such are in use, all that is redirected is kept apart.
 */
std::string_view
page_of(ngx_http_request_t *r)
{
    auto *main = static_cast<main_conf *>(
        ngx_http_get_module_main_conf(r, ngx_http_idempotency_module));

    if (r->error_page || r->err_status != 0
        || (r->internal && main->traceless_pages))
    {
        return view(core_location(r)->name);
    }

    return {};
}

}

}
