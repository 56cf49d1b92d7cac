#include "contract/key.h"
#include "module/context.h"

#include <openssl/rand.h>

#include <algorithm>

namespace idempotency {

namespace {

bool
is_protected(const location_conf *conf, const ngx_str_t &method)
{
    auto methods = elements<ngx_str_t>(conf->methods);

    return std::any_of(
        methods.begin(), methods.end(),
        [&](const ngx_str_t &m) { return view(m) == view(method); });
}


enum class key_found : std::uint8_t { no, yes, bad, failed, in_body };


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


/* The first source that is present decides. */
key_found
find_key(ngx_http_request_t *r, const location_conf *conf, context *ctx,
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


key_found
find_valid_key(ngx_http_request_t *r, const location_conf *conf, context *ctx,
               std::string_view &key)
{
    key_found found = find_key(r, conf, ctx, key);

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


enum class scope_found : std::uint8_t { yes, empty, failed };


scope_found
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
            return scope_found::failed;
        }

        values[count++] = view(value);
        empty = empty && value.len == 0;
    }

    if (count != 0 && empty) {
        return scope_found::empty;
    }

    route where = {host_of(r), view(ctx.method), view(ctx.path)};

    if (!record_name(ctx.hash, {values.data(), count},
                     conf->scope_route ? &where : nullptr, page_of(r),
                     view(ctx.key), ctx.own.name))
    {
        return scope_found::failed;
    }

    return scope_found::yes;
}


ngx_int_t
pass(context &ctx, status as)
{
    ctx.status = as;
    ctx.at = stage::passed;

    return NGX_DECLINED;
}


/* In a dry run a refusal is only told. */
ngx_int_t
refuse(context &ctx, status as, error_code code)
{
    if (ctx.conf->dry_run) {
        ngx_str_t name = str(name_of(code));

        ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                      "idempotency: dry run, would be refused: %V", &name);

        ctx.error = code;
        return pass(ctx, as);
    }

    ctx.status = as;
    return send_problem(ctx, code);
}


/* Once a minute: a scope that is often empty would fill the log. */
void
warn_of_empty_scope(ngx_log_t *log)
{
    static time_t next;

    if (ngx_time() < next) {
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, log, 0,
                       "idempotency: passed, the scope is empty");
        return;
    }

    next = ngx_time() + 60;

    ngx_log_error(NGX_LOG_WARN, log, 0,
                  "idempotency: a request with a key was passed unprotected: "
                  "all values of \"idempotency_scope\" are empty");
}


ngx_int_t
handle_empty_scope(context &ctx)
{
    if (ctx.conf->required) {
        return refuse(ctx, status::invalid, error_code::scope_missing);
    }

    warn_of_empty_scope(ctx.request->connection->log);

    return pass(ctx, status::bypass);
}


/* NGX_OK: the record has its name. */
ngx_int_t
use_key(context &ctx)
{
    /* Without a scope nginx would not have started. */
    if (ctx.conf->scope == nullptr) {
        return fail(ctx);
    }

    switch (name_record(ctx)) {

    case scope_found::yes: return NGX_OK;
    case scope_found::empty: return handle_empty_scope(ctx);
    default: return fail(ctx);
    }
}


/* Makes the context of a request that has something to do with a key. */
context *
enter(ngx_http_request_t *r, const location_conf *conf)
{
    context *ctx = make_context(r, conf);

    if (ctx == nullptr) {
        return nullptr;
    }

    ctx->method = r->method_name;
    ctx->uri = r->uri;
    ctx->grpc = r->headers_in.content_type != nullptr
                && is_grpc_type(view(r->headers_in.content_type->value));
    split_target(*ctx);

    return ctx;
}


ngx_int_t
refuse_new(ngx_http_request_t *r, const location_conf *conf, error_code code)
{
    context *ctx = enter(r, conf);

    if (ctx == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return refuse(*ctx, status::invalid, code);
}


/* The bodies of other methods are not looked into. */
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


ngx_int_t
look_at_other_method(ngx_http_request_t *r, const location_conf *conf)
{
    if (!conf->strict_methods || !has_key(r, conf)) {
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "idempotency: passed, method %V", &r->method_name);
        return NGX_DECLINED;
    }

    return refuse_new(r, conf, error_code::key_not_supported);
}


