#pragma once

#include "module/config.h"
#include "ngx.h"

namespace idempotency {

struct context;


/* Whether "idempotency_methods" can name it without a warning. */
bool is_registered_method(std::string_view name);

/*
 * Whether the request changes nothing: a GET or a HEAD, which does not become
 * another method on its way to the upstream ("proxy_method").
 */
bool is_safe_method(ngx_http_request_t *r);

/* As nginx does with what it sends to the URI of an error page. */
bool has_become_get(const context &ctx);

/* Where "proxy_method" is kept is learnt from nginx's table of directives. */
void find_proxy_method(ngx_conf_t *cf, main_conf *main);

}
