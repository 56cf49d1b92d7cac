# Whose key it is, and on which route.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: two callers with the same key do not meet
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x | X-User: bob => 201 run 2
POST /x | X-User: ann => 201 replay of 1
POST /x | X-User: bob => 201 replay of 2
--- executions: 2



=== TEST 2: callers differ by case
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x | X-User: Ann => 201 run 2
POST /x | X-User: ann => 201 replay of 1
POST /x | X-User: Ann => 201 replay of 2
--- executions: 2



=== TEST 3: scope and key do not run into each other
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-User: ab | Idempotency-Key: c => 201 run 1
POST /x | X-User: a | Idempotency-Key: bc => 201 run 2
POST /x | X-User: ab | Idempotency-Key: c => 201 replay of 1
POST /x | X-User: a | Idempotency-Key: bc => 201 replay of 2
--- executions: 2



=== TEST 4: "ab" and "c" are not "a" and "bc"
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ab | X-Tenant: c => 201 run 1
POST /x | X-User: a | X-Tenant: bc => 201 run 2
POST /x | X-User: ab | X-Tenant: c => 201 replay of 1
POST /x | X-User: a | X-Tenant: bc => 201 replay of 2
--- executions: 2



=== TEST 5: "a", "bc" and an order: the place of a value counts
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ab | X-Tenant: c => 201 run 1
POST /x | X-User: c | X-Tenant: ab => 201 run 2
POST /x | X-User: ab | X-Tenant: c => 201 replay of 1
POST /x | X-User: c | X-Tenant: ab => 201 replay of 2
--- executions: 2



=== TEST 6: each value of a scope counts
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: a | X-Tenant: x => 201 run 1
POST /x | X-User: a | X-Tenant: y => 201 run 2
POST /x | X-User: a | X-Tenant: x => 201 replay of 1
POST /x | X-User: a | X-Tenant: y => 201 replay of 2
--- executions: 2



=== TEST 7: one value of two is not enough, whether the other is empty or not there
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: a             => 201 run 1, UNSCOPED
POST /x | X-User: a | X-Tenant: => 201 run 2, UNSCOPED
POST /x | X-User: | X-Tenant: a => 201 run 3, UNSCOPED
--- executions: 3



