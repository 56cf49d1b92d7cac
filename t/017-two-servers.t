#!/usr/bin/env perl

# Records of several servers: on two ports, on two addresses, behind each
# other; and records that a reload elsewhere does not rename.

use v5.36;

use Test::More;
use lib 't/lib';
use Keyed qw(lua_modules);
use Ledger;
use Nginx;

my $APP = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

sub ask ($port, $uri, %opt) {
    my @headers = ('Idempotency-Key' => $opt{key} // 'k', @{ $opt{headers} // [] });
    push @headers, Host => $opt{host} if defined $opt{host};
    return told(request($port, 'POST', $uri, headers => \@headers, body => 'x',
        host => $opt{address} // '127.0.0.1'));
}

sub told ($got) {
    my ($code) = $got->{body} =~ /"code":"(\w+)"/;
    return "$got->{status} $code" if defined $code;
    return "$got->{status}" if !$got->{headers}{'x-execution'};
    return join ' ', $got->{status},
        $got->{headers}{'idempotent-replayed'} ? 'replay of' : 'run',
        $got->{headers}{'x-execution'}[0];
}

my @USER = ('X-User' => 'ann');

subtest 'two servers on two ports' => sub {
    my $ng = Nginx->start(http => <<"CONF");
idempotency on;
idempotency_scope none;
server {
    listen 127.0.0.1:%%PORT%%;
    server_name admin.local;
    if (\$http_x_user = "") { return 401; }
    location / { $APP }
    location /any/ { idempotency_scope_route host method path; $APP }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    server_name shop.local;
    location / { $APP }
    location /any/ { idempotency_scope_route host method path; $APP }
}
CONF
    my ($admin, $shop) = map { $ng->port($_) } 1, 2;
    ledger_reset();
    is(ask($admin, '/x', host => 'admin.local', headers => \@USER), '201 run 1', 'the admin');
    is(ask($admin, '/x', host => 'admin.local'), 401, 'somebody else is refused');
    is(ask($shop, '/x', host => 'admin.local'), '201 run 2',
        'and does not get the admin\'s replay on the other port');
    is(ask($admin, '/x', host => 'admin.local', headers => \@USER), '201 replay of 1', 'the admin does');
    is(ask($shop, '/x', host => 'shop.local'), '201 run 3', 'each application has its keys');

    is(ask($admin, '/any/x', host => 'admin.local', headers => \@USER), '201 run 4',
        'without the port: the admin');
    is(ask($shop, '/any/x', host => 'admin.local'), '422 key_reused',
        'without the port a server that took the request as the default one does not replay it');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'two servers on one port of two addresses' => sub {
    my $ng = Nginx->start(http => <<"CONF");
idempotency on;
idempotency_scope none;
server {
    listen 127.0.0.1:%%PORT%%;
    server_name admin.local *.admin.local .a.local b.*;
    if (\$http_x_user = "") { return 401; }
    location / { $APP }
}
server {
    listen 127.0.0.2:%%PORT%%;
    location / { $APP }
}
CONF
    for my $host ('admin.local', 'x.admin.local', 'a.local', 'y.a.local', 'b.test') {
        ledger_reset();
        my %of = (host => $host, key => $host);
        is(ask($ng->port, '/x', %of, headers => \@USER), '201 run 1', "$host: the admin");
        is(ask($ng->port, '/x', %of, address => '127.0.0.2'), '422 key_reused',
            'no replay on the other address');
        is(ask($ng->port, '/x', %of, headers => \@USER), '201 replay of 1', 'the admin gets his');
    }
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'servers without a name are told apart by their addresses' => sub {
    my $ng = Nginx->start(http => <<"CONF");
idempotency on;
idempotency_scope none;
server {
    listen 127.0.0.1:%%PORT%%;
    if (\$http_x_user = "") { return 401; }
    location / { $APP }
}
server {
    listen 127.0.0.2:%%PORT%%;
    location / { $APP }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    if (\$http_x_user = "") { return 401; }
    location / { $APP }
}
server {
    listen %%PORT2%%;
    location / { $APP }
}
CONF
    for my $port ($ng->port, $ng->port(2)) {
        ledger_reset();
        for my $host ("127.0.0.1:$port", '127.0.0.1') {
            my %of = (host => $host, key => "$port$host");
            my $runs = ledger_count();
            is(ask($port, '/x', %of, headers => \@USER), '201 run ' . ($runs + 1), "$host: the admin");
            is(ask($port, '/x', %of), 401, 'somebody else is refused');
            is(ask($port, '/x', %of, address => '127.0.0.2'), '422 key_reused',
                'no replay on the other address');
            is(ask($port, '/x', %of, headers => \@USER), '201 replay of ' . ($runs + 1),
                'the admin gets his');
        }
        is(ask($port, '/x', address => '127.0.0.2', host => '127.0.0.2', key => "$port-2"),
            '201 run 3', 'the other server');
        is(ask($port, '/x', address => '127.0.0.2', host => '127.0.0.2', key => "$port-2"),
            '201 replay of 3', 'has its own replays');
    }
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a server behind a server of the same nginx' => sub {
    my $ng = Nginx->start(http => <<"CONF");
idempotency on;
idempotency_scope none;
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        proxy_set_header Host \$host;
        proxy_pass http://127.0.0.1:%%PORT2%%;
    }
    location /unix/ {
        proxy_set_header Host \$host;
        proxy_pass http://unix:%%DIR%%/inner.sock;
    }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    listen unix:%%DIR%%/inner.sock;
    idempotency_replay_header off;
    location / { $APP }
}
CONF
    for my $uri ('/x', '/unix/x') {
        ledger_reset();
        is(ask($ng->port, $uri, host => 'a.test'), '201 run 1', "$uri runs");
        is(ask($ng->port, $uri, host => 'a.test'), '201 replay of 1', 'and is replayed');
        is(ledger_count(), 1, 'one execution');
    }
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a reload that adds a server renames no record' => sub {
    my $server = <<"CONF";
idempotency on;
idempotency_scope none;
server {
    listen 127.0.0.1:%%PORT%%;
    location / { try_files \$uri \@app; }
    location \@app { $APP }
}
CONF
    my $ng = Nginx->start(http => $server);
    ledger_reset();
    is(ask($ng->port, '/x'), '201 run 1', 'runs');
    ok($ng->reload_config($server . <<"CONF"), 'reloaded');
server {
    listen 127.0.0.1:%%PORT2%%;
    recursive_error_pages on;
    error_page 403 = \@p;
    location \@p { $APP }
}
CONF
    is(ask($ng->port, '/x'), '201 replay of 1', 'is still the same');
    is(ledger_count(), 1, 'one execution');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

SKIP: {
    my $lua = lua_modules();
    skip 'without Lua', 1 if !$lua;
    subtest 'a reload that takes away the location that admitted a run' => sub {
        my $common = <<"CONF";
idempotency on;
idempotency_scope none;
server {
    listen 127.0.0.1:%%PORT%%;
    location / { content_by_lua_block { ngx.exec("\@secret") } }
CONF
        my $ng = Nginx->start(main => $lua, http => "$common location \@secret { $APP } }");
        ledger_reset();
        is(ask($ng->port, '/x'), '201 run 1', 'runs');
        is(ask($ng->port, '/x'), '201 replay of 1', 'is replayed');
        ok($ng->reload_config("$common location \@other { $APP } }"), 'reloaded');
        is(ask($ng->port, '/x'), '409 response_not_kept', 'cannot be had any more');
        ok($ng->reload_config("$common location \@secret { $APP } }"), 'reloaded again');
        is(ask($ng->port, '/x'), '201 replay of 1', 'can be had again');
        is(ledger_count(), 1, 'one execution');
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

done_testing();
