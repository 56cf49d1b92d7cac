#pragma once

#include "store/redis_settings.h"

namespace idempotency {

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