=== TEST 8: one value is not the same value twice
--- config
    idempotency on;
    idempotency_scope_route off;
    location / {
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /pair/ {
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /1 | X-User: a                    => 201 run 1
POST /pair/1 | X-User: a | X-Tenant: a => 201 run 2
POST /1 | X-User: a                    => 201 replay of 1
POST /pair/1 | X-User: a | X-Tenant: a => 201 replay of 2
--- executions: 2



=== TEST 9: a string of several variables is one value
--- config
    location / {
        idempotency on;
        idempotency_scope "$http_x_user@$http_x_tenant";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: a@b | X-Tenant: c => 201 run 1
POST /x | X-User: a | X-Tenant: b@c => 201 replay of 1
--- executions: 1



=== TEST 10: with the scope none all clients are one
--- config
    location / {
        idempotency on;
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x | X-User: bob => 201 replay of 1
--- executions: 1



=== TEST 11: a key that nobody owns is no key, which is logged as UNSCOPED and warned of once
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x           => 201 run 1, UNSCOPED
POST /x | X-User: => 201 run 2, UNSCOPED
POST /x           => 201 run 3, UNSCOPED
--- executions: 3
--- log_lines
1 \[warn\].*idempotency_scope.*empty



=== TEST 12: a key is nobody's where all values of the scope are empty
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: | X-Tenant: => 201 run 1
POST /x | X-User: | X-Tenant: => 201 run 2
--- executions: 2
--- log_lines
1 \[warn\].*idempotency_scope.*empty



=== TEST 13: a key that nobody owns is refused where a key is required
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 400 scope_missing, UNSCOPED scope_missing
--- executions: 0



=== TEST 14: a caller is known where a key is required
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: a => 201 run 1
POST /x | X-User: a => 201 replay of 1
--- executions: 1



=== TEST 15: none is a scope where a key is required
--- config
    location / {
        idempotency on;
        idempotency_scope none;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- executions: 1



=== TEST 16: another path is another record
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /1 | X-User: ann => 201 run 1
POST /2 | X-User: ann => 201 run 2
POST /1 | X-User: ann => 201 replay of 1
POST /2 | X-User: ann => 201 replay of 2
--- executions: 2



=== TEST 17: paths are taken undecoded: /a%2Fb is not /a/b
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /a%2Fb | X-User: ann => 201 run 1
POST /a/b | X-User: ann   => 201 run 2
POST /a%2Fb | X-User: ann => 201 replay of 1
POST /a/b | X-User: ann   => 201 replay of 2
--- executions: 2



=== TEST 18: paths are taken undecoded: /%61c is not /ac
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /%61c | X-User: ann => 201 run 1
POST /ac | X-User: ann   => 201 run 2
POST /%61c | X-User: ann => 201 replay of 1
POST /ac | X-User: ann   => 201 replay of 2
--- executions: 2



=== TEST 19: paths are taken as sent: /d//e is not /d/e
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /d//e | X-User: ann => 201 run 1
POST /d/e | X-User: ann  => 201 run 2
POST /d//e | X-User: ann => 201 replay of 1
POST /d/e | X-User: ann  => 201 replay of 2
--- executions: 2



=== TEST 20: another method is another record
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
PUT /x | X-User: ann  => 201 run 2
POST /x | X-User: ann => 201 replay of 1
PUT /x | X-User: ann  => 201 replay of 2
--- executions: 2



=== TEST 21: another host is another record
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann | Host: a.test => 201 run 1
POST /x | X-User: ann | Host: b.test => 201 run 2
POST /x | X-User: ann | Host: a.test => 201 replay of 1
POST /x | X-User: ann | Host: b.test => 201 replay of 2
--- executions: 2



=== TEST 22: hosts are the same whatever their case
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann | Host: a.test => 201 run 1
POST /x | X-User: ann | Host: A.Test => 201 replay of 1
--- executions: 1



=== TEST 23: a target in absolute form is the same route
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann | Host: localhost                 => 201 run 1
POST http://localhost/x | X-User: ann | Host: localhost => 201 replay of 1
--- executions: 1



=== TEST 24: other arguments do not make another record
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x?a=1 | X-User: ann => 201 run 1
POST /x?a=2 | X-User: ann => 422 key_reused
--- executions: 1



=== TEST 25: without the route another path is another request with the same key
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        idempotency_scope_route off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /p1 | X-User: ann => 201 run 1
POST /p2 | X-User: ann => 422 key_reused
POST /p1 | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 26: without the route another method is another request with the same key
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        idempotency_scope_route off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
PUT /x | X-User: ann  => 422 key_reused
--- executions: 1



=== TEST 27: without the route hosts do not matter
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        idempotency_scope_route off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann | Host: a.test => 201 run 1
POST /x | X-User: ann | Host: b.test => 201 replay of 1
--- executions: 1



=== TEST 28: without the route callers still do not meet
--- config
    location / {
        idempotency on;
        idempotency_scope $http_x_user;
        idempotency_scope_route off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x | X-User: bob => 201 run 2
POST /x | X-User: ann => 201 replay of 1
POST /x | X-User: bob => 201 replay of 2
--- executions: 2



=== TEST 29: with and without the route are two records
--- config
    idempotency on;
    idempotency_scope $http_x_user;
    location / {
        idempotency_scope_route off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /route/ {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann       => 201 run 1
POST /route/x | X-User: ann => 201 run 2
POST /x | X-User: ann       => 201 replay of 1
POST /route/x | X-User: ann => 201 replay of 2
--- executions: 2
