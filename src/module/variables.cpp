#include "module/variables.h"

#include "contract/record.h"
#include "module/context.h"
#include "module/counting.h"

namespace idempotency {

namespace {

constexpr std::string_view status_names[] = {
    "-",      "BYPASS",  "UNSCOPED", "NEW",     "REPLAY",      "IN_PROGRESS",
    "REUSED", "UNKNOWN", "NOT_KEPT", "INVALID", "STORE_ERROR",
};


static_assert(std::size(status_names)
              == static_cast<std::size_t>(status::store_error) + 1);


ngx_int_t
not_found(ngx_http_variable_value_t *v)
{
    v->not_found = 1;
    return NGX_OK;
}


ngx_int_t
found(ngx_http_variable_value_t *v, std::string_view value)
{
    v->data = str(value).data;
    v->len = static_cast<unsigned>(value.size());
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


ngx_int_t
found_hex(ngx_http_request_t *r, ngx_http_variable_value_t *v,
          std::span<const std::uint8_t> bytes)
{
    auto *text = static_cast<u_char *>(ngx_pnalloc(r->pool, bytes.size() * 2));

    if (text == nullptr) {
        return NGX_ERROR;
    }

    ngx_hex_dump(text, const_cast<u_char *>(bytes.data()), bytes.size());

    return found(v, {reinterpret_cast<char *>(text), bytes.size() * 2});
}


template <class... Args>
ngx_int_t
found_text(ngx_http_request_t *r, ngx_http_variable_value_t *v,
           const char *text, Args... args)
{
    ngx_str_t value = format(r->pool, NGX_INT64_LEN + 8, text, args...);

    return value.data != nullptr ? found(v, view(value)) : NGX_ERROR;
}


ngx_int_t
get_status(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);
    status s = ctx != nullptr ? ctx->status : status::none;

    return found(v, name_of(s));
}


ngx_int_t
get_error(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->error == error_code::none) {
        return not_found(v);
    }

    return found(v, name_of(ctx->error));
}


ngx_int_t
get_error_detail(ngx_http_request_t *r, ngx_http_variable_value_t *v,
                 uintptr_t)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->error == error_code::none) {
        return not_found(v);
    }

    ngx_str_t detail = detail_of(*ctx);

    return detail.data != nullptr ? found(v, view(detail)) : NGX_ERROR;
}


ngx_int_t
get_outcome(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);
    std::string_view outcome;

    if (ctx != nullptr) {
        outcome = outcome_of(*ctx);
    }

    return outcome.empty() ? not_found(v) : found(v, outcome);
}


/* What is left of a response that is not replayed. */
bool
open_original(ngx_http_request_t *r, response_reader &original)
{
    context *ctx = find_context(r->main);

    return ctx != nullptr && ctx->error == error_code::response_not_kept
           && original.open(ctx->claim.answer.response);
}


ngx_int_t
get_original_status(ngx_http_request_t *r, ngx_http_variable_value_t *v,
                    uintptr_t)
{
    response_reader original;

    if (!open_original(r, original)) {
        return not_found(v);
    }

    return found_text(r, v, "%ud", unsigned{original.head().status});
}


ngx_int_t
get_original_location(ngx_http_request_t *r, ngx_http_variable_value_t *v,
                      uintptr_t)
{
    response_reader original;
    field location;

    if (!open_original(r, original) || !original.next_header(location)) {
        return not_found(v);
    }

    return found(v, location.value);
}


ngx_int_t
get_key(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->key.len == 0) {
        return not_found(v);
    }

    return found(v, view(ctx->key));
}


ngx_int_t
get_id(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || !ctx->named) {
        return not_found(v);
    }

    return found_hex(r, v, ctx->claim.own.name);
}


/* The body has been read and hashed. */
bool
has_fingerprint(const context *ctx)
{
    return ctx != nullptr && ctx->body.has_fingerprint;
}


ngx_int_t
get_fingerprint(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (!has_fingerprint(ctx)) {
        return not_found(v);
    }

    return found_hex(r, v, ctx->body.fingerprint);
}


ngx_int_t
get_age(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->status != status::replay) {
        return not_found(v);
    }

    return found_text(
        r, v, "%uL", static_cast<std::uint64_t>(ctx->claim.answer.age / 1000));
}


ngx_int_t
get_expires(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (ctx == nullptr || ctx->expires == 0) {
        return not_found(v);
    }

    if (ctx->expires == -1) {
        return found(v, "never");
    }

    return found_text(r, v, "%T", ctx->expires);
}


bool
is_run(const context *ctx)
{
    return ctx != nullptr && ctx->status == status::fresh;
}


ngx_int_t
get_token(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (!is_run(ctx)) {
        return not_found(v);
    }

    return found_hex(r, v, ctx->claim.own.owner);
}


ngx_int_t
get_attempt(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (!is_run(ctx)) {
        return not_found(v);
    }

    return found_text(r, v, "%uD", ctx->run.attempt);
}


ngx_int_t
get_store_time(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t)
{
    context *ctx = find_context(r->main);

    if (!has_fingerprint(ctx)) {
        return not_found(v);
    }

    return found_text(r, v, "%T.%03M",
                      static_cast<time_t>(ctx->claim.store_time / 1000),
                      ctx->claim.store_time % 1000);
}


struct variable {
    ngx_str_t name;
    ngx_http_get_variable_pt get;
};


/* All change in the course of a request: none may be cached. */
variable variables[] = {
    {ngx_string("idempotency_status"), get_status},
    {ngx_string("idempotency_error"), get_error},
    {ngx_string("idempotency_error_detail"), get_error_detail},
    {ngx_string("idempotency_outcome"), get_outcome},
    {ngx_string("idempotency_original_status"), get_original_status},
    {ngx_string("idempotency_original_location"), get_original_location},
    {ngx_string("idempotency_key"), get_key},
    {ngx_string("idempotency_id"), get_id},
    {ngx_string("idempotency_fingerprint"), get_fingerprint},
    {ngx_string("idempotency_age"), get_age},
    {ngx_string("idempotency_expires"), get_expires},
    {ngx_string("idempotency_token"), get_token},
    {ngx_string("idempotency_attempt"), get_attempt},
    {ngx_string("idempotency_store_time"), get_store_time},
};

}


std::string_view
name_of(status s)
{
    auto i = static_cast<std::size_t>(s);

    return i < std::size(status_names) ? status_names[i] : std::string_view();
}


ngx_int_t
add_variables(ngx_conf_t *cf)
{
    for (variable &known : variables) {
        ngx_http_variable_t *var = ngx_http_add_variable(
            cf, &known.name, NGX_HTTP_VAR_NOCACHEABLE);

        if (var == nullptr) {
            return NGX_ERROR;
        }

        var->get_handler = known.get;
    }

    return NGX_OK;
}

}
