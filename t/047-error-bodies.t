# Refusals in the words of the API: idempotency_error_body, and the variables
# that tell what there is to say.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a body for any code
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body any application/json '{"error":"$idempotency_error","status":$status}';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: k                => 201 run 1
POST /x | Idempotency-Key: k | body=another => 422
POST /x | Idempotency-Key: "                => 400
POST /x | Idempotency-Key: k                => 201 replay of 1
--- response_headers eval
["", "Content-Type: application/json", "Content-Type: application/json", ""]
--- response_body_like eval
["", '^\{"error":"key_reused","status":422}$', '^\{"error":"key_invalid","status":400}$', ""]
--- executions: 1



=== TEST 2: the body of a code is preferred to that of any, wherever it stands
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body key_missing key_reused text/plain "of its own";
        idempotency_error_body any text/plain "of any";
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x                                     => 400
POST /x | Idempotency-Key: "                => 400
POST /x | Idempotency-Key: k                => 201 run 1
POST /x | Idempotency-Key: k | body=another => 422
--- response_body_like eval
['^of its own\z', '^of any\z', "", '^of its own\z']
--- executions: 1



=== TEST 3: other codes keep their problem document
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body key_reused text/plain "another request";
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 400 key_missing
--- executions: 0



=== TEST 4: values are escaped where the type is JSON
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body any "application/vnd.api+json; charset=utf-8" '{"title":"${http_x_title}!"}';
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Title: a"b\c	d => 400
--- response_headers eval
["Content-Type: application/vnd.api+json; charset=utf-8"]
--- response_body_like eval
['^\{"title":"a\\\\"b\\\\\\\\c\\\\td!"}\z']
--- executions: 0



=== TEST 5: values are as they are where the type is another
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body any text/plain '$http_x_title';
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Title: a"b\c => 400
--- response_headers eval
["Content-Type: text/plain"]
--- response_body_like eval
['^a"b\\\\c\z']
--- executions: 0



=== TEST 6: a body may be empty
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body any text/plain "";
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 400
POST /x => 400
--- response_headers eval
["Content-Length: 0", "Content-Length: 0"]
--- response_body_like eval
['^\z', '^\z']
--- executions: 0



=== TEST 7: status, Link and Retry-After stay
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error key_reused 409;
        idempotency_docs https://docs.example/keys;
        idempotency_error_body any application/json '{"error":"$idempotency_error"}';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 409
--- response_headers eval
["", 'Link: <https://docs.example/keys>; rel="describedby"']
--- response_body_like eval
["", '^\{"error":"key_reused"}\z']
--- executions: 1



=== TEST 8: a body of its own is preferred to error_page, which still serves the application's and nginx's errors
--- config
    idempotency on;
    idempotency_scope none;
    error_page 400 404 422 /page;
    location / {
        idempotency_error_body any application/json '{"error":"$idempotency_error"}';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        return 200 "page";
    }
    location = /none {
        return 404;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422
POST /none             => 404
--- response_body_like eval
["", '^\{"error":"key_reused"}\z', '^page\z']
--- executions: 1



=== TEST 9: the detail is a sentence
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error_body any text/plain '$idempotency_error: $idempotency_error_detail';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422
--- response_body_like eval
["", '^key_reused: This idempotency key was already used for a different request\. Use a new key for a new request\.\z']
--- executions: 1



=== TEST 10: what became of a request whose response was not kept
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_max_response 100;
        idempotency_error_body response_not_kept application/json
            '{"status":$idempotency_original_status,"at":"$idempotency_original_location"}';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=size=200&h=Location:/orders/7 => 201 run 1
POST /x                                    => 409
--- response_body_like eval
["", '^\{"status":201,"at":"/orders/7"}\z']
--- executions: 1



=== TEST 11: details and originals are empty where there are none
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-All "[$idempotency_error_detail$idempotency_original_status$idempotency_original_location]" always;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- response_headers eval
["X-All: []", "X-All: []"]
--- executions: 1



=== TEST 12: the original's status and Location in an error page
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_max_response 100;
        error_page 409 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        return 200 "$idempotency_original_status $idempotency_original_location";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=size=200&h=Location:/orders/7 => 201 run 1
POST /x                                    => 409
--- response_body_like eval
["", '^201 /orders/7\z']
--- executions: 1



=== TEST 13: JSON-RPC calls get errors of their own protocol
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_required on;
    idempotency_error_body any text/plain "words";
    location / {
        idempotency_jsonrpc on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Content-Type: application/json
--- exchange
POST /x | body={"jsonrpc":"2.0","id":1,"method":"tools/call"} => 400
POST /x | body={"a":1}                                        => 400
--- response_headers eval
["Content-Type: application/json", "Content-Type: text/plain"]
--- response_body_like eval
['^\{"jsonrpc":"2.0","id":1,"error":', '^words\z']
--- executions: 0



=== TEST 14: a location's bodies replace all of those that it would inherit
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_required on;
    idempotency_error_body any text/plain "server";
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /own {
        idempotency_error_body key_reused text/plain "location";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x   => 400
POST /own => 400 key_missing
--- response_body_like eval
['^server\z', '']
--- executions: 0



=== TEST 15: captures of the location
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_required on;
    location ~ ^/api/(\w+) {
        idempotency_error_body any application/json '{"resource":"$1s"}';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /api/order => 400
--- response_body_like eval
['^\{"resource":"orders"}\z']
--- executions: 0
