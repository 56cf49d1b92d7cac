#!/usr/bin/env perl

# "local": finished records are copied to a zone of the host, and retries get
# the copy. Redis is not asked, and need not be there.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Admin ();
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;
use Status ();

redis_only();

my $PASS = 'proxy_pass http://application;';
my $AGES = join ' ', 'add_header X-Age $idempotency_age always;',
    'add_header X-Expires $idempotency_expires always; add_header X-Pid $pid always;';

my $redis = RedisServer->start;

# params: besides the copy; local: its parameters; more: locations.
sub local_nginx (%opt) {
    my $more = delete $opt{more} // '';
    my $params = join ' ', delete $opt{local} // 'local=1m local_ttl=1h', delete $opt{params} // ();
    my $server = delete $opt{redis} // $redis;
    $opt{lines} = join ' ', $AGES, $opt{lines} // ();
    return on_redis_nginx($server->url, %opt, params => $params, servers => servers($more));
}

sub servers ($more) {
    return <<"CONF";
    server {
        listen 127.0.0.1:%%PORT4%%;
        location = /admin { allow 127.0.0.1; deny all; idempotency_admin; }
        location = /status { idempotency_status; }
        location = /metrics { idempotency_status prometheus; }
    }
    server {
        listen 127.0.0.1:%%PORT2%%;
        $more
    }
CONF
}

# How many commands about records these requests cost.
sub asked ($requests, $server = $redis) { return scalar $server->commands_during($requests) }

# Records of runs that have not ended.
sub pending {
    return grep { ord(substr $redis->command('GET', $_), 1, 1) == 1 } grep {/^idem:[0-9a-f]{32}$/} keys_of($redis);
}

sub says ($ng, $key, $wanted, $title, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return is(said(post($ng->port, $key, %opt)), $wanted, $title);
}

# Redis is not asked, whatever the answer is.
sub says_by_itself ($ng, $key, $wanted, $title, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(asked(sub { says($ng, $key, $wanted, $title, %opt) }), 0, '... Redis is not asked');
}

