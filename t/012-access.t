# The gate stands behind the whole of access control: whom that refuses gets
# no replay and claims no key.
#
# YW5uOnNlY3JldA== is ann:secret, YW5uOmd1ZXNz is ann:guess.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: whom auth_basic refuses gets no replay and claims no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOmd1ZXNz     => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOmd1ZXNz     => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 2: whom auth_request refuses gets no replay and claims no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        auth_request /auth;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /auth {
        internal;
        if ($http_x_user = "") { return 401; }
        return 204;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 3: whom allow and deny refuse gets no replay and claims no key
--- config
    idempotency on;
    idempotency_scope none;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Address;
    location / {
        allow 192.0.2.1;
        deny all;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                        => 403
POST /x | X-Address: 192.0.2.2 => 403
POST /x | X-Address: 192.0.2.1 => 201 run 1
POST /x                        => 403
POST /x | X-Address: 192.0.2.2 => 403
POST /x | X-Address: 192.0.2.1 => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 4: satisfy any: a password lets in, a wrong one does not
--- config
    idempotency on;
    idempotency_scope none;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Address;
    location / {
        satisfy any;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOmd1ZXNz     => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOmd1ZXNz     => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 5: satisfy any: an address lets in
--- config
    idempotency on;
    idempotency_scope none;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Address;
    location / {
        satisfy any;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                        => 401
POST /x | X-Address: 192.0.2.1 => 201 run 1
POST /x                        => 401
POST /x | X-Address: 192.0.2.1 => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 6: satisfy all: the address is missing
--- config
    idempotency on;
    idempotency_scope none;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Address;
    location / {
        satisfy all;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 403
POST /x => 403
POST /x | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 1
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 403
POST /x => 403
POST /x | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 7: satisfy all: the password is missing
--- config
    idempotency on;
    idempotency_scope none;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Address;
    location / {
        satisfy all;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-Address: 192.0.2.1 => 401
POST /x | X-Address: 192.0.2.1 | Authorization: Basic YW5uOmd1ZXNz => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 1
POST /x | X-Address: 192.0.2.1 => 401
POST /x | X-Address: 192.0.2.1 | Authorization: Basic YW5uOmd1ZXNz => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 8: satisfy any: a subrequest lets in
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        satisfy any;
        auth_request /auth;
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /auth {
        internal;
        if ($http_x_user = "") { return 401; }
        return 204;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 9: whom limit_except refuses gets no replay and claims no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        auth_basic_user_file ../html/users;
        limit_except GET { auth_basic realm; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 10: whom an if refuses gets no replay and claims no key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        if ($http_x_user = "") { return 403; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 403
POST /x | X-User: ann => 201 run 1
POST /x               => 403
POST /x | X-User: ann => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- executions: 1



=== TEST 11: try_files to a named location with rules: they hold
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        try_files $uri @app;
    }
    location @app {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 12: index to a location with rules: they hold
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        index front.php;
    }
    location ~ \.php$ {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /                                         => 401
POST / | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /                                         => 401
POST / | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
>>> front.php
--- executions: 1



=== TEST 13: the location that an index leads to has the same rules by its own name
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        index front.php;
    }
    location ~ \.php$ {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /front.php                                         => 401
POST /front.php | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /front.php                                         => 401
POST /front.php | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
>>> front.php
--- executions: 1



=== TEST 14: rewrite to a location with rules: they hold
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        rewrite ^/(.*)$ /basic/$1 last;
    }
    location /basic/ {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 15: try_files in a location with a handler: the rules of the named one hold
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        try_files $uri @app;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 16: error_page of a location without a handler, to one with rules: they hold
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 404 405 = @app;
    }
    location @app {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1



=== TEST 17: error_page of a return, to a location with rules: they hold
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 418 = @app;
        return 418;
    }
    location @app {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 1
