# Which stores and scopes a configuration needs, and what nginx says without
# them.

use lib 't/lib';
use Store;

BEGIN { memory_only('about the configuration') }

use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a store of an unknown kind is refused, with the kinds there are
--- http_config
    idempotency_store a memcached:1m; # here
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
unknown store type "memcached:" in "idempotency_store" directive, write e.g. "memory:64m", "redis://127.0.0.1:6379", "rediss://host" or "redis+unix:/run/redis.sock" in nginx.conf:HERE



=== TEST 2: a store is defined in http only
--- config
    location / {
        idempotency_store a memory:1m; # here
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
"idempotency_store" directive is not allowed here in nginx.conf:HERE



=== TEST 3: a store that is nowhere defined is refused, with its place and the line to add
--- config
    location / {
        idempotency payments; # here
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
idempotency store "payments", used in nginx.conf:HERE, is not defined: add "idempotency_store payments memory:64m;" to http{}



=== TEST 4: a store cannot be a variable, and no line is advised that would be refused
--- config
    location / {
        idempotency $arg_store; # here
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
invalid value "$arg_store" in "idempotency" directive, it must be "on", "off" or the name of a store in nginx.conf:HERE



=== TEST 5: the embedded store needs no set-up
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



=== TEST 6: the embedded store can be given another size
--- http_config
    idempotency_store default memory:1m;
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



=== TEST 7: the embedded store can be given another size after its use
--- http_config
    server {
        listen $TEST_NGINX_SERVER_PORT;
        server_name other;
        idempotency on;
        idempotency_scope none;
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
    idempotency_store default memory:1m;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /y => 201 run 1
POST /y => 201 replay of 1
--- executions: 1



=== TEST 8: a store can be named before it is defined
--- http_config
    server {
        listen $TEST_NGINX_SERVER_PORT;
        server_name other;
        idempotency late;
        idempotency_scope none;
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
    idempotency_store late memory:32k;
--- config
    location / {
        idempotency late;
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- executions: 1



=== TEST 9: a store name is made of letters, digits, ".", "-" and "_"
--- http_config
    idempotency_store a.b-C_9 memory:1m;
--- config
    location / {
        idempotency a.b-C_9;
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- executions: 1



=== TEST 10: a store that nobody uses is accepted
--- http_config
    idempotency_store unused memory:1m;
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 11: a location uses the store that its nearest level names
--- http_config
    idempotency_store two memory:1m;
    idempotency on;
    idempotency_scope none;
    idempotency_scope_route off;
    server {
        listen $TEST_NGINX_SERVER_PORT;
        server_name one;
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
    server {
        listen $TEST_NGINX_SERVER_PORT;
        server_name two;
        idempotency two;
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
--- config
    idempotency off;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /own/ {
        idempotency two;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        location /own/nested/ { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
--- exchange
POST /x | Host: two | Idempotency-Key: http              => 201 run 1
POST /x | Host: one | Idempotency-Key: http              => 201 run 2
POST /x | Host: two | Idempotency-Key: server            => 201 run 3
POST /x | Idempotency-Key: server                        => 201 run 4
POST /own/x | Host: two | Idempotency-Key: location      => 201 run 5
POST /own/x | Idempotency-Key: location                  => 201 replay of 5
POST /own/nested/x | Host: two | Idempotency-Key: nested => 201 run 6
POST /own/nested/x | Idempotency-Key: nested             => 201 replay of 6
--- executions: 6



=== TEST 12: a location with a handler needs a scope
--- config
    location / {
        idempotency on; # here
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
"idempotency_scope" is missing for location "/", where "idempotency" is switched on in nginx.conf:HERE: add a value that identifies the caller and stays the same in a retry, e.g. "idempotency_scope $remote_user;" or "idempotency_scope $http_x_api_key;", or write "idempotency_scope none;" if all callers share their keys



=== TEST 13: idempotency on in http asks every location with a handler for a scope
--- http_config
    idempotency on; # here
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- must_die
--- emerg
"idempotency_scope" is missing for location "/", where "idempotency" is switched on in nginx.conf:HERE: add a value that identifies the caller and stays the same in a retry, e.g. "idempotency_scope $remote_user;" or "idempotency_scope $http_x_api_key;", or write "idempotency_scope none;" if all callers share their keys



=== TEST 14: idempotency on in server reaches nested locations
--- config
    idempotency on; # here
    location /a {
        location /a/b { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
--- must_die
--- emerg
"idempotency_scope" is missing for location "/a/b", where "idempotency" is switched on in nginx.conf:HERE: add a value that identifies the caller and stays the same in a retry, e.g. "idempotency_scope $remote_user;" or "idempotency_scope $http_x_api_key;", or write "idempotency_scope none;" if all callers share their keys



=== TEST 15: a named location with a handler needs a scope
--- config
    idempotency on; # here
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- must_die
--- emerg
"idempotency_scope" is missing for location "@app", where "idempotency" is switched on in nginx.conf:HERE: add a value that identifies the caller and stays the same in a retry, e.g. "idempotency_scope $remote_user;" or "idempotency_scope $http_x_api_key;", or write "idempotency_scope none;" if all callers share their keys



=== TEST 16: a location by regular expression needs a scope
--- config
    idempotency on; # here
    location ~ \.php$ { fastcgi_pass 127.0.0.1:1; }
--- must_die
--- emerg
"idempotency_scope" is missing for location "\.php$", where "idempotency" is switched on in nginx.conf:HERE: add a value that identifies the caller and stays the same in a retry, e.g. "idempotency_scope $remote_user;" or "idempotency_scope $http_x_api_key;", or write "idempotency_scope none;" if all callers share their keys



=== TEST 17: no scope is needed where no handler answers: return
--- config
    idempotency on;
    location = /none {
        return 204;
    }
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 18: no scope is needed where no handler answers: rewrite
--- config
    idempotency on;
    location = /none {
        rewrite ^ /b last;
    }
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 19: no scope is needed where no handler answers: try_files
--- config
    idempotency on;
    location = /none {
        try_files $uri @app;
    }
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 20: no scope is needed where no handler answers: root
--- config
    idempotency on;
    location = /none {
        root /tmp;
    }
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 21: no scope is needed where no handler answers: deny
--- config
    idempotency on;
    location = /none {
        deny all;
    }
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 22: no scope is needed where no handler answers: index
--- config
    idempotency on;
    location = /none {
        index index.html;
    }
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
--- executions: 1



=== TEST 23: no scope is needed where idempotency is off again
--- config
    idempotency on;
    location / {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 run 2
--- executions: 2



=== TEST 24: the scope may come from another level
--- http_config
    idempotency_scope $http_x_user;
--- config
    location / {
        idempotency on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
X-User: ann
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- executions: 1



=== TEST 25: without the directives nothing changes
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 run 2
--- executions: 2
