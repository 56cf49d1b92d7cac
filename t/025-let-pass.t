# What a location lets pass unprotected may come to another one that protects
# it, by an internal redirect.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a caller whom only the second location knows
--- config
    idempotency on;
    location / {
        idempotency_scope $http_x_none;
        error_page 502 = @spare;
        proxy_pass http://127.0.0.1:$TEST_NGINX_CLOSED_PORT;
    }
    location @spare {
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, NEW
POST /x => 201 replay of 1, REPLAY
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 2: a bypass of the first location alone
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_bypass 1;
        content_by_lua_block { ngx.exec("@app") }
    }
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, NEW
POST /x => 201 replay of 1, REPLAY
--- executions: 1



=== TEST 3: a bypass of both
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_bypass 1;
    location / { content_by_lua_block { ngx.exec("@app") } }
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, BYPASS
POST /x => 201 run 2, BYPASS
--- executions: 2



=== TEST 4: a key that is where only the second location looks, in a body that was read
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/other;
        content_by_lua_block { ngx.exec("@app") }
    }
    location @app {
        idempotency_key json:/id;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Content-Type: application/json
--- exchange
POST /x | body={"id":"k"}       => 201 run 1, NEW
POST /x | body={"id":"k"}       => 201 replay of 1, REPLAY
POST /x | body={"id":"k","a":1} => 422 key_reused, REUSED key_reused
POST /x | body={"no":"k"}       => 201 run 2
--- executions: 2



=== TEST 5: a dry run of the first location is one to its end
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        content_by_lua_block { ngx.exec("@app") }
    }
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, NEW
POST /x => 201 run 2, REPLAY
--- executions: 2
--- no_error_log
[alert]
[crit]



=== TEST 6: no key where one is required is refused by the second location
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/id;
        content_by_lua_block { ngx.exec("@app") }
    }
    location @app {
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Content-Type: application/json
--- exchange
POST /x | body={"id":1} => 400 key_invalid
POST /x | body={"no":1} => 400 key_missing
--- executions: 0



=== TEST 7: an error page for such a request is no request with a key
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_strict_methods on;
    proxy_intercept_errors on;
    location / {
        idempotency_bypass 1;
        error_page 500 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /page {
        proxy_set_header X-Behaviour "";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=500 => 500, BYPASS
--- executions: 1
