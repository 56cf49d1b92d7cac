#include "module/status_page.h"

#include "module/text_output.h"

#include <openssl/evp.h>

namespace idempotency {

namespace {

/* src/module/status.html, see config.make. */
constexpr std::string_view page =
#include "module/status_page.inc"
    ;

/* "sha256-" and 32 bytes in base64. */
struct source_hash {
    char text[64];
    std::size_t length;
};


ngx_str_t policy(ngx_pool_t *pool);
std::string_view between(std::string_view start, std::string_view end);
bool hash_of(std::string_view source, source_hash &out);

}


ngx_int_t
send_status_page(ngx_http_request_t *r)
{
    ngx_str_t allowed = policy(r->pool);
    text_output out(r->pool);

    out << page;

    if (allowed.data == nullptr
        || push_header(r, ngx_string("Content-Security-Policy"), allowed)
               == nullptr
        || push_header(r, ngx_string("X-Content-Type-Options"),
                       ngx_string("nosniff"))
               == nullptr
        || push_header(r, ngx_string("Referrer-Policy"),
                       ngx_string("no-referrer"))
               == nullptr)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_chain_t *body = out.finish();

    return send_whole(r, "text/html; charset=utf-8", body, out.size());
}


ngx_int_t
send_whole(ngx_http_request_t *r, std::string_view type, ngx_chain_t *body,
           off_t size)
{
    if (body == nullptr
        || push_header(r, ngx_string("Cache-Control"), ngx_string("no-store"))
               == nullptr
        || push_header(r, ngx_string("Vary"), ngx_string("Accept")) == nullptr)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.content_length_n = size;
    r->headers_out.content_type = str(type);
    r->headers_out.content_type_len = type.size();
    r->headers_out.content_type_lowcase = nullptr;

    if (r->headers_out.status == 0) {
        r->headers_out.status = NGX_HTTP_OK;
    }

    ngx_int_t rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, body);
}


namespace {

/* Nothing but the page's own script and style, and its own server. */
ngx_str_t
policy(ngx_pool_t *pool)
{
    static source_hash script;
    static source_hash style;
    static bool known = hash_of(between("<script>", "</script>"), script)
                        && hash_of(between("<style>", "</style>"), style);

    if (!known) {
        return ngx_null_string;
    }

    return format(pool, 512,
                  "default-src 'none'; script-src '%*s'; style-src '%*s'; "
                  "connect-src 'self'; img-src data:; base-uri 'none'; "
                  "form-action 'none'; frame-ancestors 'none'",
                  script.length, script.text, style.length, style.text);
}


std::string_view
between(std::string_view start, std::string_view end)
{
    std::size_t from = page.find(start) + start.size();

    return page.substr(from, page.find(end, from) - from);
}


bool
hash_of(std::string_view source, source_hash &out)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    ngx_str_t raw;
    ngx_str_t encoded;

    if (EVP_Digest(source.data(), source.size(), digest, &size, EVP_sha256(),
                   nullptr)
        != 1)
    {
        return false;
    }

    u_char *p = ngx_cpymem(out.text, "sha256-", 7);

    raw = {size, digest};
    encoded = {0, p};
    ngx_encode_base64(&encoded, &raw);
    out.length = 7 + encoded.len;

    return true;
}

}

}
