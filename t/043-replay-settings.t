# What settings change about a replay: its mark, and what a cache has to do with
# it.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a replay is marked, and the run is not
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- executions: 1



=== TEST 2: idempotency_replay_header gives the mark another name
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_replay_header X-Seen-Before;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- request eval
["POST /x\nx", "POST /x\nx"]
--- error_code eval
[201, 201]
--- response_body eval
["{\"execution\":1}\n", "{\"execution\":1}\n"]
--- response_headers eval
["! X-Seen-Before\n! Idempotent-Replayed", "X-Seen-Before: true\n! Idempotent-Replayed"]
--- executions: 1



=== TEST 3: idempotency_replay_header off: a replay has the headers of the run and no other
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_replay_header off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- request eval
["POST /x\nx", "POST /x\nx"]
--- error_code eval
[201, 201]
--- response_body eval
["{\"execution\":1}\n", "{\"execution\":1}\n"]
--- raw_response_headers_like eval
my $head = CORE::join '\r\n', 'HTTP/1\.1 201 Created', 'Server: [^\r]+', 'Date: [^\r]+',
    'Content-Type: application/json', 'Content-Length: 16', 'Connection: close',
    'Location: /orders/1', 'X-Execution: 1', '';
[("^$head\\z") x 2]
--- executions: 1



=== TEST 4: GET and HEAD are not protected
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /run/x  => 201 run 1
GET /run/x  => 201 run 2
HEAD /run/x => 201 run 3
HEAD /run/x => 201 run 4
--- executions: 4



=== TEST 5: a record that is kept forever has no time at which it lapses
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_ttl forever;
        add_header X-Expires "$idempotency_expires" always;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- raw_response_headers_unlike eval
[qr/X-Expires: \d/, qr/X-Expires: \d/]
--- executions: 1



=== TEST 6: a write that the cache answers is an outcome like others
--- http_config
    proxy_cache_path cache keys_zone=answers:1m;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_cache answers;
        proxy_cache_methods GET HEAD POST;
        proxy_cache_key $uri;
        proxy_cache_valid any 1h;
        add_header X-Cache $upstream_cache_status;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- request eval
["POST /x\nx", "POST /x\nx", "POST /x\nx", "POST /x\nx"]
--- more_headers eval
["Idempotency-Key: a", "Idempotency-Key: b", "Idempotency-Key: b", "Idempotency-Key: a"]
--- error_code eval
[201, 201, 201, 201]
--- response_headers eval
["X-Cache: MISS\n! Idempotent-Replayed",
 "X-Cache: HIT\n! Idempotent-Replayed",
 "Idempotent-Replayed: true",
 "Idempotent-Replayed: true"]
--- response_body eval
["{\"execution\":1}\n", "{\"execution\":1}\n",
 "{\"execution\":1}\n", "{\"execution\":1}\n"]
--- executions: 1