sub first ($ng, $key, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $said = said(post($ng->port, $key, %opt));
    like($said, qr/^201 #\d+$/, 'it runs');
    return $said;
}

# ---- what a copy answers --------------------------------------------------

subtest 'a replay does not ask Redis, from the first one on' => sub {
    my $ng = local_nginx();
    my $before = Status::store_counts($ng);
    my $response = post($ng->port, 'plain', do => 'h=X-Own:1');
    my $first = said($response);
    like($first, qr/^201 #\d+$/, 'it runs');
    is(asked(sub {
        for (1 .. 5) {
            my $replay = post($ng->port, 'plain');
            is(said($replay), "$first replayed", 'replayed');
            is($replay->{body}, $response->{body}, '... the body');
            is(header($replay, 'X-Own'), 1, '... and the headers');
            is(status_of($replay), 'REPLAY', '... and its status');
        }
    }), 0, 'Redis is not asked');
    is(ledger_count(key => 'plain'), 1, 'executed once');
    is_deeply(Status::counted($before, Status::store_counts($ng)), { 'operation_seconds.claim' => 1,
        'operation_seconds.complete' => 1, 'operation_seconds.local' => 5 }, 'they are counted');
    like(request($ng->port(4), 'GET', '/metrics')->{body},
        qr/^nginx_idempotency_store_operation_seconds_count\{store="default",operation="local"\} 5$/m,
        'for Prometheus too');
    finish($ng);
};

subtest 'without "local" Redis is asked each time' => sub {
    my $ng = local_nginx(local => '');
    my $first = first($ng, 'without');
    is(asked(sub { says($ng, 'without', "$first replayed", 'replayed') for 1 .. 5 }),
        RedisServer::is_old() ? 10 : 5, 'asked');
    finish($ng);
};

subtest 'another request with the key is refused' => sub {
    my $ng = local_nginx();
    my $first = first($ng, 'reused');
    says_by_itself($ng, 'reused', '422 key_reused', 'another body', body => 'other');
    is(status_of(post($ng->port, 'reused', body => 'other')), 'REUSED', 'its status');
    says_by_itself($ng, 'reused', "$first replayed", 'the first one is replayed');
    is(ledger_count(key => 'reused'), 1, 'executed once');
    finish($ng);
};

subtest 'a copy that another body has brought is that of the record' => sub {
    my ($owner, $other) = map { local_nginx() } 1 .. 2;
    my $first = first($owner, 'brought');
    says($other, 'brought', '422 key_reused', 'another body', body => 'other');
    says_by_itself($other, 'brought', '422 key_reused', 'once more', body => 'other');
    says_by_itself($other, 'brought', "$first replayed", 'the first one is replayed');
    finish($_) for $owner, $other;
};

subtest 'a response that is not kept' => sub {
    my $ng = local_nginx();
    my $do = 'h=X-Accel-Idempotency:discard&h=Location:/new';
    first($ng, 'discarded', do => $do);
    my $retry;
    is(asked(sub { $retry = post($ng->port, 'discarded') }), 0, 'Redis is not asked');
    is(said($retry), '409 response_not_kept', 'refused');
    is(status_of($retry), 'NOT_KEPT', 'its status');
    is(member($retry, 'original_status'), 201, 'the first status');
    is(member($retry, 'original_location'), '/new', 'and Location');
    is(ledger_count(key => 'discarded'), 1, 'executed once');
    finish($ng);
};

subtest 'what is not finished has no copy' => sub {
    my $ng = local_nginx();
    my ($gate, $conn) = start_run($ng->port, 'runs');
    for (1 .. 2) {
        cmp_ok(asked(sub { says($ng, 'runs', '409 in_progress', 'it runs') }), '>', 0, 'asked');
    }
    $gate->open;
    my $first = said($conn->response);
    says_by_itself($ng, 'runs', "$first replayed", 'replayed as soon as it has ended');
    post($ng->port, 'unknown', do => 'die=before');
    for (1 .. 2) {
        cmp_ok(asked(sub { says($ng, 'unknown', '409 outcome_unknown', 'unknown') }), '>', 0, 'asked');
    }
    post($ng->port, 'fails', do => 'status=500');
    first($ng, 'fails');
    is(ledger_count(key => 'fails'), 2, 'a released key runs again');
    finish($ng);
};

subtest 'empty replays, JSON-RPC and a dry run' => sub {
    my $ng = local_nginx(more => <<"CONF");
        idempotency on;
        location /empty { idempotency_replay empty; $PASS }
        location /rpc { idempotency_jsonrpc on; $PASS }
        location /dry { idempotency_dry_run on; $PASS }
CONF
    my $ask = sub ($key, $uri, %opt) { post($ng->port(2), $key, uri => $uri, %opt) };
    $ask->('empty', '/empty');
    is(asked(sub { is($ask->('empty', '/empty')->{status}, 204, 'empty') }), 0, 'by itself');

    my $call = sub ($id) {
        return $ask->('call', '/rpc', headers => ['Content-Type' => 'application/json'],
            do => 'type=application/json&body={"jsonrpc":"2.0","id":1,"result":{}}',
            body => qq({"jsonrpc":"2.0","method":"m","id":$id}));
    };
    is($call->(1)->{body}, '{"jsonrpc":"2.0","id":1,"result":{}}', 'a call');
    is(asked(sub { is($call->(7)->{body}, '{"jsonrpc":"2.0","id":7,"result":{}}', 'its replay') }), 0,
        'by itself');

    $ask->('dry', '/dry');
    # The client of a dry run does not wait for that.
    wait_until(sub { !pending() }, 5, 'its outcome');
    is(asked(sub { is(status_of($ask->('dry', '/dry')), 'REPLAY', 'dry run') }), 0, 'by itself');
    is(ledger_count(key => 'dry'), 2, '... which runs');
    is(scalar lines_in($ng, qr/dry run: this request would get the stored response/), 1, 'and tells');
    finish($ng);
};

subtest 'age and expiry are those of the record' => sub {
    my $ng = local_nginx(lines => 'idempotency_ttl 1h;');
    my $asks = local_nginx(lines => 'idempotency_ttl 1h;', local => '');
    my $other = local_nginx(lines => 'idempotency_ttl 1h;');
    post($ng->port, 'age');
    post($other->port, 'age');
    sleep 4.2;
    my $began = time;
    my ($copy, $brought, $record) = map { post($_->port, 'age') } $ng, $other, $asks;
    # Whole seconds, and what a host knows of the clock of Redis.
    my $about = 2 + time - $began;
    cmp_ok(header($record, 'X-Age'), '>=', 4, 'the record is some seconds old');
    for (['of the one that ran it', $copy], ['of another host', $brought]) {
        my ($whose, $replay) = @$_;
        for my $name (qw(X-Age X-Expires)) {
            cmp_ok(abs(header($replay, $name) - header($record, $name)), '<=', $about, "$name $whose");
        }
    }
    finish($_) for $ng, $other, $asks;
};

# ---- how long -------------------------------------------------------------

subtest 'a copy lasts for "local_ttl", then Redis is asked' => sub {
    my $ng = local_nginx(local => 'local=1m local_ttl=1s');
    my $first = first($ng, 'lasts');
    my ($began, $replays) = (time, 0);
    my %said;
    my $asked = asked(sub {
        wait_until(sub {
            $said{ said(post($ng->port, 'lasts')) }++;
            $replays++;
            time - $began > 3.5;
        }, 10, '3.5 s');
    });
    is_deeply([keys %said], ["$first replayed"], 'always replayed');
    cmp_ok($asked, '>=', 2, "Redis is asked now and then: $asked times");
    cmp_ok($asked, '<=', 2 * (time - $began + 1), "not for each of $replays replays");
    is(ledger_count(key => 'lasts'), 1, 'executed once');
    finish($ng);
};

# The last moment at which a request was sent that was replayed.
sub last_replay ($ng, $key) {
    my ($last, $sent) = (0);
    wait_until(sub {
        $sent = time;
        my $said = said(post($ng->port, $key));
        $last = $sent if $said =~ /replayed/;
        $said !~ /replayed/;
    }, 20, "$key to expire");
    return $last;
}

# A request may find the record in its last moments. How long it still lasts is
# known to within a tick of nginx's clock and the time that a reply takes.
my $REPLY = 5;

subtest 'a copy does not outlast its record' => sub {
    my ($owner, $other) = map { local_nginx(lines => 'idempotency_ttl 2s;') } 1 .. 2;
    my $first = first($owner, 'brief');
    my $stored = time;
    cmp_ok(last_replay($owner, 'brief'), '<', $stored + 2 + $REPLY, 'of the one that ran it');
    is(ledger_count(key => 'brief'), 2, 'it runs again');

    $first = first($owner, 'brief-2');
    $stored = time;
    says($other, 'brief-2', "$first replayed", 'another host has a copy');
    cmp_ok(last_replay($other, 'brief-2'), '<', $stored + 2 + $REPLY, 'nor there');
    is(ledger_count(key => 'brief-2'), 2, 'it runs again');
    finish($_) for $owner, $other;
};

# ---- Redis is not there ---------------------------------------------------

subtest 'replays go on while Redis is down, for "local_ttl"' => sub {
    my $server = RedisServer->start;
    my $ng = local_nginx(redis => $server, local => 'local=1m local_ttl=10s');
    my $first = first($ng, 'down');
    my $stored = time;
    $server->kill;
    says($ng, 'down', "$first replayed", 'replayed') for 1 .. 3;
    says($ng, 'down', '422 key_reused', 'another body', body => 'other');
    says($ng, 'down-new', $REFUSED, 'a new key is refused');
    is(wait_said($REFUSED, sub { post($ng->port, 'down') }, 20), $REFUSED, 'until the copy is too old');
    cmp_ok(time - $stored, '>', 5, 'which takes its time');
    is(ledger_count(key => 'down'), 1, 'executed once');
    finish($ng, signal => 'TERM');
};

subtest 'Redis hangs: a replay does not wait for it' => sub {
    my $server = RedisServer->start;
    my $ng = local_nginx(redis => $server, params => 'timeout=10s connect_timeout=10s');
    my $first = first($ng, 'hangs');
    $server->freeze;
    my $at = time;
    says($ng, 'hangs', "$first replayed", 'replayed') for 1 .. 3;
    cmp_ok(time - $at, '<', 8, 'at once');
    $server->thaw;
    finish($ng);
};

subtest 'what Redis has not acknowledged has no copy' => sub {
    my $server = RedisServer->start;
    my $ng = local_nginx(redis => $server);
    my ($gate, $conn) = start_run($ng->port, 'late');
    $server->kill;
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'the client is answered');
    says($ng, 'late', $REFUSED, 'a retry is refused');
    $server->launch;
    is(wait_said("$first replayed", sub { post($ng->port, 'late') }, 15), "$first replayed",
        'and replayed when its outcome is stored');
    is(ledger_count(key => 'late'), 1, 'executed once');
    finish($ng);
};

# ---- workers, hosts, reloads ----------------------------------------------

subtest 'all workers have it' => sub {
    my $ng = local_nginx(workers => 2);
    my ($one, $two) = map { connection_to($ng->port, $_) } $ng->worker_pids;
    my $send = sub ($conn) {
        my (undef, @arguments) = post_args($ng->port, 'workers');
        $conn->send(@arguments, headers => ['Idempotency-Key' => 'workers', Connection => 'keep-alive']);
        return $conn->response;
    };
    my $run = $send->($one);
    my $replay;
    is(asked(sub { $replay = $send->($two) }), 0, 'Redis is not asked');
    is(said($replay), said($run) . ' replayed', 'the other one replays it');
    isnt(pid_of($replay), pid_of($run), '... it is another one');
    $_->close for $one, $two;
    finish($ng);
};

subtest 'a worker is killed: the others go on' => sub {
    my $ng = local_nginx(workers => 2);
    my $first = first($ng, 'killed');
    my ($pid) = $ng->worker_pids;
    kill KILL => $pid;
    wait_until(sub { is_gone($pid) && $ng->worker_pids == 2 }, 10, 'another worker');
    says_by_itself($ng, 'killed', "$first replayed", 'replayed') for 1 .. 4;
    finish($ng, killed => 1, allow => qr/exited on signal 9/);
};

subtest 'each host has its own' => sub {
    my ($owner, $other) = map { local_nginx() } 1 .. 2;
    my $first = first($owner, 'hosts');
    is(asked(sub { says($other, 'hosts', "$first replayed", 'another host replays it') }),
        RedisServer::is_old() ? 2 : 1, 'and has to ask once');
    says_by_itself($other, 'hosts', "$first replayed", 'then it has a copy');
    is(ledger_count(key => 'hosts'), 1, 'executed once');
    finish($_) for $owner, $other;
};

subtest 'duplicates that wait, in all workers of two hosts' => sub {
    my @ng = map { local_nginx(workers => 2, lines => 'idempotency_wait 20s;') } 1 .. 2;
    my ($gate, $conn) = start_run($ng[0]->port, 'waits');
    my @waiters = map { send_post($ng[$_ % 2]->port, 'waits') } 1 .. 20;
    wait_parked($ng[0], 11);
    wait_parked($ng[1], 10);
    $gate->open;
    my $first = said($conn->response);
    is_deeply(tally(collect(\@waiters, 15)), { "$first replayed" => 20 }, 'all get its answer');
    is(ledger_count(key => 'waits'), 1, 'executed once');
    finish($_) for @ng;
};

subtest 'a reload keeps the copies, unless the size or the server changes' => sub {
    my $ng = local_nginx();
    my $conf = $ng->{http};
    my $first = first($ng, 'reload');
    ok($ng->reload, 'reloaded');
    says_by_itself($ng, 'reload', "$first replayed", 'it is still there');
    ok($ng->reload_config($conf =~ s/local=1m/local=2m/r), 'reloaded with another size');
    cmp_ok(asked(sub { says($ng, 'reload', "$first replayed", 'replayed') }), '>', 0, 'Redis is asked');
    says_by_itself($ng, 'reload', "$first replayed", 'then it is there again');
    ok($ng->reload_config($conf =~ s/local_ttl=1h/local_ttl=10ms/r), 'with a shorter time');
    $first = said(post($ng->port, 'reload'));
    sleep 0.02;
    cmp_ok(asked(sub { says($ng, 'reload', $first, 'replayed') }), '>', 0, 'Redis is asked');
    for my $other ('prefix=other:', 'connections=1') {
        ok($ng->reload_config($conf), 'as it was');
        $first = said(post($ng->port, 'reload')) =~ s/ replayed//r;
        ok($ng->reload_config($conf =~ s/local=1m/$other local=1m/r), "with $other");
        says($ng, 'reload', "$first replayed", 'the same records') if $other !~ /prefix/;
        isnt(said(post($ng->port, 'reload')), "$first replayed", 'other records') if $other =~ /prefix/;
    }
    is(ledger_count(key => 'reload'), 2, 'executed once in each of two stores');
    finish($ng);
};

# ---- administrators -------------------------------------------------------

subtest 'what an administrator deletes is gone at once here, in a while there' => sub {
    my ($here, $there) = map { local_nginx(workers => 2, local => 'local=1m local_ttl=5s') } 1 .. 2;
    my $first = first($here, 'deleted');
    my $began = time;
    says($there, 'deleted', "$first replayed", 'both have a copy');
    my $id = Admin::answer_of(Admin::act($here, act => 'find', key => 'deleted',
        host => 'localhost', method => 'POST', path => '/x'))->{id};
    is(Admin::act($here, act => 'delete', id => $id)->{status}, 200, 'deleted');
    my $second = first($here, 'deleted');
    isnt($second, $first, 'it runs again');
    says_by_itself($here, 'deleted', "$second replayed", 'that is replayed here');
    my $there_said = said(post($there->port, 'deleted'));
    is($there_said, "$first replayed", 'there the copy is still used') if time - $began < 5;
    is(wait_said("$second replayed", sub { post($there->port, 'deleted') }, 8), "$second replayed",
        '... and is too old in the end');
    is(ledger_count(key => 'deleted'), 2, 'executed twice, as was wanted');
    finish($_) for $here, $there;
};

subtest 'an unknown outcome that is settled' => sub {
    my $server = RedisServer->start;
    my $ng = local_nginx(redis => $server);
    post($ng->port, 'settled', do => 'die=before');
    my ($record) = Admin::unknown_of($ng);
    is(Admin::act($ng, act => 'complete', id => $record->{id}, status => 202, body => 'done')->{status},
        200, 'settled');
    is(post($ng->port, 'settled')->{body}, 'done', 'replayed');
    is(asked(sub { is(post($ng->port, 'settled')->{body}, 'done', 'replayed') }, $server), 0,
        'then by itself');
    is(ledger_count(key => 'settled'), 1, 'executed once');
    finish($ng);
};

# ---- size -----------------------------------------------------------------

subtest 'the oldest copies make room; nothing is refused, nothing is logged' => sub {
    my $ng = local_nginx(local => 'local=32k local_ttl=1h');
    my %first = map { $_ => first($ng, "full-$_", do => 'size=1000') } 1 .. 60;
    says_by_itself($ng, "full-$_", "$first{$_} replayed", "$_ has a copy") for 56 .. 60;
    cmp_ok(asked(sub { says($ng, 'full-1', "$first{1} replayed", 'the oldest is replayed') }), '>', 0,
        'Redis is asked for it');
    is(asked(sub { says($ng, 'full-1', "$first{1} replayed", 'again') }), 0, 'and it has a copy again');
    for (1 .. 60) {
        is(said(post($ng->port, "full-$_")), "$first{$_} replayed", "$_ is replayed");
    }
    my $large = first($ng, 'large', do => 'size=20000');
    for (1 .. 2) {
        cmp_ok(asked(sub { says($ng, 'large', "$large replayed", 'too large for a copy') }), '>', 0, 'asked');
    }
    is_deeply([lines_in($ng, qr/\[(?:warn|error|alert|emerg)\]/)], [], 'nothing is logged');
    finish($ng);
};

done_testing();
