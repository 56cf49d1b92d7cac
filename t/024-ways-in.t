# Ways into a location that its URL and its name do not tell: an if in it, and
# a handler that has changed the method.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: whom the rules of an if refused gets no replay without it
--- config
    idempotency on;
    idempotency_scope none;
    location /pay {
        if ($cookie_beta) {
            access_by_lua_block { if not ngx.var.http_x_user then ngx.exit(401) end }
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /pay | Cookie: beta=1               => 401
POST /pay | Cookie: beta=1 | X-User: ann => 201 run 1
POST /pay | Cookie: beta=1               => 401
POST /pay                                => 422 key_reused
POST /pay | Cookie: beta=1 | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 2: two ifs of one location, and one in another
--- config
    idempotency on;
    idempotency_scope none;
    location /pay {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        if ($cookie_beta = one) { set $way 1; }
        if ($cookie_beta = two) { set $way 2; }
        if ($cookie_beta ~ .) {
            set $way 3;
        }
    }
    location /two {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        if ($cookie_beta = one) { set $way 1; }
        if ($cookie_beta = two) { set $way 2; }
    }
--- exchange
POST /two | Idempotency-Key: a | Cookie: beta=one => 201 run 1
POST /two | Idempotency-Key: a | Cookie: beta=two => 422 key_reused
POST /two | Idempotency-Key: a                    => 422 key_reused
POST /two | Idempotency-Key: a | Cookie: beta=one => 201 replay of 1
POST /pay | Idempotency-Key: b | Cookie: beta=one => 201 run 2
POST /pay | Idempotency-Key: b | Cookie: beta=two => 201 replay of 2
POST /pay | Idempotency-Key: b                    => 422 key_reused
--- executions: 2



=== TEST 3: the rules of an if in a location that a run was sent on to
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("/inner/pay") } }
    location /named { content_by_lua_block { ngx.exec("@secret") } }
    location /inner/ {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        if ($cookie_beta) {
            access_by_lua_block { if not ngx.var.http_x_user then ngx.exit(401) end }
        }
    }
    location @secret {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        if ($cookie_beta) {
            access_by_lua_block { if not ngx.var.http_x_user then ngx.exit(401) end }
        }
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | Cookie: beta=1 | X-User: ann     => 201 run 1
POST /x | Cookie: beta=1                   => 401
POST /x                                    => 409 response_not_kept
POST /x | Cookie: beta=1 | X-User: ann     => 201 replay of 1
POST /named | Cookie: beta=1 | X-User: ann => 201 run 2
POST /named | Cookie: beta=1               => 401
POST /named                                => 409 response_not_kept
POST /named | Cookie: beta=1 | X-User: ann => 201 replay of 2
--- executions: 2



=== TEST 4: a named location with a limit_except is a named one
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("@app") } }
    location @app {
        limit_except GET { allow 127.0.0.1; deny all; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- executions: 1



=== TEST 5: an if in a named location does not send a protected GET once more
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_methods GET;
    proxy_set_header X-Execute 1;
    location / {
        error_page 502 = @backup;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @backup {
        if ($http_x_user) {
            rewrite ^ /other break;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
X-User: ann
--- exchange
GET /x | do=die=before => 502
GET /x                 => 409 outcome_unknown
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 6: a handler that changes the method and sends the request on
--- http_config
    upstream two {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        content_by_lua_block {
            ngx.req.set_method(ngx.HTTP_PUT)
            ngx.exec("@app")
        }
    }
    location @app { proxy_pass http://two; }
--- lua
--- exchange
POST /x | Idempotency-Key: a                 => 201 run 1
POST /x | Idempotency-Key: a                 => 409 response_not_kept
POST /x | Idempotency-Key: b | do=die=before => 502
POST /x | Idempotency-Key: b                 => 409 outcome_unknown
POST /x | Idempotency-Key: c | do=status=422 => 422 run 3
POST /x | Idempotency-Key: c                 => 201 run 4
--- executions: 4
--- no_error_log
[alert]
[crit]



=== TEST 7: a named location that changes the method does not run what was sent or refused
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 502 409 422 = @other;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @other {
        rewrite_by_lua_block { ngx.req.set_method(ngx.HTTP_PUT) }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
POST /x | body=other    => 422 key_reused
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 8: nor does one for those who are refused on the way to their response
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("@secret") } }
    location @secret {
        error_page 401 = @login;
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @login {
        rewrite_by_lua_block { ngx.req.set_method(ngx.HTTP_PUT) }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 409 response_not_kept
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 9: a page whose proxy_method makes a write of it again
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 409 422 502 /again;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /variable {
        error_page 502 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /again {
        internal;
        proxy_method POST;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        proxy_method $request_method;
        proxy_set_header X-Behaviour "";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: a | do=die=before        => 502
POST /x | Idempotency-Key: a                        => 409 outcome_unknown
POST /x | Idempotency-Key: a | body=other           => 422 key_reused
POST /variable | Idempotency-Key: b | do=die=before => 502
POST /variable | Idempotency-Key: b                 => 409 outcome_unknown
--- executions: 2
--- no_error_log
[alert]
[crit]



=== TEST 10: such a page is the run where nobody was asked before
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 502 = /again;
        proxy_pass http://127.0.0.1:$TEST_NGINX_CLOSED_PORT;
    }
    location = /again {
        internal;
        proxy_method POST;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 409 response_not_kept
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 11: a subrequest that proxy_method makes a write of
--- http_config
    upstream two {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        content_by_lua_block {
            local r = ngx.location.capture("/app")
            ngx.status = r.status
            ngx.print(r.body)
        }
    }
    location /app {
        proxy_method POST;
        proxy_pass http://two;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 12: a page whose handler makes the request of it again
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 502 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        content_by_lua_block {
            ngx.req.set_method(ngx.HTTP_POST)
            ngx.req.set_header("X-Behaviour", "")
            ngx.exec("@app")
        }
    }
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
--- executions: 1
--- no_error_log
[alert]
[crit]
