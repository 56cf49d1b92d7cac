#pragma once

#include "ngx.h"

#include <span>

namespace idempotency {

inline constexpr std::size_t longest_prefix = 64;


/* The name that a server's certificate must be valid for. */
struct tls_name {
    ngx_str_t text; /* zero-terminated */
    bool is_address;
};


/* Where a single server is. */
struct server_location {
    ngx_str_t name; /* for the log: nothing secret */
    std::span<ngx_addr_t> addresses;

    /* A host name, whose addresses may change; empty: an address. */
    ngx_str_t host;
    in_port_t port;
    const ngx_http_core_loc_conf_t *core; /* its resolver */

    tls_name certificate;
};


/* What has to have a claim before it counts. */
struct durability_settings {
    enum class kind : std::uint8_t { none, replicas, disk };

    kind what = kind::none;
    ngx_uint_t replicas = 0; /* besides the master's disk, if that is asked */
    ngx_msec_t timeout = 0;
};


/* Timeouts, login and TLS of a connection. */
struct link_settings {
    bool in_cluster;  /* a key may be at another node */
    bool only_asks;   /* where the records are; there are none here */
    ngx_str_t prefix; /* of the keys that the user may use */
    ngx_str_t user;
    ngx_str_t password;
    ngx_str_t db;
    ngx_msec_t timeout;
    ngx_msec_t connect_timeout;
    ngx_msec_t longest_delay; /* between two attempts to connect */
    bool puts_back;           /* what a server has lost */

    /* On this link it is asked whether claims are durable. */
    durability_settings::kind asks_for;

    ngx_ssl_t *ssl; /* null: no TLS */
    bool tls_verify;
};


/* Sentinels that know which server is the master. */
struct sentinel_settings {
    std::span<server_location> servers; /* empty: there are none */
    ngx_str_t service;                  /* the name of the master */
    ngx_msec_t check;
    link_settings link;
};


/* Some nodes of a cluster, which tell where the slots are. */
struct cluster_settings {
    std::span<server_location> servers; /* empty: there is none */
    link_settings link;
};


/* Copies of finished records on this host. */
struct local_settings {
    std::size_t size; /* 0: there are none */
    ngx_msec_t ttl;
    ngx_str_t zone; /* its name: another server's records have another */
};


struct redis_settings {
    ngx_str_t name; /* of the store */
    ngx_str_t prefix;
    ngx_uint_t connections;

    /* Put back what a server may have lost; 0: not. */
    ngx_msec_t reassert;
    ngx_msec_t failover_grace;

    durability_settings durability;
    local_settings local;

    /* Or what all have in common that others name. */
    server_location server;
    sentinel_settings sentinels;
    cluster_settings cluster;
    link_settings link;
};

}
