#pragma once

#include "store/redis_settings.h"
#include "store/redis_slots.h"

#include <array>
#include <cstdint>

namespace idempotency {

/* Where to connect to.  Valid until the route is asked again. */
struct endpoint {
    sockaddr *address;
    socklen_t length;
    tls_name certificate;
};


/* Who asks a route for an endpoint: a link. */
class route_user {
public:
    virtual void route_found(const endpoint &where) = 0;
    virtual void route_failed(const char *why) = 0;

protected:
    ~route_user() = default;
};


/*
 * Tells one link where its server is.  The link asks before each attempt to
 * connect, and has at most one question open.
 */
class redis_route {
public:
    /*
     * Calls the user back, inside this call or later.  failures is the number
     * of connections that failed since a server last answered a command.
     */
    virtual void find(route_user &user, unsigned failures) = 0;
    virtual void cancel() = 0;

    /* The server's name for the log. */
    virtual const ngx_str_t &name() const = 0;

    /* Enough others agree that this is the server to claim at. */
    virtual bool is_confirmed() const { return true; }

    /* The server is another one by now. */
    virtual bool has_moved() const { return false; }

    /* Of a cluster: whether the server has keys in this slot, or in any. */
    virtual bool serves(std::uint16_t) const { return true; }
    virtual bool serves_any() const { return true; }

protected:
    ~redis_route() = default;
};


/* Where a server is that was named at run time, with all that belongs to it.
 */
class named_server {
public:
    named_server() = default;
    named_server(const named_server &) = delete;
    named_server &operator=(const named_server &) = delete;

    /* What all servers have in common is taken from another. */
    void set(const server_address &where, const server_location &common);

    const server_address &where() const { return where_; }
    const server_location &location() const { return location_; }

private:
    void set_name();

    server_address where_;
    server_location location_ = {};
    ngx_addr_t address_ = {};
    ngx_sockaddr_t sockaddr_ = {};
    std::array<u_char, 300> name_ = {};
};


/*
 * The route to a single server.  If nginx has a resolver, a host name is
 * resolved before each attempt to connect: a server that the name no longer
 * points to may be there and have none of the records.  Without one, or for a
 * name that only the system knows, the addresses are used that were found when
 * the configuration was read.  A name that was known, and is no more, leads
 * nowhere.
 */
class single_server_route final : public redis_route {
public:
    single_server_route(const server_location &server, ngx_msec_t patience)
        : server_(server), patience_(patience)
    {}

    void find(route_user &user, unsigned failures) override;
    void cancel() override;
    const ngx_str_t &name() const override { return server_.name; }

    /* Another server, which was named at run time; nothing old counts. */
    void set_server(const server_location &server);

private:
    struct resolved_address {
        ngx_sockaddr_t sockaddr;
        socklen_t length;
    };

    static void on_resolved(ngx_resolver_ctx_t *ctx);

    enum class lookup : std::uint8_t { under_way, failed, not_possible };

    lookup resolve();
    void fail();
    void take_addresses(const ngx_resolver_ctx_t *ctx);
    void answer();

    server_location server_;
    ngx_msec_t patience_; /* the resolver's timeout */
    bool is_set_ = false; /* by set_server() */

    /* The question under way. */
    route_user *user_ = nullptr;
    unsigned failures_ = 0;
    ngx_resolver_ctx_t *resolving_ = nullptr;

    /* The last result of the resolver; empty until there is one. */
    std::array<resolved_address, 8> resolved_ = {};
    std::size_t resolved_count_ = 0;
};

}
