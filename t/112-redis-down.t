#!/usr/bin/env perl

# Redis goes away in every way it can, and comes back.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use FreePorts qw(free_ports);
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

# One line for each change, however many requests there were.
sub changed ($ng, $times = 1) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($gone, $back) = map { scalar lines_in($ng, $_) } $GONE, $BACK;
    is_deeply([$gone, $back], [$times, $times], 'a line when it went, a line when it came back')
        or diag(lines_in($ng, qr/redis/i));
}

# Refused, soon, and not run.
sub refused ($ng, $key) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $answer = post($ng->port, $key);
    is(said($answer), $REFUSED, 'refused');
    is(status_of($answer), 'STORE_ERROR', '... as a failure of the store');
    is_deeply($answer->{headers}{'retry-after'}, ['1'], '... to be tried again');
    cmp_ok($answer->{time}, '<', 2, '... soon');
    is(ledger_count(key => $key), 0, '... not executed');
}

# ---- the ways -------------------------------------------------------------

subtest 'nginx starts without Redis, and finds it when it is there' => sub {
    my ($port) = free_ports(1);
    my $ng = on_redis_nginx("redis://127.0.0.1:$port");
    refused($ng, 'absent');
    my $redis = RedisServer->start(port => $port);
    is_back($ng);
    my $first = said(post($ng->port, 'absent'));
    is(said(post($ng->port, 'absent')), "$first replayed", 'the same key runs then, once');
    changed($ng);
    finish($ng);
};

subtest 'a socket that is not there yet' => sub {
    my $redis = RedisServer->start;
    $redis->kill;
    unlink $redis->path('redis.sock');
    my $ng = on_redis_nginx($redis->unix_url);
    refused($ng, 'socket');
    $redis->launch;
    is_back($ng);
    changed($ng);
    finish($ng);
};

