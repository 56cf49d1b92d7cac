#pragma once

#include "store/redis_settings.h"

namespace idempotency {

#if (NGX_SSL)
inline constexpr bool has_tls = true;
#else
inline constexpr bool has_tls = false;
#endif


/* Empty: the system's certificates; no certificate of our own. */
struct tls_files {
    ngx_str_t ca;
    ngx_str_t certificate;
    ngx_str_t key;
};


/* When the configuration is read.  Null: nginx has logged why. */
ngx_ssl_t *make_tls(ngx_conf_t *cf, tls_files files);

/*
 * Null: done() is or was called, when the handshake has ended; else what is
 * wrong.
 */
const char *start_tls(ngx_connection_t *c, ngx_ssl_t *ssl,
                      const tls_name &server,
                      void (*done)(ngx_connection_t *));

/* Null: the handshake has succeeded, and the certificate is the server's. */
const char *check_tls(ngx_connection_t *c, const tls_name &server,
                      bool verify);

/* Before the connection itself is closed. */
void close_tls(ngx_connection_t *c);

}