ngx_int_t
pass_by_bypass(ngx_http_request_t *r, const location_conf *conf)
{
    context *ctx = enter(r, conf);

    if (ctx == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return pass(*ctx, status::bypass);
}


ngx_int_t
first_look(ngx_http_request_t *r, const location_conf *conf)
{
    std::string_view key;

    if (!is_protected(conf, r->method_name)) {
        return look_at_other_method(r, conf);
    }

    ngx_int_t rc = ngx_http_test_predicates(r, conf->bypass);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_DECLINED) {
        return pass_by_bypass(r, conf);
    }

    switch (find_valid_key(r, conf, nullptr, key)) {

    case key_found::no:
        return conf->required ? refuse_new(r, conf, error_code::key_missing)
                              : NGX_DECLINED;

    case key_found::bad: return refuse_new(r, conf, error_code::key_invalid);

    case key_found::failed: return NGX_HTTP_INTERNAL_SERVER_ERROR;

    default: break;
    }

    context *ctx = enter(r, conf);

    if (ctx == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (key.empty()) {
        return read_body(*ctx);
    }

    ctx->key = str(key);

    ngx_int_t named = use_key(*ctx);

    return named == NGX_OK ? read_body(*ctx) : named;
}


/* The key was to be in the body, and the body is there now. */
ngx_int_t
look_into_body(context &ctx)
{
    std::string_view key;

    key_found found = find_valid_key(ctx.request, ctx.conf, &ctx, key);

    ctx.body.drop();

    switch (found) {

    case key_found::yes: break;

    case key_found::no:
        return ctx.conf->required
                   ? refuse(ctx, status::invalid, error_code::key_missing)
                   : pass(ctx, status::none);

    case key_found::bad:
        return refuse(ctx, status::invalid, error_code::key_invalid);

    default: return fail(ctx);
    }

    ctx.key = str(key);

    return use_key(ctx);
}


void
claim_answered(claim_waiter &waiter, const claim_answer &answer)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    ctx->answer = answer;
    ctx->at = stage::answered;
    ctx->store_time += ngx_current_msec - ctx->asked;

    if (!ctx->claim_called) {
        resume(*ctx);
    }
}


std::uint8_t *
room_for_response(claim_waiter &waiter, std::size_t size)
{
    auto *ctx = static_cast<context *>(waiter.owner);

    return static_cast<std::uint8_t *>(ngx_pnalloc(ctx->request->pool, size));
}


/* Whether an unknown outcome may be run again. */
bool
takes_over(const location_conf *conf)
{
    return conf->release_unknown != 0 && !conf->dry_run;
}


/* The answer may be there on return: see the stage. */
ngx_int_t
claim_key(context &ctx)
{
    const location_conf *conf = ctx.conf;

    if (!make_token(ctx.own.owner)) {
        ngx_log_error(NGX_LOG_ERR, ctx.request->connection->log, 0,
                      "idempotency: no random bytes for a token");
        return NGX_ERROR;
    }

    claim what = {ctx.own.name,
                  ctx.fingerprint,
                  ctx.own.owner,
                  conf->lease,
                  ttl_without_response(rules_of(conf).ttl),
                  takes_over(conf),
                  ctx.wait.started};

    ctx.own.lease = conf->lease;
    ctx.claimer = {&ctx, claim_answered, room_for_response};
    ctx.at = stage::claiming;
    ctx.asked = ngx_current_msec;

    ctx.claim_called = true;
    conf->store->backend->claim_record(what, ctx.claimer);
    ctx.claim_called = false;

    return NGX_OK;
}


ngx_int_t
store_failed(context &ctx)
{
    if (!ctx.conf->pass_store_failure) {
        return refuse(ctx, status::store_error, error_code::store_unavailable);
    }

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                   "idempotency: passed, the store did not take the claim");

    return pass(ctx, status::store_error);
}


ngx_int_t
meet_record(context &ctx)
{
    const claim_answer &found = ctx.answer;

    if (found.remaining != 0) {
        set_expires(ctx, found.remaining);
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                   "idempotency: found a record, state %d, same request %d",
                   static_cast<int>(found.state), found.same_fingerprint);

    switch (judge(found.state, found.same_fingerprint)) {

    case verdict::wait:
        if (park(ctx)) {
            return NGX_DONE;
        }

        leave(ctx);
        return refuse(ctx, status::in_progress, error_code::in_progress);

    case verdict::reused:
        return refuse(ctx, status::reused, error_code::key_reused);

    case verdict::unknown:
        return refuse(ctx, status::unknown, error_code::outcome_unknown);

    case verdict::not_kept:
        return refuse(ctx, status::not_kept, error_code::response_not_kept);

    case verdict::replay: break;
    }

    if (ctx.conf->dry_run) {
        ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                      "idempotency: dry run, would be replayed");
        return pass(ctx, status::replay);
    }

    return replay(ctx);
}