for my $case (
    ['is killed',                 sub ($redis, $proxy) { $redis->kill }, sub ($redis, $proxy) { $redis->launch }],
    ['stands still',              sub ($redis, $proxy) { $redis->freeze }, sub ($redis, $proxy) { $redis->thaw }],
    ['is cut off without a word', sub ($redis, $proxy) { $proxy->mode('stall') }, sub ($redis, $proxy) { $proxy->mode('pass') }],
    ['does not answer',           sub ($redis, $proxy) { $proxy->mode('mute') }, sub ($redis, $proxy) { $proxy->mode('pass') }],
    ['resets every connection',   sub ($redis, $proxy) { $proxy->mode('cut') }, sub ($redis, $proxy) { $proxy->mode('pass') }],
    ['refuses every connection',  sub ($redis, $proxy) { $proxy->mode('refuse') }, sub ($redis, $proxy) { $proxy->mode('pass') }],
    )
{
    my ($name, $break, $mend) = @$case;
    subtest "Redis $name" => sub {
        my ($redis, $proxy) = proxied_redis(aof => 'always');
        my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=500ms');
        my $key = $name =~ s/ /-/gr;
        my $first = said(post($ng->port, "$key-known"));
        like($first, qr/^201 #\d+$/, 'it was there');
        $break->($redis, $proxy);
        refused($ng, "$key-new");
        is(said(post($ng->port, "$key-known")), $REFUSED, 'what is stored is not at hand');
        my @answers = map { post($ng->port, "$key-$_") } 1 .. 20;
        is_deeply(tally(@answers), { $REFUSED => 20 }, 'all are refused');
        my @times = sort { $a <=> $b } map { $_->{time} } @answers;
        cmp_ok($times[10], '<', 0.25, 'at once, by now') or diag("@times");
        my $passed = post($ng->port, "$key-pass", uri => '/pass');
        like(said($passed), qr/^201 #\d+$/, 'where that is wanted they run unprotected');
        is(status_of($passed), 'STORE_ERROR', '... and it shows');
        $mend->($redis, $proxy);
        is_back($ng);
        is(said(post($ng->port, "$key-known")), "$first replayed", 'what was stored is replayed');
        # A claim of before may have to be taken back yet.
        my $new = wait_said(qr/^201/, sub { post($ng->port, "$key-new") });
        like($new, qr/^201 #\d+$/, 'what was refused runs');
        is_deeply([map { ledger_count(key => "$key-$_") } qw(known new)], [1, 1], 'each once');
        changed($ng);
        my ($line) = lines_in($ng, $BACK);
        my ($count) = ($line // '') =~ /available again.* (\d+) requests could not claim/;
        cmp_ok($count // 0, '>=', 23, 'which says how many claims failed') or diag($line);
        finish($ng, signal => 'TERM');
    };
}

# ---- what it costs --------------------------------------------------------

subtest 'hundreds of requests to a Redis that stands still are all answered in time' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=500ms', workers => 2);
    is_back($ng);
    $redis->freeze;
    my $began = time;
    my @answers = parallel(300, sub ($i) { post_args($ng->port, "still-$i") });
    my $took = time - $began;
    is_deeply(tally(@answers), { $REFUSED => 300 }, 'refused');
    cmp_ok($took, '<', 6, 'they do not queue up');
    cmp_ok($_, '<=', 2, 'a line for each worker at most') for scalar lines_in($ng, $GONE);
    $redis->thaw;
    is_back($ng);
    my @keys = map {"still-$_"} 0 .. 299;
    my %left = map { $_ => 1 } @keys;
    wait_until(sub {
        for my $key (keys %left) {
            delete $left{$key} if said(post($ng->port, $key)) =~ /^201/;
        }
        return !%left;
    }, 15, 'every key');
    is_deeply([sort keys %left], [], 'all of them run then');
    is(scalar(grep { ledger_count(key => $_) != 1 } @keys[0 .. 19]), 0, 'once');
    finish($ng, signal => 'TERM');
};

subtest 'a worker without Redis has nothing to do' => sub {
    my ($port) = free_ports(1);
    my $ng = on_redis_nginx("redis://127.0.0.1:$port", params => 'connections=2');
    my ($worker) = $ng->worker_pids;
    my $before = cpu_time($worker);
    sleep 1.5;
    cmp_ok(cpu_time($worker) - $before, '<', 0.3, 'it does not try all the time');
    cmp_ok(scalar lines_in($ng, $GONE), '<=', 1, 'nor say so');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a connection that Redis closes while nobody uses it costs no request' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=5s connect_timeout=5s');
    is_back($ng);
    my @said;
    for my $i (1 .. 10) {
        my ($id) = map { /^id=(\d+)/ ? $1 : () } $redis->clients;
        $redis->command('CLIENT', 'KILL', 'ID', $id);
        # Seen by nginx before the request.
        sleep 0.05;
        push @said, said(post($ng->port, "idle-$i"));
        wait_until(sub { $redis->clients == 1 }, 5, 'a connection');
    }
    is(scalar(grep {/^201 #\d+$/} @said), 10, 'all run') or diag(@said);
    is(scalar lines_in($ng, $GONE), 0, 'nothing is logged') or diag(lines_in($ng, $GONE));
    finish($ng);
};

subtest 'many outages, a line for each' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=500ms');
    for my $i (1 .. 4) {
        is_back($ng);
        $proxy->mode($i % 2 ? 'refuse' : 'stall');
        is_deeply(tally(map { post($ng->port, "outage-$i-$_") } 1 .. 5), { $REFUSED => 5 },
            'refused');
        $proxy->mode('pass');
    }
    is_back($ng);
    changed($ng, 4);
    finish($ng);
};

subtest 'many connections are one server: a line for each change' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'connections=4 timeout=500ms connect_timeout=500ms');
    wait_until(sub { $redis->clients == 4 }, 5, 'the connections');
    my $outages = 0;
    for my $mode ('stall', 'refuse') {
        $outages++;
        $proxy->mode($mode);
        is_deeply(tally(parallel(40, sub ($i) { post_args($ng->port, "$mode-$i") })),
            { $REFUSED => 40 }, "refused: $mode");
        $proxy->mode('pass');
        ok(wait_until(sub { lines_in($ng, $BACK) == $outages }, 15, 'its end'), 'it comes back');
        is(scalar(grep {/^201/} map { said(post($ng->port, "$mode-back-$_")) } 1 .. 20), 20,
            'by all connections');
    }
    changed($ng, 2);
    finish($ng, signal => 'TERM');
};

# ---- records --------------------------------------------------------------

subtest 'what Redis forgets at its restart, and nobody puts back, runs again' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'reassert=0');
    my $first = said(post($ng->port, 'forgotten'));
    is(said(post($ng->port, 'forgotten')), "$first replayed", 'known');
    $redis->restart;
    is_back($ng);
    like(said(post($ng->port, 'forgotten')), qr/^201 #\d+$/, 'unknown');
    is(ledger_count(key => 'forgotten'), 2, 'executed again: durability is a matter of Redis');
    finish($ng);
};

subtest 'a run that lasts longer than an outage is known all the time' => sub {
    my $redis = RedisServer->start(aof => 'always');
    my $ng = on_redis_nginx($redis->url, params => 'timeout=500ms', lines => 'idempotency_lease 6s;');
    my ($gate, $conn) = start_run($ng->port, 'outlives');
    $redis->kill;
    is(said(post($ng->port, 'outlives')), $REFUSED, 'a duplicate is refused meanwhile');
    $redis->launch;
    is_back($ng);
    is(said(post($ng->port, 'outlives')), '409 in_progress', 'still in progress');
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'it ends');
    is(said(post($ng->port, 'outlives')), "$first replayed", 'and is replayed');
    is(ledger_count(key => 'outlives'), 1, 'executed once');
    finish($ng);
};

subtest 'a Redis that takes bytes and does nothing is found out while requests come' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=500ms');
    is_back($ng);
    $proxy->mode('stall');
    my ($n, @sent) = (0);
    ok(wait_until(sub {
        push @sent, send_post($ng->port, 'steady-' . $n++);
        sleep 0.1;
        return lines_in($ng, $GONE);
    }, 5, 'a line'), 'it is said to be away');
    is_deeply(tally(collect(\@sent, 10)), { $REFUSED => $n }, 'all are refused');
    $proxy->mode('pass');
    is_back($ng);
    finish($ng, signal => 'TERM');
};

