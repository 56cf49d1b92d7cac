#include "store/redis_route.h"

#include <algorithm>

namespace idempotency {

void
single_server_route::find(route_user &user, unsigned failures)
{
    user_ = &user;
    failures_ = failures;

    switch (resolve()) {
    case lookup::under_way: return;
    case lookup::failed: fail(); return;
    case lookup::not_possible: break;
    }

    if (server_.addresses.empty()) {
        user.route_failed("its address is a host name, which can only be "
                          "resolved if a \"resolver\" is set");
        return;
    }

    answer();
}


void
single_server_route::set_server(const server_location &server)
{
    server_ = server;
    is_set_ = true;
    resolved_count_ = 0;
}


void
single_server_route::cancel()
{
    if (resolving_ != nullptr) {
        ngx_resolve_name_done(resolving_);
        resolving_ = nullptr;
    }
}


single_server_route::lookup
single_server_route::resolve()
{
    ngx_resolver_t *resolver = server_.core->resolver;

    if (server_.host.len == 0 || resolver == nullptr
        || resolver->connections.nelts == 0)
    {
        return lookup::not_possible;
    }

    ngx_resolver_ctx_t *ctx = ngx_resolve_start(resolver, nullptr);

    if (ctx == nullptr || ctx == NGX_NO_RESOLVER) {
        return lookup::failed;
    }

    ctx->name = server_.host;
    ctx->handler = on_resolved;
    ctx->data = this;
    ctx->timeout = patience_;

    resolving_ = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        resolving_ = nullptr;
        return lookup::failed;
    }

    return lookup::under_way;
}


void
single_server_route::on_resolved(ngx_resolver_ctx_t *ctx)
{
    auto *self = static_cast<single_server_route *>(ctx->data);
    bool found = ctx->state == NGX_OK && ctx->naddrs != 0;
    bool unknown = ctx->state == NGX_RESOLVE_NXDOMAIN;

    if (found) {
        self->take_addresses(ctx);
    }

    self->resolving_ = nullptr;
    ngx_resolve_name_done(ctx);

    if (unknown && self->resolved_count_ != 0) {
        self->user_->route_failed("its name does not exist any more");

    } else if (found || (unknown && !self->server_.addresses.empty())) {
        /* An unknown name is in the system's hosts file, for example. */
        self->answer();

    } else {
        self->fail();
    }
}


/*
 * The addresses that this worker has resolved before are used again.  Those of
 * the configuration can be as old as that.
 */
void
single_server_route::fail()
{
    if (resolved_count_ != 0 && !is_set_) {
        answer();

    } else {
        user_->route_failed("its name cannot be resolved now");
    }
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


/* An address is used as it is, a name has to be resolved. */
void
named_server::set(const server_address &where, const server_location &common)
{
    where_ = where;

    std::string_view host = where_.host.data();
    ngx_str_t text = str(host);
    in_addr_t v4 = ngx_inet_addr(text.data, text.len);

    ngx_memzero(&sockaddr_, sizeof(sockaddr_));
    location_ = common;
    location_.host = ngx_null_string;
    location_.addresses = {&address_, 1};
    location_.port = where_.port;
    location_.certificate = {text, true};
    address_.sockaddr = &sockaddr_.sockaddr;

    if (v4 != INADDR_NONE) {
        sockaddr_.sockaddr_in.sin_family = AF_INET;
        sockaddr_.sockaddr_in.sin_addr.s_addr = v4;
        address_.socklen = sizeof(sockaddr_in);

#if (NGX_HAVE_INET6)
    } else if (ngx_inet6_addr(text.data, text.len,
                              sockaddr_.sockaddr_in6.sin6_addr.s6_addr)
               == NGX_OK)
    {
        sockaddr_.sockaddr_in6.sin6_family = AF_INET6;
        address_.socklen = sizeof(sockaddr_in6);
#endif

    } else {
        location_.host = text;
        location_.addresses = {};
        location_.certificate.is_address = false;
    }

    if (!location_.addresses.empty()) {
        ngx_inet_set_port(address_.sockaddr, where_.port);
    }

    if (common.certificate.text.len != 0) {
        location_.certificate = common.certificate;
    }

    set_name();
}


void
named_server::set_name()
{
    ngx_str_t host = str(where_.host.data());
    bool is_v6 = view(host).find(':') != std::string_view::npos;
    u_char *end = ngx_snprintf(name_.data(), name_.size(),
                               is_v6 ? "[%V]:%d" : "%V:%d", &host,
                               static_cast<int>(where_.port));

    location_.name = {static_cast<std::size_t>(end - name_.data()),
                      name_.data()};
}

}
