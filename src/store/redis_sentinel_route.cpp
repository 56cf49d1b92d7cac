#include "store/redis_sentinel.h"

namespace idempotency {

void
sentinel_route::find(route_user &user, unsigned failures)
{
    user_ = &user;
    failures_ = failures;
    is_asking_ = true;
    master_ = {};
    group_.ask(*this, failures);
}


void
sentinel_route::cancel()
{
    if (is_asking_) {
        is_asking_ = false;
        group_.cancel(*this);
    }

    inner_.cancel();
}


void
sentinel_route::no_master_named(const char *why)
{
    is_asking_ = false;
    name_ = group_.settings().service;
    user_->route_failed(why);
}


void
sentinel_route::master_named(const master_address &master)
{
    is_asking_ = false;
    master_ = master;

    std::string_view host = master_.host.data();

    set_name(host);
    set_address(host);
    inner_.set_server(server_);
    inner_.find(*user_, failures_);
}


/* "mymaster" at "10.0.0.5:6379" is called mymaster at 10.0.0.5:6379. */
void
sentinel_route::set_name(std::string_view host)
{
    ngx_str_t text = str(host);
    bool is_v6 = host.find(':') != host.npos;
    u_char *end = ngx_snprintf(name_text_.data(), name_text_.size(),
                               is_v6 ? "%V at [%V]:%d" : "%V at %V:%d",
                               &group_.settings().service, &text,
                               static_cast<int>(master_.port));

    name_ = {static_cast<std::size_t>(end - name_text_.data()),
             name_text_.data()};
}


/* An address is used as it is, a name has to be resolved. */
void
sentinel_route::set_address(std::string_view host)
{
    ngx_str_t text = str(host);
    in_addr_t v4 = ngx_inet_addr(text.data, text.len);
    const tls_name &given = group_.settings().certificate;

    ngx_memzero(&sockaddr_, sizeof(sockaddr_));
    server_.host = ngx_null_string;
    server_.addresses = {&address_, 1};
    server_.port = master_.port;
    server_.certificate = {text, true};
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
        server_.host = text;
        server_.addresses = {};
        server_.certificate.is_address = false;
    }

    if (!server_.addresses.empty()) {
        ngx_inet_set_port(address_.sockaddr, master_.port);
    }

    if (given.text.len != 0) {
        server_.certificate = given;
    }
}

}
