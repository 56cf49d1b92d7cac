# What a client sees, as README.md tells it.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: the second request with the same key gets the stored answer
--- config
    location / {
        idempotency       on;
        idempotency_scope $http_authorization;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- request eval
["POST /orders\nitem=tea", "POST /orders\nitem=tea"]
--- more_headers
Authorization: Bearer one
Idempotency-Key: "order-1"
--- error_code eval
[201, 201]
--- response_headers eval
["! Idempotent-Replayed", "Idempotent-Replayed: true"]
--- response_body eval
["{\"execution\":1}\n", "{\"execution\":1}\n"]
--- executions: 1
--- no_error_log
[alert]
[error]



=== TEST 2: the same key with another body is refused
--- config
    location / {
        idempotency       on;
        idempotency_scope $http_authorization;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- request eval
["POST /orders\nitem=tea", "POST /orders\nitem=coffee"]
--- more_headers
Authorization: Bearer one
Idempotency-Key: "order-1"
--- error_code eval
[201, 422]
--- response_body_like eval
["execution", '"status":422,.*"code":"key_reused"']
--- executions: 1
--- no_error_log
[alert]
[error]



=== TEST 3: another caller's key is another key
--- config
    location / {
        idempotency       on;
        idempotency_scope $http_authorization;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- request eval
["POST /orders\nitem=tea", "POST /orders\nitem=tea"]
--- more_headers eval
["Authorization: Bearer one\nIdempotency-Key: k",
 "Authorization: Bearer two\nIdempotency-Key: k"]
--- error_code eval
[201, 201]
--- response_body eval
["{\"execution\":1}\n", "{\"execution\":2}\n"]
--- executions: 2
--- no_error_log
[alert]
[error]



=== TEST 4: without a key a request passes untouched
--- config
    location / {
        idempotency       on;
        idempotency_scope $http_authorization;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- request eval
["POST /orders\nitem=tea", "POST /orders\nitem=tea"]
--- more_headers
Authorization: Bearer one
--- error_code eval
[201, 201]
--- executions: 2
--- no_error_log
[alert]
[error]



=== TEST 5: the module does nothing where it is not switched on
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- request eval
["POST /orders\nitem=tea", "POST /orders\nitem=tea"]
--- more_headers
Idempotency-Key: "order-1"
--- error_code eval
[201, 201]
--- executions: 2
--- no_error_log
[alert]
[error]



=== TEST 6: a location that says nothing about its callers is not accepted
--- config
    location / {
        idempotency on; # here
        proxy_pass  http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
"idempotency_scope" is missing for location "/", where "idempotency" is switched on in nginx.conf:HERE: add a value that identifies the caller and stays the same in a retry, e.g. "idempotency_scope $remote_user;" or "idempotency_scope $http_x_api_key;", or write "idempotency_scope none;" if all callers share their keys
