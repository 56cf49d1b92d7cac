# Requests that pass: idempotency_bypass, dry runs, and what $idempotency_status
# tells of each request.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: where the module is off nothing is told
--- config
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: k => 201 run 1, -
POST /x | Idempotency-Key: " => 201 run 2, -
--- executions: 2



=== TEST 2: a request without a key is told as none
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 201 run 1, -
--- executions: 1



=== TEST 3: a request with another method is told as none
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /x => 200, -
--- executions: 0



=== TEST 4: NEW is a run, REPLAY its replay
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, NEW
POST /x => 201 replay of 1, REPLAY
--- executions: 1



=== TEST 5: a released key is NEW again
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=400 => 400 run 1, NEW
POST /x                 => 201 run 2, NEW
--- executions: 2



=== TEST 6: REUSED is another request with the key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | body=x => 201 run 1, NEW
POST /x | body=y => 422 key_reused, REUSED key_reused
--- executions: 1



=== TEST 7: UNKNOWN is a retry of a run that got no answer
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502, NEW
POST /x                 => 409 outcome_unknown, UNKNOWN outcome_unknown
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 8: NOT_KEPT is a retry of a run whose response was too large
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_max_response 64k;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=size=70000 => 201 run 1, NEW
POST /x                 => 409 response_not_kept, NOT_KEPT response_not_kept
--- executions: 1



=== TEST 9: INVALID is a malformed key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: " => 400 key_invalid, INVALID key_invalid
--- executions: 0



=== TEST 10: any value of idempotency_bypass bypasses
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_bypass $http_x_one $http_x_two;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-One: a  => 201 run 1, BYPASS
POST /x | X-One: a  => 201 run 2, BYPASS
POST /x | X-Two: 00 => 201 run 3, BYPASS
--- executions: 3



=== TEST 11: "0" and the empty string do not bypass
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_bypass $http_x_one $http_x_two;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-One: 0 | X-Two: => 201 run 1, NEW
POST /x | X-One: | X-Two: 0 => 201 replay of 1, REPLAY
POST /x                     => 201 replay of 1, REPLAY
--- executions: 1



=== TEST 12: what bypasses leaves no record and meets none
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_bypass $http_x_one $http_x_two;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-One: 1          => 201 run 1, BYPASS
POST /x                     => 201 run 2, NEW
POST /x | X-One: 1          => 201 run 3, BYPASS
POST /x                     => 201 replay of 2, REPLAY
POST /x | X-Two: 1 | body=y => 201 run 4, BYPASS
--- executions: 4



=== TEST 13: what bypasses needs no good key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_required on;
        idempotency_bypass $http_x_one;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-One: 1 | Idempotency-Key: " => 201 run 1, BYPASS
POST /x | X-One: 1                      => 201 run 2, BYPASS
POST /x | X-One: 0 | Idempotency-Key: k => 201 run 3, NEW
POST /x                                 => 400 key_missing, INVALID key_missing
--- executions: 3



=== TEST 14: dry run: duplicates run, and each is logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, NEW
POST /x => 201 run 2, REPLAY
POST /x => 201 run 3, REPLAY
--- log_lines
2 dry run
--- no_error_log
[alert]
[crit]
--- executions: 3



=== TEST 15: dry run: another request with the key runs, and is logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | body=x => 201 run 1, NEW
POST /x | body=y => 201 run 2, REUSED key_reused
--- log_lines
1 dry run
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 16: dry run: retries of an unknown outcome run, and are logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502, NEW
POST /x                 => 201 run 2, UNKNOWN outcome_unknown
POST /x                 => 201 run 3, UNKNOWN outcome_unknown
--- log_lines
2 dry run
--- no_error_log
[alert]
[crit]
--- executions: 3



=== TEST 17: dry run: a retry of a response that was not kept runs, and is logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        idempotency_max_response 64k;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=size=70000 => 201 run 1, NEW
POST /x                 => 201 run 2, NOT_KEPT response_not_kept
--- log_lines
1 dry run
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 18: dry run: a released key is new again, and what is new is not logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=status=500 => 500 run 1, NEW
POST /x                 => 201 run 2, NEW
--- log_lines
0 dry run
--- executions: 2



=== TEST 19: dry run: malformed and long keys pass, and are logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: " => 201 run 1, INVALID key_invalid
POST /x | Idempotency-Key: kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk => 201 run 2, INVALID key_invalid
--- log_lines
2 dry run
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 20: dry run: a missing key and a key that is not supported pass, and are logged
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        idempotency_required on;
        idempotency_strict_methods on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x                         => 201 run 1, INVALID key_missing
OPTIONS /x | Idempotency-Key: k => 201 run 2, INVALID key_not_supported
--- log_lines
2 dry run
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 21: dry run: a key that nobody owns passes, and is logged
--- config
    idempotency on;
    location / {
        idempotency_dry_run on;
        idempotency_required on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, UNSCOPED scope_missing
--- log_lines
1 dry run
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 22: dry run: a request without a key is told as none
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 201 run 1, -
--- executions: 1



=== TEST 23: where the module is off nginx tries the next peer
--- http_config
    upstream two_peers {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency off;
        proxy_next_upstream error non_idempotent;
        proxy_pass http://two_peers;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502, -
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 24: dry run: nginx tries the next peer as ever
--- http_config
    upstream two_peers {
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    }
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_dry_run on;
        proxy_next_upstream error non_idempotent;
        proxy_pass http://two_peers;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | do=die=before => 502, NEW
--- no_error_log
[alert]
[crit]
--- executions: 2



=== TEST 25: dry run: its records are not those of real runs
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        if ($http_x_dry) {
            rewrite ^ /dry last;
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /dry {
        idempotency_dry_run on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- no_error_log
[alert]
[crit]
--- exchange
POST /x | X-Dry: 1             => 201 run 1, NEW
POST /x                        => 201 run 2, NEW
POST /x                        => 201 replay of 2, REPLAY
POST /x | X-Dry: 1             => 201 run 3, REPLAY
POST /x | X-Dry: 1 | body=else => 201 run 4, REUSED key_reused
--- executions: 4
