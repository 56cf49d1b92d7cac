# Which record a request meets does not depend on the way by which it came.
# But what came by another way is another request: it gets no replay, and it
# does not run beside the first one.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a try over the limit that ran on the spare does not run again on the main one
--- http_config
    limit_req_zone $http_x_limit zone=one:1m rate=1r/m;
    limit_req_log_level info;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        limit_req zone=one;
        limit_req_status 429;
        error_page 429 = @spare;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @spare { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- exchange
POST /x | Idempotency-Key: a | X-Limit: one => 201 run 1
POST /x | Idempotency-Key: b | X-Limit: one => 201 run 2
POST /x | Idempotency-Key: b | X-Limit: two => 422 key_reused, REUSED key_reused
POST /x | Idempotency-Key: b | X-Limit: one => 201 replay of 2
POST /x | Idempotency-Key: a | X-Limit: one => 422 key_reused
--- executions: 2



=== TEST 2: whom a rewrite led past the rules gets no replay
--- config
    idempotency on;
    idempotency_scope none;
    location /pay {
        if ($cookie_beta) { rewrite ^ /beta/pay last; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /beta/ {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- user_files
>>> users
ann:{PLAIN}secret
--- more_headers
Idempotency-Key: k
--- exchange
POST /pay | Cookie: beta=1                                         => 401
POST /pay | Cookie: beta=1 | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /pay | Cookie: beta=1                                         => 401
POST /pay                                                          => 422 key_reused
POST /pay | Cookie: beta=1 | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 3: a rewrite of the server
--- config
    idempotency on;
    idempotency_scope none;
    if ($cookie_beta) { rewrite ^/pay /beta/pay; }
    location /pay { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /beta/ {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /pay | Cookie: beta=1 | X-User: ann => 201 run 1
POST /pay | Cookie: beta=1               => 401
POST /pay                                => 422 key_reused
POST /pay | Cookie: beta=1 | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 4: access_by_lua with ngx.exec
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        access_by_lua_block {
            if not ngx.var.http_x_user then return ngx.exec("@guest") end
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @guest { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 422 key_reused
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 5: ngx.req.set_uri in the rewrite phase and in that of the server
--- config
    idempotency on;
    idempotency_scope none;
    server_rewrite_by_lua_block {
        if ngx.var.cookie_server then ngx.req.set_uri("/beta/pay", false) end
    }
    location /pay {
        rewrite_by_lua_block {
            if ngx.var.cookie_beta then ngx.req.set_uri("/beta/pay", true) end
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /beta/ { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- exchange
POST /pay | Idempotency-Key: a | Cookie: beta=1   => 201 run 1
POST /pay | Idempotency-Key: a                    => 422 key_reused
POST /pay | Idempotency-Key: b | Cookie: server=1 => 201 run 2
POST /pay | Idempotency-Key: b                    => 422 key_reused
POST /pay | Idempotency-Key: b | Cookie: server=1 => 201 replay of 2
--- executions: 2



=== TEST 6: two named locations, and a location of the same name that is none
--- config
    idempotency on;
    idempotency_scope none;
    location /x {
        error_page 418 = @one;
        error_page 419 = @two;
        error_page 420 = /three;
        if ($http_x_way = 1) { return 418; }
        if ($http_x_way = 2) { return 419; }
        if ($http_x_way = 3) { rewrite ^ /three last; }
        if ($http_x_way = 4) { rewrite ^ /exact last; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @one { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location @two { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /three { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location = /exact { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-Way: 1 => 201 run 1
POST /x | X-Way: 2 => 422 key_reused
POST /x | X-Way: 3 => 422 key_reused
POST /x | X-Way: 4 => 422 key_reused
POST /x            => 422 key_reused
POST /x | X-Way: 1 => 201 replay of 1
--- executions: 1



=== TEST 7: try_files is a way like any other
--- config
    idempotency on;
    idempotency_scope none;
    location / { try_files $uri @app; }
    location @app {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 8: who is sent to a page because he was refused gets no replay, and keeps nobody from his key for good
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        recursive_error_pages on;
        error_page 401 = @login;
        auth_request /auth;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /auth {
        internal;
        if ($http_x_user = "") { return 401; }
        return 204;
    }
    location @login { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- exchange
POST /x | Idempotency-Key: a | X-User: ann                     => 201 run 1
POST /x | Idempotency-Key: a                                   => 422 key_reused
POST /x | Idempotency-Key: b | do=status=401                   => 401 run 2
POST /x | Idempotency-Key: b | X-User: ann                     => 201 run 3
--- executions: 3



=== TEST 9: a scope with an empty value is no scope
--- config
    idempotency on;
    idempotency_scope $host $http_authorization;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /required {
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                            => 201 run 1, UNSCOPED
POST /x                            => 201 run 2, UNSCOPED
POST /x | Authorization: Bearer a  => 201 run 3, NEW
POST /x | Authorization: Bearer a  => 201 replay of 3, REPLAY
POST /required                     => 400 scope_missing, UNSCOPED scope_missing
--- executions: 3
--- log_lines
1 \[warn\] .* runs unprotected, because a value of "idempotency_scope" is empty



=== TEST 10: some parts of the route
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_scope_route host path;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /method/ {
        idempotency_scope_route method;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
PUT /x                 => 422 key_reused
POST /y                => 201 run 2
POST /x | Host: b.test => 201 run 3
POST /%78              => 201 run 4
POST /method/x         => 201 run 5
POST /method/y         => 422 key_reused
PUT /method/x          => 201 run 6
--- executions: 6



=== TEST 11: a part of the route that there is not
--- config
    idempotency_scope_route host scheme;
--- must_die
--- emerg
invalid value "scheme" in "idempotency_scope_route" directive, write "on", "off", or one or more of "host", "port", "method", "path"



=== TEST 12: on is not a part
--- config
    idempotency_scope_route on path;
--- must_die
--- emerg
invalid value "on" in "idempotency_scope_route" directive, write "on", "off", or one or more of "host", "port", "method", "path"



=== TEST 13: a part twice
--- config
    idempotency_scope_route path path;
--- must_die
--- emerg
duplicate part "path" in "idempotency_scope_route" directive



=== TEST 14: the directive twice
--- config
    idempotency_scope_route path;
    idempotency_scope_route off;
--- must_die
--- emerg
"idempotency_scope_route" directive is duplicate



=== TEST 15: $idempotency_id names the record
--- config
    idempotency on;
    idempotency_scope $http_x_user;
    add_header X-Id "[$idempotency_id]" always;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /fixed {
        idempotency_scope_route method path;
        idempotency_key header:Idempotency-Key json:/key;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /fixed | X-User: alice | Idempotency-Key: k-1              => 201 run 1
POST /fixed | X-User: alice | Idempotency-Key: k-1              => 201 replay of 1
POST /fixed | X-User: alice | Idempotency-Key: k-1 | body=other => 422 key_reused
POST /fixed | X-User: alice | Content-Type: application/json | body={"key":"k-1"} => 422 key_reused
POST /x | X-User: alice                                         => 201 run 2
POST /x | Idempotency-Key: k-1                                  => 201 run 3
--- response_headers eval
# As Python's hashlib makes it, see t/unit/key.cpp.
[('X-Id: [c77ca5e9248bf95b56b19131c12932c2]') x 4, ('X-Id: []') x 2]
--- executions: 3
