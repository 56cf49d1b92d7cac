# Where a key comes from, what happens without one, and which methods take one.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: the first source that is present decides
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-First: a                            => 201 run 1
POST /x | X-First: a | X-Second: b | X-Third: c => 201 replay of 1
--- executions: 1



=== TEST 2: all sources name the same keys
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: a => 201 run 1
POST /x | X-Third: a  => 201 replay of 1
--- executions: 1



=== TEST 3: an empty variable is not present
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Third: a             => 201 run 1
POST /x | X-Second: | X-Third: a => 201 replay of 1
--- executions: 1



=== TEST 4: sources behind the first that is present do not matter
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-First: a | X-Third: c => 201 run 1
POST /x | X-First: b | X-Third: c => 201 run 2
--- executions: 2



=== TEST 5: an empty header is present
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-First: | X-Third: c => 400 key_invalid
--- executions: 0



=== TEST 6: a malformed header is present
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-First: a b | X-Third: c => 400 key_invalid
--- executions: 0



=== TEST 7: a header sent twice is present
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-First: a | X-First: a | X-Third: c => 400 key_invalid
--- executions: 0



=== TEST 8: a header that is no source is no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: a => 201 run 1, -
POST /x | Idempotency-Key: a => 201 run 2, -
--- executions: 2



=== TEST 9: a variable is taken as it is
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: a b  => 201 run 1
POST /x | X-First: "a b" => 201 replay of 1
--- executions: 1



=== TEST 10: quotes in a variable belong to the key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: ab   => 201 run 1
POST /x | X-Second: "ab" => 201 run 2
--- executions: 2



=== TEST 11: a variable with a letter beyond ASCII is no good key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: café => 400 key_invalid
--- executions: 0



=== TEST 12: a variable that is too long is no good key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key header:X-First $http_x_second header:X-Third;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk => 400 key_invalid
--- executions: 0



=== TEST 13: a source may be made of several variables
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key "$http_x_first$http_x_second";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-First: ab              => 201 run 1
POST /x | X-First: a | X-Second: b => 201 replay of 1
--- executions: 1



=== TEST 14: without a key a request passes untouched
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 201 run 1, -
POST /x => 201 run 2, -
--- executions: 2



=== TEST 15: where a key is required a request without one is refused
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_required on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x => 400 key_missing
--- executions: 0



=== TEST 16: where a key is required an empty variable is none
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_required on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: => 400 key_missing
--- executions: 0



=== TEST 17: a required key may come from any source
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_required on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | X-Second: a => 201 run 1
POST /x | X-Second: a => 201 replay of 1
--- executions: 1



=== TEST 18: no key is required of another method
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_required on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
GET /x | X-Execute: 1 => 201 run 1, -
GET /x | X-Execute: 1 => 201 run 2, -
--- executions: 2



=== TEST 19: POST is protected
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



=== TEST 20: PUT is protected
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PUT /x => 201 run 1
PUT /x => 201 replay of 1
--- executions: 1



=== TEST 21: PATCH is protected
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PATCH /x => 201 run 1
PATCH /x => 201 replay of 1
--- executions: 1



=== TEST 22: DELETE is protected
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
DELETE /x => 201 run 1
DELETE /x => 201 replay of 1
--- executions: 1



=== TEST 23: a key on GET means nothing
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /x | X-Execute: 1 => 201 run 1, -
GET /x | X-Execute: 1 => 201 run 2, -
--- executions: 2



=== TEST 24: a key on OPTIONS means nothing
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
OPTIONS /x | X-Execute: 1 => 201 run 1, -
OPTIONS /x | X-Execute: 1 => 201 run 2, -
--- executions: 2



=== TEST 25: a key on PROPFIND means nothing
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PROPFIND /x | X-Execute: 1 => 201 run 1, -
PROPFIND /x | X-Execute: 1 => 201 run 2, -
--- executions: 2



=== TEST 26: a key on PURGE means nothing
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PURGE /x | X-Execute: 1 => 201 run 1, -
PURGE /x | X-Execute: 1 => 201 run 2, -
--- executions: 2



=== TEST 27: a malformed key on GET means nothing either
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
GET /x | X-Execute: 1 | Idempotency-Key: " => 201 run 1, -
GET /x | X-Execute: 1 | Idempotency-Key: " => 201 run 2, -
--- executions: 2



