#!/usr/bin/env perl

# Redis as the store: how it is written, what lies in it, what it is asked.

use v5.36;

use Digest::SHA qw(sha1_hex);
use IO::Socket::IP;
use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

# A server for each store, which is written so.
sub servers (@stores) {
    my ($conf, $n) = (<<'CONF', 0);
idempotency_scope none;
idempotency_scope_route host method path;
CONF
    for my $store (@stores) {
        $n++;
        $conf .= "idempotency_store s$n $store timeout=5s connect_timeout=5s;\n" . <<"CONF";
server {
    listen 127.0.0.1:%%PORT$n%%;
    location / {
        idempotency s$n;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
    }
    return $conf;
}

sub runs_once ($port, $key, $name) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $first = post($port, $key);
    my ($n) = executions($key);
    is_deeply([said($first), said(post($port, $key))],
        ['201 #' . ($n // 'none'), '201 #' . ($n // 'none') . ' replayed'], $name);
    is(ledger_count(key => $key), 1, '... executed once');
}

sub has_ipv6 {
    return defined IO::Socket::IP->new(LocalHost => '::1', LocalPort => 0, Listen => 1);
}

# ---- addresses ------------------------------------------------------------

subtest 'a Redis can be named by address, name or socket, and its database' => sub {
    my $ipv6 = has_ipv6();
    my $redis = RedisServer->start(bind => $ipv6 ? '127.0.0.1 ::1' : '127.0.0.1');
    my $port = $redis->port;
    my @stores = (
        ["redis://127.0.0.1:$port", 0],
        ["redis://127.0.0.1:$port/", 0],
        ["redis://localhost:$port/3", 3],
        [$redis->unix_url, 0],
        [$redis->unix_url . '?db=5', 5],
        ["redis://127.0.0.1:$port/15 connections=3", 15],
        $ipv6 ? ["redis://[::1]:$port/6", 6] : (),
    );
    my $ng = Nginx->start(http => servers(map { $_->[0] } @stores));
    for my $i (0 .. $#stores) {
        my ($url, $db) = @{ $stores[$i] };
        $redis->command('FLUSHALL');
        runs_once($ng->port($i + 1), "address-$i", $url =~ s/$port/PORT/r);
        is(scalar keys_of($redis, $db), 1, "... its record is in database $db");
    }
    is(scalar($redis->clients), @stores + 2, 'as many connections as are wanted, all named');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'stores with one prefix share their records, those with two do not' => sub {
    my $redis = RedisServer->start;
    my $ng = Nginx->start(http => servers(map { $redis->url . $_ }
        '', ' prefix=idem:', ' prefix=shop:'));
    my $first = said(post($ng->port(1), 'prefix'));
    is(said(post($ng->port(2), 'prefix')), "$first replayed", 'idem: is the prefix if none is written');
    like(said(post($ng->port(3), 'prefix')), qr/^201 #\d+$/, 'another store knows nothing of it');
    is_deeply([map { /^(\w+:)[0-9a-f]{32}$/ ? $1 : $_ } keys_of($redis)], ['idem:', 'shop:'],
        'both are in Redis');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# ---- credentials ----------------------------------------------------------

subtest 'users and passwords, from the address or from a file' => sub {
    my @users = ("app @{[documented_acl('secret')]}", "odd @{[documented_acl('p@ss:/w%rd?')]}");
    my $redis = RedisServer->start(password => 'default-pass', conf => [map {"user $_"} @users]);
    my $file = $redis->path('password');
    write_file($file, "secret\n");
    my $default = $redis->path('default-password');
    write_file($default, 'default-pass');
    my $at = '127.0.0.1:' . $redis->port;
    my @stores = (
        "redis://:default-pass\@$at",
        "redis://app:secret\@$at",
        "redis://odd:p%40ss%3A%2Fw%25rd%3F\@$at",
        "redis://$at user=app password_file=$file",
        "redis://$at password_file=$default",
        $redis->unix_url . " user=app password_file=$file",
    );
    my $ng = Nginx->start(http => servers(@stores));
    runs_once($ng->port($_ + 1), "credentials-$_", $stores[$_] =~ s/\Q$at\E/ADDRESS/r)
        for 0 .. $#stores;
    unlike($ng->error_log, qr/secret|default-pass|p\@ss/, 'no password is logged');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# What the contract says, by one answer for each of its states.
sub keeps_the_contract ($ng, $name) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $ask = sub ($key, %opt) { said(post($ng->port, "$name-$key", %opt)) };

    my $first = $ask->('kept');
    is($ask->('kept'), "$first replayed", 'completed: replayed');
    is($ask->('kept', body => 'other'), '422 key_reused', 'another body: refused');

    my ($gate, $conn) = start_run($ng->port, "$name-long");
    # Longer than the lease, which is renewed meanwhile.
    sleep 1.5;
    is($ask->('long'), '409 in_progress', 'pending: refused');
    is($ask->('long', body => 'other'), '422 key_reused', '... and so is another body');
    $gate->open;
    my $long = said($conn->response);
    is($ask->('long'), "$long replayed", '... then replayed');

    like($ask->('freed', do => 'status=500'), qr/^500/, 'a failure');
    my $again = $ask->('freed');
    like($again, qr/^201 #\d+$/, '... is run again');
    is($ask->('freed'), "$again replayed", '... until it succeeds');

    like($ask->('held', do => 'die=before'), qr/^502/, 'no answer');
    is($ask->('held'), '409 outcome_unknown', '... is not run again');

    like($ask->('taken', uri => '/release', do => 'die=before'), qr/^502/, 'no answer');
    is($ask->('taken', uri => '/release', body => 'other'), '422 key_reused', '... not with another body');
    my $taken = $ask->('taken', uri => '/release');
    like($taken, qr/^201 #\d+$/, '... is run again where that is wanted');
    is($ask->('taken', uri => '/release'), "$taken replayed", '... once');
    is_deeply([attempts_of("$name-taken")], [1, 2], '... as the second attempt');

    like($ask->('secret', do => 'h=X-Accel-Idempotency:discard'), qr/^201/, 'discarded');
    is($ask->('secret'), '409 response_not_kept', '... is known to have run');

    my %runs = (kept => 1, long => 1, freed => 2, held => 1, taken => 2, secret => 1);
    is_deeply({ map { $_ => ledger_count(key => "$name-$_") + 0 } keys %runs }, \%runs,
        'the application ran as often as it should');
}

sub contract_nginx ($url, $params = '') {
    return Nginx->start(http => redis_conf($url, $params, 'idempotency_lease 900ms;')
        =~ s{(?=location /pass)}{location /release {
            idempotency on;
            idempotency_unknown_outcome release;
            proxy_pass http://application;
        }
        }r);
}

subtest 'a user who may do no more than is needed is enough' => sub {
    my $redis = RedisServer->start(password => 'x',
        conf => ["user app @{[documented_acl('secret')]}"]);
    my $ng = contract_nginx('redis://app:secret@127.0.0.1:' . $redis->port);
    keeps_the_contract($ng, 'acl');
    is_deeply($redis->command('ACL', 'LOG'), [], 'Redis refused nothing');
    finish($ng);
};

subtest 'a Redis that does not know SET ... NX GET is asked in another way' => sub {
    my ($redis, $proxy) = proxied_redis();
    $proxy->mode('old');
    $redis->reset_stats;
    my $ng = contract_nginx($proxy->url);
    keeps_the_contract($ng, 'old');
    my ($errors) = $redis->command('INFO', 'errorstats') =~ /^errorstat_ERR:count=(\d+)/m;
    is($errors, 1, 'it is asked once what it does not know') if !RedisServer::is_old();
    unlike($ng->error_log, qr/\[(?:warn|error)\].*redis/i, 'and nobody is bothered');
    finish($ng);
};

# ---- what lies in Redis ---------------------------------------------------

subtest 'keys and callers cannot be read from what is stored' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, servers => <<'CONF');
    server {
        listen 127.0.0.1:%%PORT2%%;
        location / {
            idempotency on;
            idempotency_scope $http_authorization;
            proxy_pass http://application;
        }
    }
CONF
    post($ng->port(2), 'key-in-plain-sight', headers => [Authorization => 'caller-of-it']);
    my ($name, @more) = keys_of($redis);
    like($name, qr/^idem:[0-9a-f]{32}$/, 'the name of a record is a digest');
    is_deeply(\@more, [], 'there is one record');
    my $record = $redis->command('GET', $name);
    unlike($record, qr/plain-sight|caller-of-it|body/, 'nor does the record tell');
    is_deeply([unpack 'CC', $record], [1, 2], 'version 1, completed');
    finish($ng);
};

subtest 'every record expires, pending or not' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, lines => 'idempotency_lease 5s; idempotency_ttl 1h;');
    my ($gate, $conn) = start_run($ng->port, 'expiry');
    my ($name) = keys_of($redis);
    is(ord substr($redis->command('GET', $name), 1, 1), 1, 'pending');
    my $pending = $redis->command('PTTL', $name);
    cmp_ok($pending, '>', 5_000, 'outlives its lease, to be known as unknown');
    cmp_ok($pending, '<=', 3_605_000, '... by the time that an unknown outcome is kept');
    $gate->open;
    $conn->response;
    my $completed = $redis->command('PTTL', $name);
    cmp_ok($completed, '<=', 3_600_000, 'completed: for its TTL');
    cmp_ok($completed, '>', 3_590_000, '... from its completion');
    post($ng->port, 'unknown', do => 'die=before');
    my ($unknown) = grep { $_ ne $name } keys_of($redis);
    cmp_ok($redis->command('PTTL', $unknown), '>', 3_590_000, 'unknown: as long');
    finish($ng);
};

subtest 'large bodies come back byte by byte' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url,
        params => 'timeout=5s', lines => 'idempotency_max_response 4m;');
    my $bytes = join '', map { pack 'N', $_ * 2654435761 % 2**32 } 1 .. 262_144;
    for my $case (['1 MB', $bytes], ['3 MB', $bytes x 3], ['no byte', '']) {
        my ($name, $body) = @$case;
        my $key = "large-$name" =~ s/ /-/gr;
        my @answers = map { post($ng->port, $key, body => $body, do => 'echo=1') } 1 .. 2;
        my ($n) = executions($key);
        is_deeply([map { said($_) } @answers], ["201 #$n", "201 #$n replayed"], $name);
        is_deeply([map { sha1_hex($_->{body}) } @answers], [(sha1_hex($body)) x 2], '... the same');
        is(ledger_count(key => $key), 1, '... executed once');
    }
    finish($ng);
};

subtest 'a record that is not understood is left alone, and its key refused' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    post($ng->port, 'version');
    my ($name) = keys_of($redis);
    my $record = $redis->command('GET', $name);
    for my $strange ("\2" . substr($record, 1), substr($record, 0, 40), "\1\2", '', 'text' x 50,
        substr($record, 0, 1) . "\x09" . substr($record, 2))
    {
        $redis->command('SET', $name, $strange, 'PX', 60_000);
        is(said(post($ng->port, 'version')), $REFUSED, 'refused');
        is(said(post($ng->port, 'version', body => 'other')), $REFUSED, 'whatever the body');
        ok($redis->command('GET', $name) eq $strange, 'untouched');
    }
    ok(lines_in($ng, qr/\[error\].*idempotency: /), 'a line is logged');
    $redis->command('SET', $name, $record, 'PX', 60_000);
    like(said(post($ng->port, 'version')), qr/^201 #\d+ replayed$/, 'the record itself is understood');
    is(ledger_count(key => 'version'), 1, 'executed once');
    finish($ng);
};

# ---- what Redis is asked --------------------------------------------------

sub cost ($redis, $what) {
    $redis->reset_stats;
    $what->();
    return $redis->command_stats;
}

subtest 'a claim is one command, and so is a replay' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    # From now on Redis knows the scripts.
    post($ng->port, 'warm');
    post($ng->port, 'warm', do => 'status=500', body => 'other');
    my %complete = (evalsha => 1, getrange => 1, set => 1);
    # Before Redis 7 it is a pair.
    my %claim = (set => 1, RedisServer::is_old() ? (get => 1) : ());
    is_deeply(cost($redis, sub { post($ng->port, 'cost') }), { %complete, %claim, set => 2 },
        'a first request: the claim, and the script that completes it');
    is_deeply(cost($redis, sub { post($ng->port, 'cost') }), \%claim, 'a replay');
    is_deeply(cost($redis, sub { post($ng->port, 'cost', body => 'other') }), \%claim,
        'another body');
    my ($gate, $conn) = start_run($ng->port, 'meet');
    post($ng->port, 'meet');
    is_deeply(cost($redis, sub { post($ng->port, 'meet') }),
        { set => 1, evalsha => 1, get => 1 + ($claim{get} // 0), pttl => 1 },
        'a duplicate of a run: the claim, and the script that judges the lease');
    $gate->open;
    $conn->response;
    is_deeply(cost($redis, sub { post($ng->port, 'k' x 300) }), {}, 'a key that is refused: nothing');
    is_deeply(cost($redis, sub { request($ng->port, 'GET', '/x') }), {}, 'one without a key: nothing');
    finish($ng);
};

subtest 'scripts that Redis has forgotten are sent again' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    my $flushed = sub ($name) { $redis->command('SCRIPT', 'FLUSH'); return $name };
    my $ask = sub ($key, %opt) { said(post($ng->port, $key, %opt)) };
    for my $round (1 .. 2) {
        my $first = $ask->($flushed->("flush-$round"));
        is($ask->("flush-$round"), "$first replayed", 'completed');
        $ask->($flushed->("free-$round"), do => 'status=500');
        like($ask->("free-$round"), qr/^201 #\d+$/, 'released');
        $ask->($flushed->("held-$round"), do => 'die=before');
        is($ask->("held-$round"), '409 outcome_unknown', 'held');
        my ($gate, $conn) = start_run($ng->port, "met-$round");
        is($ask->($flushed->("met-$round")), '409 in_progress', 'met');
        $gate->open;
        $conn->response;
    }
    my $name = 'many';
    my $gate = Keyed::Gate->new;
    my @conns = map { send_post($ng->port, "$name-$_", do => $gate->closed) } 1 .. 20;
    begun("$name-$_") for 1 .. 20;
    $flushed->($name);
    $gate->open;
    my @said = map { said($_) . ' replayed' } collect(\@conns);
    is_deeply([map { $ask->("$name-$_") } 1 .. 20], \@said, 'many at once');
    unlike($ng->error_log, qr/NOSCRIPT/, 'nobody is bothered');
    finish($ng);
};

subtest 'each worker has its connections, and they go with it' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'connections=3', workers => 2);
    my $connected = sub ($count) {
        wait_until(sub { $redis->clients == $count }, 10, "$count connections");
    };
    ok($connected->(6), 'connected before the first request');
    my @first = parallel(60, sub ($i) { post_args($ng->port, "each-$i") });
    my @second = parallel(60, sub ($i) { post_args($ng->port, "each-$i") });
    is_deeply([map { said($_) } @second], [map { said($_) . ' replayed' } @first],
        'many requests share them');
    is(scalar($redis->clients), 6, 'and need no more');
    ok($ng->reload, 'reloaded');
    ok($connected->(6), 'a reload leaves as many');
    is(said(post($ng->port, 'each-0')), said($first[0]) . ' replayed', 'and the records');
    ok($ng->restart, 'restarted');
    is(said(post($ng->port, 'each-0')), said($first[0]) . ' replayed', 'as does a restart');
    ok($ng->stop, 'stops');
    ok($connected->(0), 'without nginx there are none');
    $ng->check_logs;
};

# ---- configuration --------------------------------------------------------

sub refused ($store, $pattern, $name = $store) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($ok, $text) = Nginx->conf_test("idempotency_store default $store;");
    ok(!$ok, "refused: $name");
    like($text, qr/\[emerg\].*$pattern.* in \S+nginx\.conf:\d+$/m, '... and told why');
    return $text;
}

subtest 'what is not the address of a Redis is refused' => sub {
    my $said = qr/(?:store "default": |unknown store type )/;
    refused($_, $said) for 'redis://', 'redis:///1', 'redis://127.0.0.1:0', 'redis://127.0.0.1:99999',
        'redis://127.0.0.1:port', 'redis://127.0.0.1/first', 'redis://127.0.0.1/-1',
        'redis://user@127.0.0.1', 'redis://user:@127.0.0.1', 'redis+unix:', 'redis+unix:redis.sock',
        'redis+unix:/run/redis.sock?db=x', 'redis+unix:/run/redis.sock?name=1', 'redis:127.0.0.1',
        'redis://[::1', 'redis+unix:/' . 'long/' x 30 . 'redis.sock', 'redis://no-such-host.invalid';
    my $text = refused('redis://user:hidden-word@127.0.0.1:port', $said);
    unlike($text, qr/hidden-word/, 'without its password');
    refused('redis://user:100%zz@127.0.0.1', $said, 'a wrong escape');
};

subtest 'parameters that cannot be are refused, each by its name' => sub {
    refused("redis://127.0.0.1 $_", qr/\Q@{[ s{=.*}{}r ]}\E/)
        for 'timeout=0', 'timeout=soon', 'timeout=', 'connect_timeout=0', 'connect_timeout=x',
        'connections=0', 'connections=x', 'connections=-1', 'colour=red', 'prefix', 'user=app',
        'password_file=/no/such/file', 'tls_verify=maybe';
    refused("redis://127.0.0.1 $_", qr/tls_/) for 'tls_ca=/etc/hosts', 'tls_name=x', 'tls_verify=off';
    refused("rediss://127.0.0.1 $_", qr/tls_cert.*tls_key/) for 'tls_cert=/etc/hosts', 'tls_key=/etc/hosts';
    refused('redis://app:secret@127.0.0.1 user=other', qr/user/, 'two users');
    # nginx itself tells of these, and not of the line.
    for my $parameter ('tls_ca=/no/such/file', 'tls_cert=/no/such/file tls_key=/no/such/file') {
        my ($ok, $text) = Nginx->conf_test("idempotency_store default rediss://127.0.0.1 $parameter;");
        ok(!$ok, "refused: $parameter");
        like($text, qr{\[emerg\].*"/no/such/file"}, '... and told which file');
    }
};

subtest 'a timeout longer than a third of a lease in use is refused' => sub {
    my $conf = sub ($timeout, $http, $location) {
        return Nginx->conf_test(<<"CONF");
        idempotency_store default redis://127.0.0.1 timeout=$timeout;
        idempotency_scope none;
        $http
        server {
            listen 127.0.0.1:%%PORT%%;
            location /open { return 200; }
            location = /kept { $location proxy_pass http://127.0.0.1:1; }
        }
CONF
    };
    my $said = qr/the "timeout" of idempotency store "default" is \d+ms, but "idempotency_lease" for location "\/kept" is \d+ms/;
    for (['11s', '', 'idempotency on;'], ['250ms', 'idempotency_lease 700ms;', 'idempotency on;'],
        ['1s', 'idempotency on;', 'idempotency_lease 2s;'])
    {
        my ($ok, $text) = $conf->(@$_);
        ok(!$ok, "refused: @$_");
        like($text, qr/\[emerg\].*$said/, '... and told why');
    }
    for (['10s', '', 'idempotency on;'], ['1s', 'idempotency_lease 1s;', 'idempotency on; idempotency_lease 3s;'],
        ['1m', '', ''], ['1s', 'idempotency on; idempotency_lease 1s;', 'idempotency off;'])
    {
        my ($ok, $text) = $conf->(@$_);
        ok($ok, "accepted: @$_") or diag($text);
    }
};

done_testing();
