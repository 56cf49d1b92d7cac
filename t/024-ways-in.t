# Ways into a location that its URL and its name do not tell: an if in it.

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


