#include "module/status_page.h"

#include "module/headers.h"

namespace idempotency {

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

}
