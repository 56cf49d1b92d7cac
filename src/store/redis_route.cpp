#include "store/redis_route.h"

#include <algorithm>

namespace idempotency {

void
single_server_route::find(route_user &user, unsigned failures)
{
    user_ = &user;
    failures_ = failures;

    if (failures == 0 || !resolve()) {
        answer();
    }
}


void
single_server_route::cancel()
{
    if (resolving_ != nullptr) {
        ngx_resolve_name_done(resolving_);
        resolving_ = nullptr;
    }
}


/* False: the name cannot be resolved now, so use the known addresses. */
bool
single_server_route::resolve()
{
    ngx_resolver_t *resolver = server_.core->resolver;

    if (server_.host.len == 0 || resolver == nullptr
        || resolver->connections.nelts == 0)
    {
        return false;
    }

    ngx_resolver_ctx_t *ctx = ngx_resolve_start(resolver, nullptr);

    if (ctx == nullptr || ctx == NGX_NO_RESOLVER) {
        return false;
    }

    ctx->name = server_.host;
    ctx->handler = on_resolved;
    ctx->data = this;
    ctx->timeout = patience_;

    resolving_ = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        resolving_ = nullptr;
        return false;
    }

    return true;
}


/* If the name was not resolved, the previous addresses are used again. */
void
single_server_route::on_resolved(ngx_resolver_ctx_t *ctx)
{
    auto *self = static_cast<single_server_route *>(ctx->data);

    if (ctx->state == NGX_OK && ctx->naddrs != 0) {
        self->take_addresses(ctx);
    }

    self->resolving_ = nullptr;
    ngx_resolve_name_done(ctx);
    self->answer();
}


void
single_server_route::take_addresses(const ngx_resolver_ctx_t *ctx)
{
    resolved_count_ = std::min<std::size_t>(ctx->naddrs, resolved_.size());

    for (std::size_t i = 0; i < resolved_count_; i++) {
        const ngx_resolver_addr_t &from = ctx->addrs[i];
        resolved_address &to = resolved_[i];

        ngx_memcpy(&to.sockaddr, from.sockaddr, from.socklen);
        to.length = from.socklen;
        ngx_inet_set_port(&to.sockaddr.sockaddr, server_.port);
    }
}


/* Each failure moves on to the next address. */
void
single_server_route::answer()
{
    endpoint where = {};

    where.certificate = server_.certificate;

    if (resolved_count_ != 0) {
        resolved_address &to = resolved_[failures_ % resolved_count_];

        where.address = &to.sockaddr.sockaddr;
        where.length = to.length;

    } else {
        ngx_addr_t &to =
            server_.addresses[failures_ % server_.addresses.size()];

        where.address = to.sockaddr;
        where.length = to.socklen;
    }

    user_->route_found(where);
}

}
