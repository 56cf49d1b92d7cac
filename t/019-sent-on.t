# A content handler that sends its request on to a location with access rules:
# that location has admitted the run, so nobody gets the response past it.

use lib 't/lib';
use Test::Nginx::Socket 'no_plan';
use Blocks;

run_tests();

__DATA__

=== TEST 1: ngx.exec to a named location
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("@secret") } }
    location @secret {
        auth_basic realm;
        auth_basic_user_file ../html/users;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- user_files
>>> users
ann:{PLAIN}secret
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                         => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 run 1, NEW
POST /x                                         => 401, -
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1, REPLAY
POST /x | Authorization: Basic YW5uOmd1ZXNz     => 401
POST /x | Authorization: Basic YW5uOnNlY3JldA== => 201 replay of 1
--- executions: 1
--- no_error_log
[alert]
[crit]



=== TEST 2: ngx.exec to a URI with arguments
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("/inner/pay", { by = "lua" }) } }
    location /inner/ {
        internal;
        access_by_lua_block {
            if ngx.var.arg_by ~= "lua" then return ngx.exit(500) end
            if not ngx.var.http_x_user then return ngx.exit(401) end
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x?a=1               => 401
POST /x?a=1 | X-User: ann => 201 run 1
POST /x?a=1               => 401
POST /x?a=1 | X-User: ann => 201 replay of 1
POST /x?a=2 | X-User: ann => 422 key_reused
--- executions: 1



=== TEST 3: echo_exec
--- main_config
    load_module /usr/lib/nginx/modules/ngx_http_echo_module.so;
--- config
    idempotency on;
    idempotency_scope none;
    location / { echo_exec @secret; }
    location /uri { echo_exec /inner/pay; }
    location @secret {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /inner/ {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                 => 401
POST /x | X-User: ann   => 201 run 1
POST /x                 => 401
POST /x | X-User: ann   => 201 replay of 1
POST /uri | X-User: ann => 201 run 2
POST /uri               => 401
POST /uri | X-User: ann => 201 replay of 2
--- executions: 2



=== TEST 4: internal_redirect of Perl
--- main_config
    load_module /usr/lib/nginx/modules/ngx_http_perl_module.so;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        perl 'sub { my $r = shift; $r->internal_redirect("/inner/pay"); return OK; }';
    }
    location /inner/ {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 5: internalRedirect of njs
--- main_config
    load_module /usr/lib/nginx/modules/ngx_http_js_module.so;
--- http_config
    js_path ../html;
    js_import sent.js;
--- config
    idempotency on;
    idempotency_scope none;
    location / { js_content sent.on; }
    location @secret {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- user_files
>>> sent.js
function on(r) { r.internalRedirect('@secret'); }
export default { on };
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 401
POST /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 6: sent on twice: the response cannot be had again, and nothing of it is told
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("@first") } }
    location @first {
        if ($http_x_user = "") { return 401; }
        content_by_lua_block { ngx.exec("@second") }
    }
    location @second {
        if ($http_x_user != "ann") { return 403; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x                                              => 401
POST /x | X-User: bob                                => 403
POST /x | X-User: ann | do=status=201&h=Location:/y  => 201 run 1
POST /x                                              => 409 response_not_kept
POST /x | X-User: ann                                => 409 response_not_kept
--- response_body_unlike eval
[qr/original/, qr/original/, qr/no such text/, qr/original/, qr/original/]
--- executions: 1



=== TEST 7: where the response is not kept nothing is told of it
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_max_response 10;
    location / { content_by_lua_block { ngx.exec("@secret") } }
    location @secret {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 409 response_not_kept
POST /x | X-User: ann => 409 response_not_kept
--- response_body_unlike eval
[qr/no such text/, qr/original/, qr/original/]
--- executions: 1



=== TEST 8: a location that answers before its gate
--- http_config
    lua_shared_dict ran 1m;
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("/inner/pay") } }
    location /inner/ {
        access_by_lua_block {
            if not ngx.var.http_x_user then return ngx.exit(401) end
            ngx.status = 201
            ngx.header["X-Execution"] = ngx.shared.ran:incr("n", 1, 0)
            ngx.say("done")
            return ngx.exit(201)
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 409 response_not_kept
POST /x | X-User: ann => 409 response_not_kept
--- response_body_unlike eval
[qr/no such text/, qr/original/, qr/original/]



=== TEST 9: a spare for an upstream that refuses, with rules of its own
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        error_page 502 = @spare;
        proxy_pass http://127.0.0.1:$TEST_NGINX_CLOSED_PORT;
    }
    location @spare {
        if ($http_x_user = "") { return 401; }
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
--- no_error_log
[alert]
[crit]



=== TEST 10: the handler that sends on is not asked again
--- http_config
    lua_shared_dict ran 1m;
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        content_by_lua_block {
            ngx.shared.ran:incr("n", 1, 0)
            ngx.exec(ngx.var.http_x_way or "@secret")
        }
    }
    location @secret {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @open { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /ran { content_by_lua_block { ngx.header["X-Execution"] = ngx.shared.ran:get("n") } }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann                => 201 run 1
POST /x | X-Way: @open               => 401
POST /x | X-Way: @open | X-User: ann => 201 replay of 1
GET /ran                             => 200 run 1
--- executions: 1



=== TEST 11: who is refused on his way to the response, and sent to another application for that
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("@secret") } }
    location @secret {
        error_page 401 = @login;
        error_page 403 /denied;
        if ($http_x_user = "") { return 401; }
        if ($http_x_user = "bob") { return 403; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @login { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /denied { return 403 "denied"; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 409 response_not_kept
POST /x | X-User: bob => 403
POST /x | X-User: ann => 201 replay of 1
--- response_body_unlike eval
[qr/no such text/, qr/original/, qr/original/, qr/no such text/]
--- executions: 1



=== TEST 12: a protected GET
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_methods GET;
    location / { content_by_lua_block { ngx.exec("@secret") } }
    location @secret {
        if ($http_x_user = "") { return 401; }
        proxy_set_header X-Execute 1;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
GET /x | X-User: ann => 201 run 1
GET /x               => 401
GET /x | X-User: ann => 201 replay of 1
--- executions: 1



=== TEST 13: idempotency_replay empty
--- config
    idempotency on;
    idempotency_scope none;
    idempotency_replay empty;
    location / { content_by_lua_block { ngx.exec("@secret") } }
    location @secret {
        if ($http_x_user = "") { return 401; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x | X-User: ann => 201 run 1
POST /x               => 401
--- executions: 1



=== TEST 14: a location that leads elsewhere by the time of the retry is not gone to
--- config
    idempotency on;
    idempotency_scope none;
    location / { content_by_lua_block { ngx.exec("/inner/pay") } }
    location /inner/ {
        if ($http_x_moved) { rewrite ^ /moved last; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /moved { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x              => 201 run 1
POST /x | X-Moved: 1 => 409 response_not_kept
POST /x              => 201 replay of 1
--- executions: 1



=== TEST 15: a replay has the headers of the location that admitted the run
--- config
    idempotency on;
    idempotency_scope none;
    location / {
        add_header X-Where first;
        content_by_lua_block { ngx.exec("@app") }
    }
    location @app {
        add_header X-Where app;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
--- lua
--- more_headers
Idempotency-Key: k
--- exchange
POST /x => 201 run 1
POST /x => 201 replay of 1
--- response_headers
X-Where: app
--- executions: 1
