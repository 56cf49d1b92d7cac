#pragma once

#include "store/redis_settings.h"

namespace idempotency {

#if (NGX_SSL)
inline constexpr bool has_tls = true;
#else
inline constexpr bool has_tls = false;
#endif


/* Empty: the system's trusted certificates; no client certificate. */
struct tls_files {
    ngx_str_t ca;
    ngx_str_t certificate;
    ngx_str_t key;
};


/* Called while the configuration is read.  Null: nginx logged why. */
ngx_ssl_t *make_tls(ngx_conf_t *cf, tls_files files);

/*
 * Starts a handshake.  Null: done() is called when it has ended, perhaps
 * inside this call.  Else why it cannot start.
 */
const char *start_tls(ngx_connection_t *c, ngx_ssl_t *ssl,
                      const tls_name &server,
                      void (*done)(ngx_connection_t *));

/* Null: the handshake succeeded and the certificate is valid; else why not. */
const char *check_tls(ngx_connection_t *c, const tls_name &server,
                      bool verify);

/* To be called before the connection is closed. */
void close_tls(ngx_connection_t *c);

}