# They know that it runs: whatever Redis does meanwhile, it must not run again.
for my $uri ('/', '/pass') {
    subtest "those who wait for a run outlast a Redis that stands still ($uri)" => sub {
        my $redis = RedisServer->start;
        my ($owner, $other) = map {
            on_redis_nginx($redis->url, params => 'timeout=1s', lines => 'idempotency_wait 30s;');
        } 1 .. 2;
        my $key = $uri eq '/' ? 'waits' : 'waits-pass';
        my ($gate, $conn) = start_run($owner->port, $key, uri => $uri);
        $redis->reset_stats;
        my @waiters = map { send_post($other->port, $key, uri => $uri) } 1 .. 10;
        wait_until(sub { under_way($other->port(3)) == 10 }, 10, 'the waiters');
        # Who asks for the second time knows what it waits for.
        wait_until(sub { ($redis->command_stats->{pttl} // 0) >= 2 }, 10, 'two questions');
        $redis->freeze;
        wait_until(sub { lines_in($other, qr/is unavailable/) }, 10, 'an outage');
        $redis->thaw;
        wait_until(sub { lines_in($other, qr/is available again/) }, 10, 'its end');
        $gate->open;
        my $first = said($conn->response);
        is_deeply(tally(collect(\@waiters, 15)), { "$first replayed" => 10 }, 'all get the answer');
        is(ledger_count(key => $key), 1, 'executed once');
        finish($_) for $other, $owner;
    };
}

subtest 'a short outage does not cost a long run its lease' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=500ms connect_timeout=500ms',
        lines => 'idempotency_lease 6s; idempotency_unknown_outcome release;');
    is_back($ng);
    my ($gate, $conn) = start_run($ng->port, 'lease');
    my $began = time;
    # Over the renewals after two seconds and after four.
    sleep 1.8;
    $redis->freeze;
    sleep 2.6;
    $redis->thaw;
    my %said;
    while (time < $began + 7.5) {
        $said{ said(post($ng->port, 'lease')) }++;
        sleep 0.1;
    }
    delete $said{$REFUSED};
    is_deeply([keys %said], ['409 in_progress'], 'nobody takes over');
    $gate->open;
    like(said($conn->response), qr/^201 #\d+$/, 'it ends');
    is(ledger_count(key => 'lease'), 1, 'executed once');
    finish($ng);
};

subtest 'nginx ends and reloads without Redis' => sub {
    my ($port) = free_ports(1);
    my $ng = on_redis_nginx("redis://127.0.0.1:$port", workers => 2);
    ok($ng->reload, 'reloads');
    refused($ng, 'reloaded');
    my $began = time;
    ok($ng->stop, 'stops');
    cmp_ok(time - $began, '<', 3, 'at once');
    $ng->check_logs;
};

done_testing();
