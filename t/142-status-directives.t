# idempotency_status and idempotency_status_zone: where they may be, and what
# is refused.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a status location in a protected server needs no scope
--- config
    idempotency on;
    location = /status {
        idempotency_status json;
    }
--- request
GET /status
--- error_code: 200
--- response_body_like: ^\{"time":



=== TEST 2: a status location is there without any store
--- config
    location = /status {
        idempotency_status prometheus;
    }
--- request
GET /status
--- error_code: 200
--- response_body_like: ^# HELP nginx_idempotency_info [^\n]+\n# TYPE nginx_idempotency_info gauge\n\S+ 1\n



=== TEST 3: a zone is inherited, and a location may have another
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_status_zone api;
    location /a {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /b {
        idempotency_status_zone other;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /status {
        idempotency_status prometheus;
    }
--- more_headers
Idempotency-Key: k
--- request eval
["POST /a\nx", "POST /b\nx", "GET /status"]
--- error_code eval
[201, 201, 200]
--- response_body_like eval
['.', '.', qr/zone="api",status="NEW"\} 1\n(?s:.*)zone="other",status="NEW"\} 1\n/]



=== TEST 4: another form
--- config
    location = /status {
        idempotency_status xml;
    }
--- must_die
--- error_log
invalid value "xml" in "idempotency_status" directive, it must be "html" or "json" or "prometheus", or left out



=== TEST 5: twice
--- config
    location = /status {
        idempotency_status;
        idempotency_status json;
    }
--- must_die
--- error_log
"idempotency_status" directive is duplicate



=== TEST 6: a zone without a name
--- config
    idempotency_status_zone "";
--- must_die
--- error_log
empty name in "idempotency_status_zone" directive, write e.g. "payments"



=== TEST 7: two names of a zone
--- config
    idempotency_status_zone a;
    idempotency_status_zone b;
--- must_die
--- error_log
"idempotency_status_zone" directive is duplicate



=== TEST 8: a log level that there is not
--- config
    idempotency_log_level crit;
--- must_die
--- error_log
invalid value "crit" in "idempotency_log_level" directive, it must be "info" or "notice" or "warn" or "error"



=== TEST 9: two locations of administration in one
--- config
    location = /admin {
        idempotency_admin;
        idempotency_admin;
    }
--- must_die
--- error_log
"idempotency_admin" directive is duplicate
