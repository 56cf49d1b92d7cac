# What may stand beside access control in front of the gate: pages for those who
# are refused, Lua, return, limit_req and subrequests.
#
# YW5uOnNlY3JldA== is ann:secret, YW5uOmd1ZXNz is ann:guess.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: a page for those refused by address claims no key and is no replay
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
        error_page 401 403 = @login;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @login {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: before | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x | Idempotency-Key: before | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 2
POST /x | Idempotency-Key: after | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 3
POST /x | Idempotency-Key: after | Authorization: Basic YW5uOnNlY3JldA== => 201 run 4
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 4



=== TEST 2: a page for those refused by password claims no key and is no replay
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
        error_page 401 403 = @login;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @login {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: before | X-Address: 192.0.2.1 | Authorization: Basic YW5uOmd1ZXNz => 201 run 1
POST /x | Idempotency-Key: before | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 2
POST /x | Idempotency-Key: after | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 3
POST /x | Idempotency-Key: after | X-Address: 192.0.2.1 | Authorization: Basic YW5uOmd1ZXNz => 201 run 4
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 4



=== TEST 3: a page for the refused is no way in with recursive_error_pages either
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
        recursive_error_pages on;
        error_page 401 403 = @login;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @login {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: before | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1
POST /x | Idempotency-Key: before | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 2
POST /x | Idempotency-Key: after | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 3
POST /x | Idempotency-Key: after | Authorization: Basic YW5uOnNlY3JldA== => 201 run 4
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 4



=== TEST 4: a page for the refused that keeps their status claims no key and is no replay
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
        error_page 401 403 @login;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @login {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: before | X-Address: 192.0.2.1 => 401 run 1
POST /x | Idempotency-Key: before | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 2
POST /x | Idempotency-Key: after | Authorization: Basic YW5uOnNlY3JldA== | X-Address: 192.0.2.1 => 201 run 3
POST /x | Idempotency-Key: after | X-Address: 192.0.2.1 => 401 run 4
--- no_error_log
[alert]
[crit]
--- user_files
>>> users
ann:{PLAIN}secret
--- executions: 4



=== TEST 5: whom access_by_lua refuses gets no replay and claims no key
--- lua
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        access_by_lua_block { if not ngx.var.http_x_user then return ngx.exit(401) end }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 6: whom access_by_lua refuses after a sleep gets no replay and claims no key
--- lua
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        access_by_lua_block {
            ngx.sleep(0.01)
            if not ngx.var.http_x_user then return ngx.exit(403) end
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 403
POST /x | X-User: ann => 201 run 1
POST /x               => 403
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 7: whom rewrite_by_lua refuses gets no replay and claims no key
--- lua
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        rewrite_by_lua_block { if not ngx.var.http_x_user then return ngx.exit(401) end }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 8: access_by_lua that sends on to a named location: whom it refuses gets no replay
--- lua
--- config
    idempotency on;
    idempotency_scope none;
    error_page 404 = @app;
    location / {
        access_by_lua_block {
            if not ngx.var.http_x_user then return ngx.exit(401) end
            return ngx.exec("@app")
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 9: access_by_lua stands before a replay of content_by_lua
--- lua
--- http_config
    lua_shared_dict ran 1m;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        access_by_lua_block { if not ngx.var.http_x_user then return ngx.exit(401) end }
        content_by_lua_block {
            ngx.status = 201
            ngx.header["X-Execution"] = ngx.shared.ran:incr("n", 1, 0)
            ngx.say("done")
        }
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x               => 401
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 0



=== TEST 10: a return is neither protected nor marked as a replay
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        return 200 "$idempotency_status\n";
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 200
POST /x => 200
--- response_body eval
["-\n", "-\n"]
--- executions: 0



=== TEST 11: a return of a redirect is neither protected nor marked as a replay
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        return 303 /elsewhere;
    }
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 303
POST /x => 303
--- executions: 0



=== TEST 12: a return does not look at the key
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        return 200;
    }
--- exchange
POST /x | Idempotency-Key: " => 200
--- executions: 0



=== TEST 13: a key that limit_req refused is free, and has not run
--- http_config
    limit_req_zone $http_x_limit zone=refused:1m rate=1r/m;
    limit_req_log_level info;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        limit_req zone=refused;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: a | X-Limit: one => 201 run 1
POST /x | Idempotency-Key: b | X-Limit: one => 503
POST /x | Idempotency-Key: b | X-Limit: two => 201 run 2
--- executions: 2



=== TEST 14: a key that limit_req sent to a page is free, and the page is no replay
--- http_config
    limit_req_zone $http_x_limit zone=paged:1m rate=1r/m;
    limit_req_log_level info;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        limit_req zone=paged;
        error_page 503 = @busy;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @busy {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- exchange
POST /x | Idempotency-Key: a | X-Limit: one => 201 run 1
POST /x | Idempotency-Key: b | X-Limit: one => 201 run 2
POST /x | Idempotency-Key: b | X-Limit: two => 201 run 3
POST /x | Idempotency-Key: a | X-Limit: one => 201 run 4
--- executions: 4



=== TEST 15: a subrequest of auth_request is not gated
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        auth_request /subrequest/auth;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /subrequest/ {
        internal;
        # A gate in here would claim, replay or refuse.
        idempotency_methods GET POST;
        idempotency_required on;
        proxy_set_header X-Execute 1;
        proxy_set_header Content-Length "";
        proxy_set_header X-Behaviour "";
        proxy_pass_request_body off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- request eval
["POST /x\nx", "POST /x\nx", "POST /x\nx"]
--- error_code eval
[201, 201, 201]
--- executions_of
/x 1
/subrequest/auth 3



=== TEST 16: a subrequest of mirror is not gated, and a replay is not mirrored
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        mirror /subrequest/mirror;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /subrequest/ {
        internal;
        # A gate in here would claim, replay or refuse.
        idempotency_methods GET POST;
        idempotency_required on;
        proxy_set_header X-Execute 1;
        proxy_set_header Content-Length "";
        proxy_set_header X-Behaviour "";
        proxy_pass_request_body off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
--- request eval
["POST /x\nx", "POST /x\nx", "POST /x\nx"]
--- error_code eval
[201, 201, 201]
--- executions_of
/x 1
/subrequest/mirror 1



=== TEST 17: a part that SSI includes is not gated, and is there in a replay
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        ssi on;
        ssi_types application/json;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /subrequest/ {
        internal;
        # A gate in here would claim, replay or refuse.
        idempotency_methods GET POST;
        idempotency_required on;
        proxy_set_header X-Execute 1;
        proxy_set_header Content-Length "";
        proxy_set_header X-Behaviour "";
        proxy_pass_request_body off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- more_headers
Idempotency-Key: k
X-Behaviour: body=%5B%3C!--%23%20include%20virtual=%22/subrequest/part%22%20--%3E%5D
--- request eval
["POST /x\nx", "POST /x\nx", "POST /x\nx"]
--- error_code eval
[201, 201, 201]
--- response_body eval
["[{\"execution\":2}\n]", "[{\"execution\":3}\n]", "[{\"execution\":4}\n]"]
--- executions_of
/x 1
/subrequest/part 3