=== TEST 28: GET is protected where idempotency_methods names it
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_methods GET PURGE;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
GET /x | X-Execute: 1 => 201 run 1
GET /x | X-Execute: 1 => 201 replay of 1
--- executions: 1



=== TEST 29: PURGE is protected where idempotency_methods names it
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_methods GET PURGE;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
PURGE /x | X-Execute: 1 => 201 run 1
PURGE /x | X-Execute: 1 => 201 replay of 1
--- executions: 1



=== TEST 30: idempotency_methods replaces the default
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_methods GET PURGE;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1, -
POST /x => 201 run 2, -
--- executions: 2



=== TEST 31: idempotency_strict_methods refuses a key on GET
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_strict_methods on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
GET /x | Idempotency-Key: k => 400 key_not_supported
--- executions: 0



=== TEST 32: idempotency_strict_methods refuses a key whatever its source
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_strict_methods on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
OPTIONS /x | X-Second: k => 400 key_not_supported
--- executions: 0



=== TEST 33: idempotency_strict_methods lets a GET without a key pass
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_strict_methods on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
GET /x | X-Execute: 1 => 201 run 1, -
GET /x | X-Execute: 1 => 201 run 2, -
--- executions: 2



=== TEST 34: idempotency_strict_methods takes an empty variable for no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_strict_methods on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
GET /x | X-Execute: 1 | X-Second: => 201 run 1, -
GET /x | X-Execute: 1 | X-Second: => 201 run 2, -
--- executions: 2



=== TEST 35: idempotency_strict_methods leaves a key on POST alone
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_strict_methods on;
        idempotency_key header:Idempotency-Key $http_x_second;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: k => 201 run 1
POST /x | Idempotency-Key: k => 201 replay of 1
--- executions: 1



=== TEST 36: a key is found in JSON that has no canonical form
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/requestId;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Content-Type: application/json | body={"requestId":"k1","note":"thanks \ud83d"} => 201 run 1
POST /x | Content-Type: application/json | body={"requestId":"k1","note":"thanks \ud83d"} => 201 replay of 1
POST /x | Content-Type: application/json | body={"requestId":"k2","a":1,"a":2} => 201 run 2
POST /x | Content-Type: application/json | body={"requestId":"k2","a":1,"a":2} => 201 replay of 2
POST /x | Content-Type: application/json | body={"requestId":"k3","a":1e1234567890123456789} => 201 run 3
POST /x | Content-Type: application/json | body={"requestId":"k3","a":1e1234567890123456789} => 201 replay of 3
--- executions: 3



=== TEST 37: JSON whose key is not certain is refused
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/requestId;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Content-Type: application/json | body={"requestId":"k1","requestId":"k1"} => 400 key_invalid, INVALID key_invalid
POST /x | Content-Type: application/json | body={"a":[1},"requestId":"k1"} => 400 key_invalid
POST /x | Content-Type: application/json | body={"a":1 => 400 key_invalid
POST /x | Content-Type: application/json | Content-Encoding: gzip | body={"requestId":"k1"} => 400 key_invalid
--- executions: 0



=== TEST 38: complete JSON without the member has no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/requestId;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Content-Type: application/json | body={"a":1} => 201 run 1, -
POST /x | Content-Type: application/json | body={"a":1} => 201 run 2, -
--- executions: 2



=== TEST 39: the types of AWS are JSON
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/ClientRequestToken;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Content-Type: application/x-amz-json-1.1 | body={"ClientRequestToken":"t"} => 201 run 1
POST /x | Content-Type: application/x-amz-json-1.1 | body={"ClientRequestToken":"t"} => 201 replay of 1
POST /x | Content-Type: text/json | body={ "ClientRequestToken":"t" } => 201 replay of 1
--- executions: 1



=== TEST 40: with a JSON source first, JSON that cannot be read is not made up for by a header
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_key json:/k header:Idempotency-Key;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Content-Type: application/json | Idempotency-Key: h | body={"k => 400 key_invalid
POST /x | Content-Type: application/json | Idempotency-Key: h | body={} => 201 run 1
POST /x | Content-Type: application/json | Idempotency-Key: h | body={} => 201 replay of 1
--- executions: 1
