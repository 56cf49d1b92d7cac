#pragma once

#include "module/error_codes.h"
#include "ngx.h"

namespace idempotency {

struct location_conf;


/* A part of a body: text as it is, or one variable. */
struct body_part {
    ngx_http_complex_value_t value;
    bool variable;
};


/* A line of idempotency_error_body, for one of its codes. */
struct error_body {
    error_code code; /* none: any */
    ngx_str_t type;
    bool json; /* then the values of variables are escaped */
    std::span<body_part> parts;
};


/* Reads type and text.  False: it was told why not. */
bool compile_error_body(ngx_conf_t *cf, ngx_str_t &type, ngx_str_t &text,
                        error_body &body);

/* Null: the operator has none for this code. */
const error_body *find_error_body(const location_conf *conf, error_code code);

/* No data: no memory. */
ngx_str_t render(ngx_http_request_t *r, const error_body &body);

}
