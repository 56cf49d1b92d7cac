# The gate stands behind the whole of access control: whom that refuses gets
# no replay and claims no key.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use MIME::Base64 qw(encode_base64);
use Test::More;
use lib 't/lib';
use Ledger;
use Nginx;

# One scope for all: only access control stands between the callers.
my $COMMON = <<'CONF';
log_format key escape=none '$request_uri $status $idempotency_status';
access_log %%DIR%%/access.log key;
idempotency_scope none;
idempotency on;
CONF

my $ng = Nginx->start(http => $COMMON . <<'CONF');
limit_req_zone $http_x_limit zone=requests:1m rate=1r/m;
limit_req_zone $http_x_limit zone=busy:1m rate=1r/m;
limit_conn_zone $http_x_limit zone=connections:1m;
limit_req_log_level info;
limit_conn_log_level info;

server {
    listen 127.0.0.1:%%PORT%%;
    root %%DIR%%/www;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Address;
    auth_basic_user_file %%DIR%%/users;

    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }

    location /basic/ {
        auth_basic realm;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /request/ {
        auth_request /auth;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /auth {
        internal;
        if ($http_x_user = "") { return 401; }
        return 204;
    }
    location /address/ {
        allow 192.0.2.1;
        deny all;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /any/ {
        satisfy any;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /all/ {
        satisfy all;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /any-request/ {
        satisfy any;
        auth_request /auth;
        auth_basic realm;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /except/ {
        limit_except GET { auth_basic realm; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /if/ {
        if ($http_x_user = "") { return 403; }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /try/ { try_files $uri @app; }
    location @app {
        auth_basic realm;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /try-or-pass/ {
        try_files $uri @app;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /index/ { index front.php; }
    location ~ \.php$ {
        auth_basic realm;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /rewrite/ { rewrite ^/rewrite/(.*)$ /basic/$1 last; }

    # An application of its own answers those who are refused.
    location /login/ {
        satisfy all;
        allow 192.0.2.1;
        deny all;
        auth_basic realm;
        error_page 401 403 = @login;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;

        location /login/recursive/ {
            recursive_error_pages on;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /login/status/ {
            error_page 401 403 @login;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
    }
    location @login { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /busy/ {
        limit_req zone=busy;
        error_page 503 = @login;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    # As try_files, the old way.
    location /front/ { error_page 404 405 = @app; }
    location /teapot/ {
        error_page 418 = @app;
        return 418;
    }

    location /return/ { return 200 "$idempotency_status\n"; }
    location /redirect/ { return 303 /elsewhere; }

    location /req/ {
        limit_req zone=requests;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /conn/ {
        limit_conn connections 1;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /asking/ {
        auth_request /subrequest/auth;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /mirrored/ {
        mirror /subrequest/mirror;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /including/ {
        ssi on;
        ssi_types application/json;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /subrequest/ {
        internal;
        idempotency_methods GET POST;
        idempotency_required on;
        proxy_set_header X-Execute 1;
        proxy_set_header Content-Length "";
        proxy_set_header X-Behaviour "";
        proxy_pass_request_body off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF

sub write_file ($path, $text) {
    open my $file, '>', $path or die "$path: $!\n";
    print {$file} $text;
    close $file;
}

mkdir $ng->path($_) for 'www', 'www/index';
write_file($ng->path('users'), "ann:{PLAIN}secret\n");
write_file($ng->path('www/index/front.php'), '');

my @USER = ('X-User' => 'ann');
my @LOGIN = (Authorization => 'Basic ' . encode_base64('ann:secret', ''));
my @FORGED = (Authorization => 'Basic ' . encode_base64('ann:guess', ''));
my @HOME = ('X-Address' => '192.0.2.1');

sub ask ($ng, $uri, $key, @headers) {
    return request($ng->port, 'POST', $uri, headers => ['Idempotency-Key' => $key, @headers],
        body => 'x');
}

sub told ($got) {
    return "$got->{status}" if !$got->{headers}{'x-execution'};
    return join ' ', $got->{status},
        $got->{headers}{'idempotent-replayed'} ? 'replay of' : 'run',
        $got->{headers}{'x-execution'}[0];
}

# Refused before anything is stored, then let in once, refused again, let in.
sub refuses ($ng, $uri, $status, $claim, $good, @bad) {
    ledger_reset();
    my @rounds = (@bad, $good, @bad, $good);
    my @wanted = (($status) x @bad, '201 run 1', ($status) x @bad, '201 replay of 1');
    is_deeply([map { told(ask($ng, $uri, 'k', @$_)) } @rounds], \@wanted, $claim);
    is(ledger_count(), 1, "$claim: one execution");
}

# ---- who is refused -------------------------------------------------------

refuses($ng, '/basic/1', 401, 'auth_basic', \@LOGIN, [], \@FORGED);
refuses($ng, '/request/1', 401, 'auth_request', \@USER, []);
refuses($ng, '/address/1', 403, 'allow and deny', \@HOME, [], ['X-Address' => '192.0.2.2']);
refuses($ng, '/any/1', 401, 'satisfy any, by password', \@LOGIN, [], \@FORGED);
refuses($ng, '/any/2', 401, 'satisfy any, by address', \@HOME, []);
refuses($ng, '/all/1', 403, 'satisfy all, address missing', [@LOGIN, @HOME], [@LOGIN], []);
refuses($ng, '/all/2', 401, 'satisfy all, password missing', [@LOGIN, @HOME], [@HOME],
    [@HOME, @FORGED]);
refuses($ng, '/any-request/1', 401, 'satisfy any, by subrequest', \@USER, []);
refuses($ng, '/except/1', 401, 'limit_except', \@LOGIN, []);
refuses($ng, '/if/1', 403, 'if', \@USER, []);
refuses($ng, '/try/1', 401, 'try_files to a named location with rules', \@LOGIN, []);
refuses($ng, '/index/', 401, 'index to a location with rules', \@LOGIN, []);
refuses($ng, '/index/front.php', 401, 'the same location by its own name', \@LOGIN, []);
refuses($ng, '/rewrite/1', 401, 'rewrite to a location with rules', \@LOGIN, []);

refuses($ng, '/try-or-pass/1', 401, 'try_files in a location with a handler', \@LOGIN, []);
refuses($ng, '/front/1', 401, 'error_page of a location without a handler', \@LOGIN, []);
refuses($ng, '/teapot/1', 401, 'error_page of a return', \@LOGIN, []);

# The page for the refused may well be a run of its own, but it is never the
# answer to somebody else, and does not keep the key from its owner.
for my $case (['/login/1', 'by address', \@LOGIN], ['/login/2', 'by password', [@HOME, @FORGED]],
    ['/login/recursive/1', 'recursive', \@LOGIN], ['/login/status/1', 'with its status', \@HOME]) {
    my ($uri, $how, $refused) = @$case;
    my @good = (@LOGIN, @HOME);
    ledger_reset();
    ask($ng, $uri, 'before', @$refused);
    is(told(ask($ng, $uri, 'before', @good)), '201 run 2', "refused to a page, $how: no key is claimed");
    is(told(ask($ng, $uri, 'after', @good)), '201 run 3', "refused to a page, $how: then the owner");
    unlike(told(ask($ng, $uri, 'after', @$refused)), qr/replay|run 3/,
        "refused to a page, $how: no replay");
}

SKIP: {
    my @lua = split ' ', $ENV{TEST_NGINX_LUA_MODULES} // '';
    skip 'lua is not there', 1 if !@lua;
    my $lua = Nginx->start(main => join('', map {"load_module $_;\n"} @lua),
        http => $COMMON . <<'CONF');
lua_shared_dict ran 1m;
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        access_by_lua_block { if not ngx.var.http_x_user then return ngx.exit(401) end }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /sleeping/ {
        access_by_lua_block {
            ngx.sleep(0.01)
            if not ngx.var.http_x_user then return ngx.exit(403) end
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /rewriting/ {
        rewrite_by_lua_block { if not ngx.var.http_x_user then return ngx.exit(401) end }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    error_page 404 = @app;
    location /exec/ {
        access_by_lua_block {
            if not ngx.var.http_x_user then return ngx.exit(401) end
            return ngx.exec("@app")
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /content/ {
        access_by_lua_block { if not ngx.var.http_x_user then return ngx.exit(401) end }
        content_by_lua_block {
            ngx.status = 201
            ngx.header["X-Execution"] = ngx.shared.ran:incr("n", 1, 0)
            ngx.say("done")
        }
    }
}
CONF
    refuses($lua, '/1', 401, 'access_by_lua', \@USER, []);
    refuses($lua, '/sleeping/1', 403, 'access_by_lua that sleeps', \@USER, []);
    refuses($lua, '/rewriting/1', 401, 'rewrite_by_lua', \@USER, []);

    refuses($lua, '/exec/1', 401, 'access_by_lua that sends on', \@USER, []);

    is_deeply([map { told(ask($lua, '/content/1', 'k', @$_)) } [], \@USER, [], \@USER],
        [401, '201 run 1', 401, '201 replay of 1'], 'access_by_lua before content_by_lua');
    ok($lua->stop, 'nginx with lua leaves by itself');
    $lua->check_logs;
}

# ---- who only redirects ---------------------------------------------------

for my $place ('/return/1', '/redirect/1') {
    my @got = map { ask($ng, $place, 'k') } 1, 2;
    is_deeply([map { $_->{headers}{'idempotent-replayed'} } @got], [undef, undef],
        "return is untouched: $place");
}
is(ask($ng, '/return/1', 'k')->{body}, "-\n", 'return is not protected');
is(ask($ng, '/return/1', '"')->{status}, 200, 'return does not look at the key');

# ---- limits ---------------------------------------------------------------

{
    ledger_reset();
    my @limit = map { ['X-Limit' => $_] } 'one', 'two';
    is_deeply([told(ask($ng, '/req/1', 'a', @{ $limit[0] })),
            told(ask($ng, '/req/1', 'b', @{ $limit[0] })),
            told(ask($ng, '/req/1', 'b', @{ $limit[1] }))],
        ['201 run 1', 503, '201 run 2'], 'a key that limit_req refused is free');
    is(ledger_count(), 2, 'and has not run');

    ledger_reset();
    ask($ng, '/busy/1', $_, @{ $limit[0] }) for 'a', 'b';
    is(told(ask($ng, '/busy/1', 'b', @{ $limit[1] })), '201 run 3',
        'a key that limit_req sent to a page is free');
    is(told(ask($ng, '/busy/1', 'a', @{ $limit[0] })), '201 run 4',
        'and the page is no replay');

    ledger_reset();
    my $barrier = $ng->path('barrier');
    my $slow = send_request($ng->port, 'POST', '/conn/1', headers => ['Idempotency-Key' => 'a',
        'X-Limit' => 'one', 'X-Behaviour' => "barrier=$barrier"]);
    ok(wait_until(sub { ledger_count() == 1 }), 'one request is under way');
    is(told(ask($ng, '/conn/1', 'b', @{ $limit[0] })), 503, 'limit_conn refuses another');
    is(told(ask($ng, '/conn/1', 'b', @{ $limit[1] })), '201 run 2',
        'a key that limit_conn refused is free');
    is(told(ask($ng, '/conn/1', 'a', @{ $limit[0] })), 503,
        'limit_conn comes before the answer to a duplicate');
    write_file($barrier, '');
    is(told($slow->response), '201 run 1', 'the first goes on');
    is(ledger_count(), 2, 'two executions');
}

# ---- subrequests ----------------------------------------------------------

# The place of the subrequests requires a key and protects GET as well: a gate
# in them would claim, replay or refuse.
sub subrequest_runs ($uri, $subrequest, $claim, %opt) {
    ledger_reset();
    my @got = map { ask($ng, $uri, 'k', @{ $opt{headers} // [] }) } 1 .. 3;
    is_deeply([map { $_->{status} } @got], [201, 201, 201], "$claim: all are answered");
    is(ledger_count(uri => $uri), 1, "$claim: the request itself runs once");
    ok(wait_until(sub { ledger_count(uri => $subrequest) == $opt{times} }), "$claim: not gated")
        or diag(ledger_lines());
    return @got;
}

subrequest_runs('/asking/1', '/subrequest/auth', 'auth_request', times => 3);
subrequest_runs('/mirrored/1', '/subrequest/mirror', 'mirror', times => 1);

my @page = ('X-Behaviour' => 'body=%5B%3C!--%23%20include%20virtual=%22/subrequest/part%22%20--%3E%5D');
my @got = subrequest_runs('/including/1', '/subrequest/part', 'SSI', times => 3, headers => \@page);
# What is stored is the application's page, which is put together anew each
# time, as one from proxy_cache is.
is_deeply([map { $_->{body} =~ /^\[\{"execution":(\d+)\}\n\]$/ } @got], [2, 3, 4],
    'SSI: the parts of a replay are there');

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;
done_testing();