ngx_int_t
act_on_answer(context &ctx)
{
    /* It runs, as was said before: a store that fails does not change that. */
    if (ctx.answer.result == claim_result::unavailable && was_pending(ctx)) {
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                       "idempotency: the store failed a request that waits");
    }

    bool pending = ctx.answer.result == claim_result::found
                   && ctx.answer.state == record_state::pending
                   && ctx.answer.same_fingerprint;

    if (!pending && ctx.answer.result != claim_result::claimed) {
        share_answer(ctx);
        leave(ctx);
    }

    switch (ctx.answer.result) {

    case claim_result::claimed:
        note_claimed(ctx);
        ctx.status = status::fresh;
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx.request->connection->log, 0,
                       "idempotency: claimed, attempt %uD",
                       ctx.answer.attempt);
        return start_run(ctx);

    case claim_result::found: return meet_record(ctx);

    case claim_result::unreadable:
        return refuse(ctx, status::store_error, error_code::store_unavailable);

    default: return store_failed(ctx);
    }
}


/*
 * An error page may tell a refusal in its own words, but not send the refused
 * request to an application after all.
 */
ngx_int_t
pass_again(context &ctx)
{
    bool ended = ctx.error != error_code::none || ctx.failed
                 || ctx.status == status::replay;

    return ended ? stop_or_pass(ctx) : NGX_DECLINED;
}


ngx_int_t
body_is_there(context &ctx)
{
    if (ctx.key.len == 0) {
        ngx_int_t rc = look_into_body(ctx);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    ctx.body.drop();
    ctx.hashed = true;

    if (join(ctx)) {
        return NGX_DONE;
    }

    if (claim_key(ctx) != NGX_OK) {
        leave(ctx);
        return fail(ctx);
    }

    return ctx.at == stage::answered ? act_on_answer(ctx) : NGX_DONE;
}


ngx_int_t
second_look(context &ctx)
{
    switch (ctx.at) {

    case stage::ready: return body_is_there(ctx);

    case stage::answered: return act_on_answer(ctx);

    case stage::running:
    case stage::settled: return enter_again(ctx);

    case stage::reading:
        /* Its body was refused, and an error page has brought it back. */
        ctx.at = stage::passed;
        return NGX_DECLINED;

    case stage::start:
    case stage::passed: return pass_again(ctx);

    default: return NGX_DONE;
    }
}

}


/*
 * Tokens are cut from a supply: OpenSSL asks the system for the process id
 * each time, and this is once per request.
 */
bool
make_token(token &out)
{
    static std::array<std::uint8_t, 256 * sizeof(token)> supply;
    static std::size_t used = supply.size();

    if (used == supply.size()) {

        if (RAND_bytes(supply.data(), static_cast<int>(supply.size())) != 1) {
            return false;
        }

        used = 0;
    }

    std::copy_n(supply.begin() + static_cast<std::ptrdiff_t>(used), out.size(),
                out.begin());
    used += out.size();

    return true;
}


/*
 * Runs last in the phase before the content: all of access control has let
 * the request pass.  A location without a content handler of its own is not
 * the one that answers; the gate waits for that one.
 */
ngx_int_t
gate(ngx_http_request_t *r)
{
    /* post_action is the operator's own, and comes after the answer. */
    if (r != r->main || r->post_action) {
        return NGX_DECLINED;
    }

    context *ctx = find_context(r);

    if (ctx != nullptr) {
        return second_look(*ctx);
    }

    const location_conf *conf = location(r);

    /* A body that was thrown away (413 and an error page) tells nothing. */
    if (conf->store == nullptr || r->content_handler == nullptr
        || r->discard_body) {
        return NGX_DECLINED;
    }

    ngx_int_t rc = first_look(r, conf);

    if (rc != NGX_AGAIN) {
        return rc;
    }

    return second_look(*find_context(r));
}
}
