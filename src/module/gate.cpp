#include "module/gate.h"

#include "module/admission.h"
#include "module/context.h"
#include "module/counting.h"
#include "module/first_sent.h"
#include "module/headers.h"
#include "module/key.h"

#include <algorithm>

namespace idempotency {

namespace {

bool is_new_to(const context &ctx, const location_conf *conf);
ngx_int_t first_look(ngx_http_request_t *r, const location_conf *conf);
bool has_lost_body(ngx_http_request_t *r, bool has_key);
ngx_int_t go_on(context &ctx);
ngx_int_t look_at_other_method(ngx_http_request_t *r,
                               const location_conf *conf);
bool is_protected(const location_conf *conf, const ngx_str_t &method);
context *enter(ngx_http_request_t *r, const location_conf *conf);
ngx_int_t pass_by_bypass(ngx_http_request_t *r, const location_conf *conf);
ngx_int_t pass_without_key(const location_conf *conf);
ngx_int_t refuse_new(ngx_http_request_t *r, const location_conf *conf,
                     error_code code, key_fault fault = key_fault::none);
ngx_int_t refuse_without_body(context &ctx);
ngx_int_t body_is_there(context &ctx);
ngx_int_t look_into_body(context &ctx);
ngx_int_t use_key(context &ctx);
ngx_int_t handle_empty_scope(context &ctx);
void warn_of_empty_scope(ngx_log_t *log);

}


/* The first handler that nginx calls for post_action. */
ngx_int_t
end_before_post_action(ngx_http_request_t *r)
{
    if (!r->post_action || r != r->main) {
        return NGX_DECLINED;
    }

    end_run_with_response(r);

    if (context *ctx = find_context(r)) {
        detach(*ctx);
    }

    return NGX_DECLINED;
}


/*
 * Runs last in the phase before the content: all of access control has let
 * the request pass.  A location without a content handler of its own is not
 * the one that answers; the gate waits for that one.
 */
ngx_int_t
gate(ngx_http_request_t *r)
{
    if (r != r->main) {
        return guard_subrequest(r);
    }

    /* post_action is the operator's own, and comes after the answer. */
    if (r->post_action) {
        return NGX_DECLINED;
    }

    context *ctx = find_context(r);
    const location_conf *conf = location(r);

    if (ctx != nullptr && !is_new_to(*ctx, conf)) {
        return go_on(*ctx);
    }

    if (conf->store == nullptr || r->content_handler == nullptr) {
        return NGX_DECLINED;
    }

    ngx_int_t rc = first_look(r, conf);

    return rc == NGX_OK ? go_on(*find_context(r)) : rc;
}


namespace {

/*
 * What one location let pass unprotected has come to another, which has its
 * own scope, keys and exceptions.  An error page is not the request any more.
 * A dry run has claimed the key, or counts it as a duplicate: it stays one.
 */
bool
is_new_to(const context &ctx, const location_conf *conf)
{
    return ctx.at == stage::passed && conf != ctx.conf && !ctx.conf->dry_run
           && !has_become_get(ctx);
}


/* NGX_OK: there may be a key, and the body has been read. */
ngx_int_t
first_look(ngx_http_request_t *r, const location_conf *conf)
{
    key_search search;

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

    switch (find_key(r, conf, nullptr, search)) {

    case key_found::no:
        return conf->required ? refuse_new(r, conf, error_code::key_missing)
                              : pass_without_key(conf);

    case key_found::bad:
        return refuse_new(r, conf, error_code::key_invalid, search.fault);

    case key_found::failed: return NGX_HTTP_INTERNAL_SERVER_ERROR;

    default: break;
    }

    context *ctx = enter(r, conf);

    if (ctx == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (has_lost_body(r, !search.key.empty()) && !conf->dry_run) {
        return refuse_without_body(*ctx);
    }

    if (search.key.empty()) {
        return read_body(*ctx);
    }

    ctx->key = str(search.key);

    ngx_int_t named = use_key(*ctx);

    return named == NGX_OK ? read_body(*ctx) : named;
}


/*
 * What nginx could throw away at once is as if it had not been sent, unless
 * the key may have been in it.  A part may be there if somebody has read the
 * body before, and nginx has refused the rest.
 */
bool
has_lost_body(ngx_http_request_t *r, bool has_key)
{
    const ngx_table_elt_t *length = r->headers_in.content_length;
    const ngx_http_request_body_t *body = r->request_body;
    bool part = body != nullptr
                && (body->rest > 0 || (body->received > 0 && !body->last_saved)
                    || (r->request_body_no_buffering && body->bufs == nullptr
                        && r->headers_in.content_length_n != 0));

    if (r->discard_body || part) {
        return has_key || may_have_json_key(r);
    }

    bool all = body == nullptr && length != nullptr
               && view(length->value) != "0"
               && r->headers_in.content_length_n == 0;

    return all && !has_key && may_have_json_key(r);
}


/* The request has a context: it comes back from waiting or a redirect. */
ngx_int_t
go_on(context &ctx)
{
    switch (ctx.at) {

    case stage::ready: return body_is_there(ctx);

    case stage::answered: return act_on_answer(ctx);

    case stage::running: return enter_again(ctx);

    case stage::walking: return arrive(ctx);

    /* nginx refused the body, and an error page has brought it back. */
    case stage::reading: note_refused_body(ctx, 0); return stop_or_pass(ctx);

    /*
     * An error page may tell the end in its own words, but it may not send the
     * request to an application after all.
     */
    case stage::settled:
    case stage::replayed:
    case stage::refused:
    case stage::failed: return stop_or_pass(ctx);

    case stage::start:
    case stage::passed: return NGX_DECLINED;

    default: return NGX_DONE;
    }
}


ngx_int_t
look_at_other_method(ngx_http_request_t *r, const location_conf *conf)
{
    if (!conf->strict_methods || !has_key(r, conf)) {
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "idempotency: not protected: method %V",
                       &r->method_name);
        return NGX_DECLINED;
    }

    return refuse_new(r, conf, error_code::key_not_supported);
}


bool
is_protected(const location_conf *conf, const ngx_str_t &method)
{
    auto methods = elements<ngx_str_t>(conf->methods);

    return std::any_of(
        methods.begin(), methods.end(),
        [&](const ngx_str_t &m) { return view(m) == view(method); });
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
    ctx->admitted = admitted_by(r);
    ctx->grpc = r->headers_in.content_type != nullptr
                && is_grpc_type(view(r->headers_in.content_type->value));
    split_target(*ctx);

    return ctx;
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
pass_without_key(const location_conf *conf)
{
    count_keyless(conf);

    return NGX_DECLINED;
}


ngx_int_t
refuse_new(ngx_http_request_t *r, const location_conf *conf, error_code code,
           key_fault fault)
{
    context *ctx = enter(r, conf);

    if (ctx == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->fault = fault;

    return refuse(*ctx, {status::invalid, code});
}


/*
 * The body is being thrown away: it was too large, and an error page led here.
 * An application would wait in vain for the rest of it.
 */
ngx_int_t
refuse_without_body(context &ctx)
{
    ngx_log_error(NGX_LOG_WARN, ctx.request->connection->log, 0,
                  "idempotency: request is not run: nginx has discarded its "
                  "body, or the rest of it");

    note_refused_body(ctx, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE);

    return NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;
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
    ctx.body.has_fingerprint = true;

    if (join(ctx)) {
        return NGX_DONE;
    }

    if (claim_key(ctx) != NGX_OK) {
        leave(ctx);
        return fail(ctx, "its key could not be claimed");
    }

    return ctx.at == stage::answered ? act_on_answer(ctx) : NGX_DONE;
}


/* No other source had a key, and the body has been read now. */
ngx_int_t
look_into_body(context &ctx)
{
    key_search search;
    key_found found = find_key(ctx.request, ctx.conf, &ctx, search);

    ctx.body.drop();

    switch (found) {

    case key_found::yes: break;

    case key_found::no:
        return ctx.conf->required
                   ? refuse(ctx, {status::invalid, error_code::key_missing})
                   : pass(ctx, status::none);

    case key_found::bad:
        ctx.fault = search.fault;
        return refuse(ctx, {status::invalid, error_code::key_invalid});

    default: return fail(ctx, "its key could not be read");
    }

    ctx.key = str(search.key);

    return use_key(ctx);
}


/* NGX_OK: the record has its name. */
ngx_int_t
use_key(context &ctx)
{
    /*
     * nginx would not have started, had it known that this location has a
     * content handler.
     */
    if (ctx.conf->scope == nullptr) {
        return fail(ctx, "\"idempotency_scope\" is missing for its location");
    }

    error_code problem;

    if (!check_first_sent(ctx, problem)) {
        return fail(ctx, "\"idempotency_first_sent\" could not be evaluated");
    }

    if (problem != error_code::none) {
        return refuse(ctx, {status::invalid, problem});
    }

    switch (name_record(ctx)) {

    case naming::done: return NGX_OK;
    case naming::scope_empty: return handle_empty_scope(ctx);
    default: return fail(ctx, "its record could not be named");
    }
}


ngx_int_t
handle_empty_scope(context &ctx)
{
    if (ctx.conf->required) {
        return refuse(ctx, {status::unscoped, error_code::scope_missing});
    }

    warn_of_empty_scope(ctx.request->connection->log);

    return pass(ctx, status::unscoped);
}


/* Once a minute: a scope that is often empty would fill the log. */
void
warn_of_empty_scope(ngx_log_t *log)
{
    static time_t next;

    if (ngx_time() < next) {
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, log, 0,
                       "idempotency: not protected: scope is empty");
        return;
    }

    next = ngx_time() + 60;

    ngx_log_error(
        NGX_LOG_WARN, log, 0,
        "idempotency: request has a key but runs unprotected, because "
        "a value of \"idempotency_scope\" is empty; further "
        "requests are not logged for 60 s");
}

}

}
