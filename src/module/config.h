#pragma once

#include "contract/key.h"
#include "contract/outcome.h"
#include "contract/pointer.h"
#include "module/problem.h"
#include "ngx.h"
#include "store/counters.h"
#include "store/store.h"

namespace idempotency {

/* A line of the configuration; number 0: none. */
struct conf_line {
    ngx_str_t file;
    ngx_uint_t number;
};


/*
 * A store as the configuration names it.  It may be named before it is
 * defined; then it remembers where, for the error message.
 */
struct named_store {
    ngx_str_t name;
    store *backend;
    counters *counts;
    ngx_str_t file;
    ngx_uint_t line;
    ngx_str_t zone_file; /* of a memory store, if it has one */
    bool warned_of_size;
};


/* What init_peer() was before ours was put in front of it. */
struct guarded_upstream {
    ngx_http_upstream_srv_conf_t *upstream;
    ngx_http_upstream_init_peer_pt init;
};


/* Where a server has idempotency_admin. */
struct admin_location {
    ngx_http_core_srv_conf_t *server;
    ngx_str_t path;
};


struct main_conf {
    ngx_array_t stores;    /* named_store * */
    ngx_array_t upstreams; /* guarded_upstream, sorted by address */

    ngx_command_t *proxy_method; /* null: there is none */
    ngx_uint_t proxy_index;      /* of the proxy module */
    ngx_module_t *charset;       /* the filter; null: there is none */
    ngx_array_t zones;           /* counters *, of status zones */
    ngx_array_t counts;          /* counters *, of stores */
    ngx_array_t admin_locations; /* admin_location */
    bool has_admin;
    ngx_array_t locations; /* merged_location */
    ngx_shm_zone_t *known_bodies;
};


struct location_conf;


/* All servers, locations and conditions, in the order of merging. */
struct merged_location {
    location_conf *conf;
    const ngx_http_core_loc_conf_t *core;
    bool on_here; /* switched on at this level itself */
};


/* nginx forgets the names of a server when the configuration is read. */
struct server_conf {
    ngx_array_t names; /* ngx_str_t */
};


/* Where a key may be: the first that is set of these. */
struct key_source {
    ngx_str_t header; /* lower-cased */
    json_pointer pointer;
    ngx_http_complex_value_t value;
};


inline constexpr std::size_t scope_limit = 16;


/* The parts of a route, as bits. */
inline constexpr ngx_uint_t route_host = 1;
inline constexpr ngx_uint_t route_port = 2;
inline constexpr ngx_uint_t route_method = 4;
inline constexpr ngx_uint_t route_path = 8;
inline constexpr ngx_uint_t whole_route = 15;


enum class fingerprint_mode : ngx_uint_t { automatic, raw, off };


struct location_conf {
    /*
     * An if and a limit_except are locations to nginx, which have the name of
     * the one around them, but do not tell of what kind it is.
     */
    const ngx_http_core_loc_conf_t *around; /* the location itself */
    ngx_str_t condition;                    /* of an if; empty: it is none */
    location_conf *outer;                   /* what this level inherits from */
    bool answered;                          /* here, or at a level below */

    named_store *store; /* null: off */
    ngx_str_t file;     /* where that was said */
    ngx_uint_t line;
    counters *zone; /* null: off */
    ngx_str_t zone_name;
    ngx_uint_t status; /* status_format */
    bool admin;

    ngx_array_t *scope;     /* ngx_http_complex_value_t */
    ngx_uint_t scope_route; /* bits */
    ngx_array_t *keys;      /* key_source */
    std::size_t key_min;
    std::size_t key_max;
    ngx_uint_t key_uuid;
    ngx_http_complex_value_t *first_sent; /* null: off */
    ngx_array_t *methods;                 /* ngx_str_t */
    ngx_flag_t strict_methods;
    ngx_flag_t required;
    ngx_array_t *bypass; /* ngx_http_complex_value_t */
    ngx_flag_t dry_run;
    ngx_uint_t fingerprint;
    ngx_array_t *include;   /* json_pointer */
    ngx_array_t *exclude;   /* json_pointer */
    conf_line include_line; /* at this level */
    conf_line exclude_line;
    ngx_flag_t jsonrpc;

    ngx_array_t *ttl;            /* ttl_rule */
    ngx_array_t *unknown_status; /* uint16_t */
    ngx_uint_t release_unknown;
    ngx_msec_t lease;
    ngx_msec_t abort_timeout;
    ngx_msec_t wait;
    ngx_msec_t retry_after;
    ngx_uint_t pass_store_failure;

    ngx_uint_t replay_empty;
    ngx_str_t replay_header;   /* empty: none */
    ngx_array_t *hide_headers; /* ngx_str_t */
    ngx_array_t *pass_headers; /* ngx_str_t */
    ngx_array_t *hidden;       /* ngx_str_t, what the two come to */
    std::size_t max_response;
    ngx_flag_t hold;
    ngx_flag_t app_control;

    ngx_array_t *errors;       /* error_status */
    ngx_array_t *error_bodies; /* error_body */
    ngx_str_t docs;
    ngx_uint_t log_level;

    mutable bool warned_of_framing; /* in this worker */
};


inline const location_conf *
location(ngx_http_request_t *r)
{
    return static_cast<const location_conf *>(
        ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module));
}


inline const ngx_http_core_loc_conf_t *
core_location(ngx_http_request_t *r)
{
    return static_cast<const ngx_http_core_loc_conf_t *>(
        ngx_http_get_module_loc_conf(r, ngx_http_core_module));
}


/* The location as it is named, also within an if or a limit_except. */
inline const ngx_http_core_loc_conf_t *
location_around(ngx_http_request_t *r)
{
    return location(r)->around;
}


bool has_error_page(const ngx_http_core_loc_conf_t *core, ngx_uint_t status);

outcome_rules rules_of(const location_conf *conf);

inline main_conf *
main_of(ngx_conf_t *cf)
{
    return static_cast<main_conf *>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module));
}

/* Called when all servers are known. */
ngx_int_t keep_server_names(ngx_conf_t *cf);

void *create_main_conf(ngx_conf_t *cf);
char *init_main_conf(ngx_conf_t *cf, void *conf);
void *create_server_conf(ngx_conf_t *cf);
void *create_location_conf(ngx_conf_t *cf);
char *merge_location_conf(ngx_conf_t *cf, void *parent, void *child);

extern ngx_command_t commands[];

}
