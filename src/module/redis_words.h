#pragma once

#include "store/redis_settings.h"
#include "store/redis_url.h"

namespace idempotency {

/* The parameters of idempotency_store as they are written. */
struct redis_words {
    redis_url url;
    ngx_str_t prefix = ngx_string("idem:");
    ngx_str_t timeout = ngx_string("250ms");
    ngx_str_t connect_timeout = ngx_string("1s");
    ngx_str_t connections = ngx_string("1");
    ngx_str_t reassert = ngx_string("30s");
    ngx_str_t failover_grace = ngx_string("1s");
    ngx_str_t durability = ngx_string("none");
    ngx_str_t durability_timeout = ngx_string("100ms");
    ngx_str_t local = ngx_null_string;
    ngx_str_t local_ttl = ngx_null_string;
    ngx_str_t user = ngx_null_string;
    ngx_str_t password_file = ngx_null_string;
    ngx_str_t tls_ca = ngx_null_string;
    ngx_str_t tls_cert = ngx_null_string;
    ngx_str_t tls_key = ngx_null_string;
    ngx_str_t tls_name = ngx_null_string;
    ngx_str_t tls_verify = ngx_string("on");
    ngx_str_t sentinel_user = ngx_null_string;
    ngx_str_t sentinel_password_file = ngx_null_string;
    ngx_str_t sentinel_check = ngx_string("1s");
};


/* Logs what is wrong with a store; always false. */
bool wrong(ngx_conf_t *cf, const redis_settings &settings, const char *what);

/* redis_address.cpp: where the servers are, and TLS to them */
bool find_servers(ngx_conf_t *cf, redis_settings &settings,
                  const redis_words &words);
bool set_up_tls(ngx_conf_t *cf, redis_settings &settings,
                const redis_words &words);

/* redis_credentials.cpp */
bool read_credentials(ngx_conf_t *cf, redis_settings &settings,
                      const redis_words &words);

}
