# Refusals: what each says, how an operator may reshape it, and that it leaves no
# trace in the store.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: key_missing is a problem document with status 400
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 400 key_missing
--- response_headers eval
["X-Status: INVALID\nX-Error: key_missing\n! Retry-After\n! Link"]
--- executions: 0



=== TEST 2: key_invalid is a problem document with status 400
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: "unclosed => 400 key_invalid
--- response_headers eval
["X-Status: INVALID\nX-Error: key_invalid\n! Retry-After\n! Link"]
--- executions: 0



=== TEST 3: key_not_supported is a problem document with status 400
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        idempotency_strict_methods on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /x => 400 key_not_supported
--- response_headers eval
["X-Status: INVALID\nX-Error: key_not_supported\n! Retry-After\n! Link"]
--- executions: 0



=== TEST 4: scope_missing is a problem document with status 400
--- config
    idempotency on;
    idempotency_scope $http_authorization;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 400 scope_missing
--- response_headers eval
["X-Status: UNSCOPED\nX-Error: scope_missing\n! Retry-After\n! Link"]
--- executions: 0



=== TEST 5: outcome_unknown is a problem document with status 409
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- response_headers eval
["", "X-Status: UNKNOWN\nX-Error: outcome_unknown\n! Retry-After\n! Link"]
--- executions: 1



=== TEST 6: response_not_kept is a problem document with status 409
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        idempotency_max_response 100;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=size=200 => 201 run 1
POST /x               => 409 response_not_kept
--- response_headers eval
["", "X-Status: NOT_KEPT\nX-Error: response_not_kept\n! Retry-After\n! Link"]
--- executions: 1



=== TEST 7: key_reused is a problem document with status 422
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422 key_reused
--- response_headers eval
["", "X-Status: REUSED\nX-Error: key_reused\n! Retry-After\n! Link"]
--- executions: 1



=== TEST 8: idempotency_error gives a code another status
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error key_reused 409;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 409 key_reused
--- executions: 1



=== TEST 9: idempotency_error leaves other codes their status
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_error key_reused 409;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 400 key_missing
--- executions: 0



=== TEST 10: idempotency_docs is the type of a refusal and linked from it, not from a replay
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_docs https://docs.example/keys;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422 key_reused
POST /x                => 201 replay of 1
--- response_headers eval
["! Link", 'Link: <https://docs.example/keys>; rel="describedby"', "! Link"]
--- response_body_like eval
["", '"type":"https://docs.example/keys"', ""]
--- executions: 1



=== TEST 11: error_page to a URI reshapes a refusal
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        error_page 400 409 422 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        return 200 "page for $idempotency_error";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422
POST /x                => 201 replay of 1
--- response_headers eval
["! X-Error", "X-Error: key_reused", "! X-Error"]
--- response_body_like eval
["", "^page for key_reused\$", ""]
--- executions: 1



=== TEST 12: error_page to a named location reshapes a refusal
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        error_page 400 409 422 @page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @page {
        return 200 "page for $idempotency_error";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422
POST /x                => 201 replay of 1
--- response_headers eval
["! X-Error", "X-Error: key_reused", "! X-Error"]
--- response_body_like eval
["", "^page for key_reused\$", ""]
--- executions: 1



=== TEST 13: error_page to a URI with another status reshapes a refusal
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        error_page 400 409 422 =418 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        return 200 "page for $idempotency_error";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 418
POST /x                => 201 replay of 1
--- response_headers eval
["! X-Error", "X-Error: key_reused", "! X-Error"]
--- response_body_like eval
["", "^page for key_reused\$", ""]
--- executions: 1



=== TEST 14: error_page to a proxied location reshapes a refusal
--- config
    idempotency on;
    idempotency_scope none;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;
    location / {
        error_page 400 409 422 /errors/page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /errors/ {
        internal;
        proxy_set_header X-Behaviour "status=200&body=$idempotency_error";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422
POST /x                => 201 replay of 1
--- response_headers eval
["! X-Error", "X-Error: key_reused", "! X-Error"]
--- response_body_like eval
["", "^key_reused\$", ""]
--- executions: 1



=== TEST 15: error_page for other statuses leaves a refusal alone
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 500 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page {
        internal;
        return 200 "page for $idempotency_error";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422 key_reused
--- executions: 1



=== TEST 16: a reused key leaves the stored response as it was
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                => 201 run 1
POST /x | body=another => 422 key_reused
POST /x | body=another => 422 key_reused
POST /x                => 201 replay of 1
--- executions: 1



=== TEST 17: outcome_unknown is answered again and again
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502
POST /x                 => 409 outcome_unknown
POST /x                 => 409 outcome_unknown
POST /x                 => 409 outcome_unknown
POST /x | body=another  => 422 key_reused
POST /x                 => 409 outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 18: response_not_kept is answered again and again
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_max_response 100;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=size=200  => 201 run 1
POST /x                => 409 response_not_kept
POST /x                => 409 response_not_kept
POST /x                => 409 response_not_kept
POST /x | body=another => 422 key_reused
POST /x                => 409 response_not_kept
--- executions: 1



=== TEST 19: a refused scope does not take the key
--- config
    idempotency on;
    location / {
        idempotency_scope $http_authorization;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                           => 400 scope_missing
POST /x | Authorization: Bearer a => 201 run 1
--- executions: 1



=== TEST 20: a refused method does not take the key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_strict_methods on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /x  => 400 key_not_supported
POST /x => 201 run 1
--- executions: 1
