#include "module/writers.h"

#include "module/context.h"
#include "module/keeping.h"

namespace idempotency {

namespace {

bool is_awaited(const context &ctx, ngx_http_request_t *sr);
bool is_of_srcache(const context &ctx, ngx_http_request_t *sr);
bool is_below(const context &ctx, const ngx_http_request_t *sr);
bool note_below(context &ctx, ngx_http_request_t *sr);
ngx_http_request_t *active_subrequest(ngx_http_request_t *r);
ngx_http_request_t *outermost(ngx_http_request_t *sr);

}


/*
 * nginx keeps the subrequests of a request in a list.  The one that may write
 * to the client now is the connection's, and may have left the list.
 */
bool
others_write(const context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_http_request_t *active = active_subrequest(r);

    if (active != nullptr && is_awaited(ctx, active)) {
        return true;
    }

    for (auto *pr = r->postponed; pr != nullptr; pr = pr->next) {
        if (pr->request != nullptr && is_awaited(ctx, pr->request)) {
            return true;
        }
    }

    return false;
}


bool
writes_a_part(const context &ctx, ngx_http_request_t *sr)
{
    ngx_http_request_t *top = outermost(sr);

    return !sr->subrequest_in_memory && !top->subrequest_in_memory
           && !sr->background && !top->background && !is_below(ctx, top);
}


void
look_for_writers(context &ctx)
{
    if (is_kept(ctx.capture) && others_write(ctx)) {
        not_alone(ctx);
    }
}


/* The length does not tell when our part of it is whole. */
void
not_alone(context &ctx)
{
    not_to_keep(ctx, not_kept::subrequest_output);
    ctx.capture.content_length = -1;
}


bool
note_subrequests_below(context &ctx)
{
    ngx_http_request_t *r = ctx.request;
    ngx_http_request_t *active = active_subrequest(r);

    if (active != nullptr && !note_below(ctx, outermost(active))) {
        return false;
    }

    for (auto *pr = r->postponed; pr != nullptr; pr = pr->next) {
        if (pr->request != nullptr && !note_below(ctx, pr->request)) {
            return false;
        }
    }

    return true;
}


before_subrequests::before_subrequests(ngx_http_request_t *r)
    : request_(r), postponed_(r->postponed), active_(r->connection->data)
{
    r->postponed = nullptr;
    r->connection->data = r;
}


/* A filter may have made subrequests meanwhile: these come first. */
before_subrequests::~before_subrequests()
{
    ngx_http_postponed_request_t **last = &request_->postponed;

    if (*last == nullptr) {
        request_->connection->data = active_;
    }

    while (*last != nullptr) {
        last = &(*last)->next;
    }

    *last = postponed_;
}


namespace {

bool
is_awaited(const context &ctx, ngx_http_request_t *sr)
{
    return writes_a_part(ctx, sr) && !is_of_srcache(ctx, outermost(sr));
}


/*
 * srcache above us stores the response by a subrequest, and lets nothing pass
 * of what that writes.  It gives such a subrequest a context when it makes it.
 * A handler that makes subrequests itself may make them in a location that
 * srcache stores too; an upstream makes none.
 */
bool
is_of_srcache(const context &ctx, ngx_http_request_t *sr)
{
    auto *cycle = const_cast<ngx_cycle_t *>(ngx_cycle);
    const ngx_module_t *srcache = find_http_module(
        cycle, "ngx_http_srcache_filter_module");

    return srcache != nullptr && has_upstream(ctx)
           && sr->ctx[srcache->ctx_index] != nullptr;
}


bool
is_below(const context &ctx, const ngx_http_request_t *sr)
{
    for (auto *known = ctx.capture.below; known != nullptr;
         known = known->next) {
        if (known->request == sr) {
            return true;
        }
    }

    return false;
}


bool
note_below(context &ctx, ngx_http_request_t *sr)
{
    if (is_below(ctx, sr)) {
        return true;
    }

    auto *known = make<subrequest_below>(ctx.request->pool);

    if (known == nullptr) {
        return false;
    }

    known->request = sr;
    known->next = ctx.capture.below;
    ctx.capture.below = known;

    return true;
}


/* Null: the main request itself may write. */
ngx_http_request_t *
active_subrequest(ngx_http_request_t *r)
{
    auto *active = static_cast<ngx_http_request_t *>(r->connection->data);

    return active == r ? nullptr : active;
}


ngx_http_request_t *
outermost(ngx_http_request_t *sr)
{
    while (sr->parent != nullptr && sr->parent != sr->main) {
        sr = sr->parent;
    }

    return sr;
}

}

}
