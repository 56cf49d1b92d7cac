#include "module/place.h"

#include "contract/place.h"
#include "contract/record.h"
#include "module/admission.h"
#include "module/context.h"
#include "module/replay.h"

namespace idempotency {

namespace {

bool is_error_page(const context &ctx);
bool is_page_of_nginx(ngx_http_request_t *r);
ngx_str_t place_of(ngx_http_request_t *r);
ngx_int_t walk(context &ctx, std::string_view place);
bool can_walk(ngx_http_request_t *r, const way &to);
ngx_int_t refuse_elsewhere(context &ctx);

}


void
start_place(context &ctx)
{
    ctx.run.place = {};
    ctx.run.place.changes = ctx.request->uri_changes;
}


/*
 * What comes after an exchange with an upstream only shows its answer: the
 * application was asked where the run was admitted.
 */
void
note_place(context &ctx, bool by_application)
{
    ngx_http_request_t *r = ctx.request;
    place_state &state = ctx.run.place;
    bool asked = has_upstream(ctx) && any_byte_sent(ctx);

    if (!by_application && !ctx.run.evidence.frozen && !asked
        && !is_error_page(ctx))
    {
        bool one_step = state.changes - r->uri_changes == 1;

        if (state.place.len != 0 || !one_step
            || view(r->method_name) != view(ctx.method))
        {
            state.lost = true;
        }

        state.place = place_of(r);

        if (state.place.data == nullptr) {
            state.lost = true;
        }
    }

    state.changes = r->uri_changes;
}


/* It may have been answered elsewhere before it came to the gate there. */
bool
has_known_place(context &ctx)
{
    place_state &state = ctx.run.place;

    if (ctx.request->uri_changes != state.changes && !ctx.run.evidence.frozen
        && !has_upstream(ctx) && !is_error_page(ctx))
    {
        state.lost = true;
    }

    return !state.lost;
}


bool
is_at_home(const context &ctx)
{
    return !ctx.run.place.lost && ctx.run.place.place.len == 0;
}


ngx_int_t
replay_in_place(context &ctx, response_reader &reader)
{
    std::string_view place = reader.head().place;

    return place.empty() ? replay(ctx, reader) : walk(ctx, place);
}


/*
 * An error page to a URI may answer who was refused on the way.  Nothing else
 * may answer, and nothing may run.
 */
ngx_int_t
arrive(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_str_t here = place_of(r);
    response_reader reader;

    if (here.data == nullptr || !open_response(ctx, reader)) {
        return refuse_elsewhere(ctx);
    }

    if (ctx.run.place.changes - r->uri_changes == 1
        && view(here) == reader.head().place)
    {
        return replay(ctx, reader);
    }

    if (has_become_get(ctx) || is_page_of_nginx(r)) {
        return NGX_DECLINED;
    }

    return refuse_elsewhere(ctx);
}


bool
is_own_place(const context &ctx, const response_reader &reader)
{
    return !ctx.run.place.lost
           && view(ctx.run.place.place) == reader.head().place;
}


namespace {

bool
is_refused_by_nginx(const ngx_http_request_t *r)
{
    return r->error_page || r->err_status != 0;
}


bool
is_error_page(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;

    return is_refused_by_nginx(r) && has_become_get(ctx);
}


/*
 * An error page in a file, for a request that was GET from the start.  Without
 * an error, a location that has no content handler of its own could serve any
 * file, and DAV methods run there.
 */
bool
is_page_of_nginx(ngx_http_request_t *r)
{
    return is_refused_by_nginx(r) && r->content_handler == nullptr
           && is_safe_method(r);
}


/* The location, and how it is reached; no data: no memory. */
ngx_str_t
place_of(ngx_http_request_t *r)
{
    const ngx_http_core_loc_conf_t *core = location_around(r);
    const ngx_str_t *condition = &location(r)->condition;
    ngx_str_t none = ngx_null_string;
    ngx_str_t *uri = core->named ? &none : &r->uri;
    ngx_str_t *args = core->named ? &none : &r->args;

    return format(
        r->pool, core->name.len + condition->len + uri->len + args->len + 4,
        "%c%V%c%V%c%V%c%V", kind_of(core), &core->name, place_separator,
        condition, place_separator, uri, place_separator, args);
}


/*
 * The content handler that sent the first request on is not called: it might
 * do more than that.  The access rules of the location are applied to this
 * request, as they were to the first one.
 */
ngx_int_t
walk(context &ctx, std::string_view place)
{
    ngx_http_request_t *r = ctx.request;
    auto copy = make_array<char>(r->pool, place.size());

    if (copy.data() == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    std::copy(place.begin(), place.end(), copy.begin());

    std::optional<way> to = read_place({copy.data(), copy.size()});

    if (!to || !can_walk(r, *to)) {
        return refuse_elsewhere(ctx);
    }

    ngx_str_t location = str(to->location);
    ngx_str_t uri = str(to->uri);
    ngx_str_t args = str(to->arguments);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency: the response is in location \"%V\", going "
                   "there",
                   &location);

    ctx.run.place.changes = r->uri_changes;
    move_to(ctx, stage::walking);

    if (uri.len == 0) {
        ngx_http_named_location(r, &location);

    } else {
        ngx_http_internal_redirect(r, &uri, &args);
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


/* A named location may be gone from the configuration. */
bool
can_walk(ngx_http_request_t *r, const way &to)
{
    auto *server = static_cast<ngx_http_core_srv_conf_t *>(
        ngx_http_get_module_srv_conf(r, ngx_http_core_module));
    ngx_http_core_loc_conf_t **named = server->named_locations;

    if (r->uri_changes <= 1) {
        return false;
    }

    if (!to.uri.empty()) {
        return true;
    }

    for (/* void */; named != nullptr && *named != nullptr; named++) {
        if (view((*named)->name) == to.location) {
            return true;
        }
    }

    return false;
}


/* What became of the first request is for those whom its location admits. */
ngx_int_t
refuse_elsewhere(context &ctx)
{
    ctx.claim.answer.response = {};

    return refuse(ctx, refusal_for(verdict::not_kept));
}

}

}
