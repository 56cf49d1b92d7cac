# Ways around the gate that nginx offers inside itself: error pages, redirects
# by the application, subrequests. None may hand a request on a second time.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

my ($minor) = `$ENV{TEST_NGINX_BINARY} -v 2>&1` =~ m{/1\.(\d+)};
our $knows_interim = $minor >= 29;

run_tests();

__DATA__

=== TEST 1: a named error page that rewrites the URI and passes on is not entered
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
        error_page 502 504 = @break;
    }
    location @break {
        rewrite ^ /v2/pay break;
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 2: a named error page that rewrites to another location is not entered
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
        error_page 502 504 = @last;
    }
    location @last {
        rewrite ^ /app last;
    }
    location /app {
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 3: an unknown outcome is not run by an error page
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
        error_page 409 = @again;
    }
    location @again {
        proxy_set_header X-Behaviour "";
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 4: a refused GET gets no replay from a page at a URI
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    recursive_error_pages on;
    idempotency_methods GET;
    location /private {
        deny all;
        error_page 403 = /public;
        proxy_pass http://pair;
    }
    location /public {
        proxy_set_header X-Execute 1;
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /public  => 201 run 1
GET /private => 201 run 2
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 5: a service that the application named has no named fallback either
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
    }
    location @service {
        proxy_set_header X-Behaviour $http_x_inner;
        proxy_pass http://pair;
        error_page 502 504 = @spare;
    }
    location @spare {
        proxy_set_header X-Behaviour "";
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=200&h=X-Accel-Redirect:@service | X-Inner: die=before => 502
POST /x => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 6: the status of a service that the application named is its own
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
    }
    location @service {
        proxy_set_header X-Behaviour $http_x_inner;
        proxy_pass http://pair;
        error_page 502 504 = @spare;
    }
    location @spare {
        proxy_set_header X-Behaviour "";
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=200&h=X-Accel-Redirect:@service | X-Inner: status=500 => 500 run 2
POST /x => 201 run 3
--- executions: 3



=== TEST 7: a service that cannot be reached leaves the outcome unknown
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
    }
    location @refused {
        proxy_pass http://127.0.0.1:$TEST_NGINX_CLOSED_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=200&h=X-Accel-Redirect:@refused => 502
POST /x                                             => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 8: peers that were asked before the gate do not count
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency off;
        proxy_pass http://pair;
    }
    location @refused {
        proxy_pass http://127.0.0.1:$TEST_NGINX_CLOSED_PORT;
    }
    location @again {
        proxy_set_header X-Behaviour "";
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=200&h=X-Accel-Redirect:@refused => 502
POST /x | do=status=200&h=X-Accel-Redirect:@again   => 201 run 3
--- no_error_log
[alert]
[crit]
--- executions: 3



=== TEST 9: the word of an application whose answer was intercepted counts
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_intercept_errors on;
        error_page 500 /oops;
        proxy_pass http://pair;
    }
    location = /oops {
        return 500 "sorry";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=500&h=X-Accel-Idempotency:discard => 500
POST /x                                               => 409 response_not_kept
--- response_body_like eval
["^sorry\$", ""]
--- executions: 1



=== TEST 10: an interim answer is unknown where nginx, before 1.29, takes it for the last one
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange eval
$::knows_interim ? <<'NEW' : <<'OLD'
POST /x | do=early=1 => 201 run 1
POST /x              => 201 replay of 1
NEW
POST /x | do=early=1 => 103
POST /x              => 409 outcome_unknown
OLD
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 11: post_action runs as ever
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
        post_action /note;
    }
    location /note {
        idempotency off;
        internal;
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=200 => 200 run 1
--- executions: 2



=== TEST 12: an error page in words of JSON-RPC does not free the key
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_jsonrpc on;
        proxy_intercept_errors on;
        error_page 504 =200 /rpc-error;
        proxy_pass http://pair;
    }
    location = /rpc-error {
        default_type application/json;
        return 200 '{"jsonrpc":"2.0","error":{"code":1,"message":"x"},"id":1}';
    }
--- more_headers
Idempotency-Key: k
Content-Type: application/json
--- exchange
POST /x | body={"method":"pay","id":1} | do=status=504 => 200
POST /x | body={"method":"pay","id":1} => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 13: what the application said counts over further redirects
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://pair;
    }
    location /hop {
        proxy_set_header X-Behaviour $http_x_inner;
        proxy_pass http://pair;
    }
    location = /end {
        return 200 "secret";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=200&h=X-Accel-Idempotency:discard&h=X-Accel-Redirect:/hop | X-Inner: status=200&h=X-Accel-Redirect:/end => 200
POST /x => 409 response_not_kept
--- response_body_like eval
["^secret\$", ""]
--- executions: 1



=== TEST 14: an error page that breaks off is not replayed
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_ttl 4xx 1h;
        proxy_intercept_errors on;
        error_page 410 /broken;
        proxy_pass http://pair;
    }
    location /broken {
        proxy_set_header X-Behaviour "truncate=1&size=1000";
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=410 => 502
POST /x                 => 409 response_not_kept
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 15: a key of an unprotected method is seen behind a source in the body
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/key header:Idempotency-Key;
        idempotency_strict_methods on;
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /x | body={"amount":1} => 400 key_not_supported
--- executions: 0



=== TEST 16: a write by a subrequest that got no answer is unknown
--- lua
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        content_by_lua_block {
            ngx.req.read_body()
            local res = ngx.location.capture("/sub",
                { method = ngx.HTTP_PUT, always_forward_body = true })
            ngx.exit(500)
        }
    }
    location /sub {
        internal;
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PUT /x | do=die=before => 500
PUT /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 17: a write by a subrequest goes to one peer
--- lua
--- http_config
    upstream pair {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        content_by_lua_block {
            ngx.req.read_body()
            local res = ngx.location.capture("/sub",
                { method = ngx.HTTP_PUT, always_forward_body = true })
            ngx.status = res.status
            ngx.print(res.body)
        }
    }
    location /sub {
        internal;
        proxy_pass http://pair;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PUT /x | do=die=before => 502
PUT /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1
