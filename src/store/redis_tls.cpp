#include "store/redis_tls.h"

#include <cstdio>

namespace idempotency {

#if (NGX_SSL)

namespace {

constexpr int verify_depth = 9;


bool load_files(ngx_conf_t *cf, ngx_ssl_t *ssl, tls_files &files);
bool is_for(SSL *ssl, ngx_connection_t *c, const tls_name &server);
char *zero_terminated(const tls_name &server);

}


ngx_ssl_t *
make_tls(ngx_conf_t *cf, tls_files files)
{
    constexpr ngx_uint_t protocols = NGX_SSL_TLSv1_2 | NGX_SSL_TLSv1_3;
    auto *ssl = make<ngx_ssl_t>(cf->pool);

    if (ssl == nullptr) {
        return nullptr;
    }

    ssl->log = cf->log;

    if (ngx_ssl_create(ssl, protocols, nullptr) != NGX_OK) {
        return nullptr;
    }

    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(cf->pool, 0);

    if (cleanup == nullptr) {
        ngx_ssl_cleanup_ctx(ssl);
        return nullptr;
    }

    cleanup->handler = ngx_ssl_cleanup_ctx;
    cleanup->data = ssl;

    /* A response may be copied elsewhere while it is being sent. */
    SSL_CTX_set_mode(ssl->ctx, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

    return load_files(cf, ssl, files) ? ssl : nullptr;
}


const char *
start_tls(ngx_connection_t *c, ngx_ssl_t *ssl, const tls_name &server,
          void (*done)(ngx_connection_t *))
{
    if (ngx_ssl_create_connection(ssl, c, NGX_SSL_CLIENT) != NGX_OK
        || (!server.is_address
            && SSL_set_tlsext_host_name(c->ssl->connection,
                                        zero_terminated(server))
                   == 0))
    {
        return "cannot set up TLS";
    }

    if (ngx_ssl_handshake(c) == NGX_AGAIN) {
        c->ssl->handler = done;

    } else {
        done(c);
    }

    return nullptr;
}


const char *
check_tls(ngx_connection_t *c, const tls_name &server, bool verify)
{
    static char text[256];

    if (!c->ssl->handshaked) {
        return "TLS handshake failed";
    }

    if (!verify) {
        return nullptr;
    }

    SSL *ssl = c->ssl->connection;
    long result = SSL_get_verify_result(ssl);

    if (result != X509_V_OK) {
        std::snprintf(text, sizeof(text), "the certificate is not trusted: %s",
                      X509_verify_cert_error_string(result));
        return text;
    }

    if (!is_for(ssl, c, server)) {
        std::snprintf(text, sizeof(text),
                      "the certificate is not valid for \"%s\"",
                      zero_terminated(server));
        return text;
    }

    return nullptr;
}


void
close_tls(ngx_connection_t *c)
{
    if (c->ssl != nullptr) {
        c->ssl->no_wait_shutdown = 1;
        c->ssl->no_send_shutdown = 1;
        ngx_ssl_shutdown(c);
    }
}


namespace {

bool
load_files(ngx_conf_t *cf, ngx_ssl_t *ssl, tls_files &files)
{
    if (files.certificate.len != 0
        && ngx_ssl_certificate(cf, ssl, &files.certificate, &files.key,
                               nullptr)
               != NGX_OK)
    {
        return false;
    }

    if (files.ca.len != 0) {
        return ngx_ssl_trusted_certificate(cf, ssl, &files.ca, verify_depth)
               == NGX_OK;
    }

    SSL_CTX_set_verify_depth(ssl->ctx, verify_depth);

    return SSL_CTX_set_default_verify_paths(ssl->ctx) == 1;
}


/* nginx checks certificates for names only, not for addresses. */
bool
is_for(SSL *ssl, ngx_connection_t *c, const tls_name &server)
{
    if (!server.is_address) {
        ngx_str_t name = server.text;

        return ngx_ssl_check_host(c, &name) == NGX_OK;
    }

    X509 *certificate = SSL_get_peer_certificate(ssl);
    bool same = certificate != nullptr
                && X509_check_ip_asc(certificate, zero_terminated(server), 0)
                       == 1;

    X509_free(certificate);

    return same;
}


char *
zero_terminated(const tls_name &server)
{
    return reinterpret_cast<char *>(server.text.data);
}

}

#else

ngx_ssl_t *
make_tls(ngx_conf_t *, tls_files)
{
    return nullptr;
}


const char *
start_tls(ngx_connection_t *, ngx_ssl_t *, const tls_name &,
          void (*)(ngx_connection_t *))
{
    return "nginx was built without TLS";
}


const char *
check_tls(ngx_connection_t *, const tls_name &, bool)
{
    return nullptr;
}


void
close_tls(ngx_connection_t *)
{}

#endif

}
