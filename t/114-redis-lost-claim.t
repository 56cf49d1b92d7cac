#!/usr/bin/env perl

# A claim whose answer is lost was refused, though Redis may have granted it:
# it is given back, so that the retry it asked for can run.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

my $PARAMS = 'timeout=500ms connect_timeout=1s';

sub start_all (%opt) {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS, %opt);
    is_back($ng);
    return ($ng, $redis, $proxy);
}

# Long before the lease of 30 s ends.
sub runs ($ng, $key, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($said, %other) = ('');
    wait_until(sub {
        $said = said(post($ng->port, $key, %opt));
        return 1 if $said =~ /^201/;
        $other{$said}++;
        return 0;
    }, 12, $key);
    like($said, qr/^201 #\d+$/, 'a retry runs');
    delete @other{ $REFUSED, '409 in_progress' };
    is_deeply(\%other, {}, 'until then it is only told to come again');
    return $said;
}

my %WAYS = (
    'that wakes up'    => [sub ($redis, $proxy) { $redis->freeze }, sub ($redis, $proxy) { $redis->thaw }],
    'whose answer is late' =>
        [sub ($redis, $proxy) { $proxy->mode('mute') }, sub ($redis, $proxy) { $proxy->mode('pass') }],
    'whose answer never comes' => [
        sub ($redis, $proxy) { $proxy->mode('mute') },
        sub ($redis, $proxy) { $proxy->mode('cut'); $proxy->mode('pass') },
    ],
    'that gets it late' =>
        [sub ($redis, $proxy) { $proxy->mode('stall') }, sub ($redis, $proxy) { $proxy->mode('pass') }],
);

for my $way (sort keys %WAYS) {
    my ($break, $mend) = @{ $WAYS{$way} };
    my $key = $way =~ s/ /-/gr;

    subtest "a claim to a Redis $way is given back" => sub {
        my ($ng, $redis, $proxy) = start_all();
        $break->($redis, $proxy);
        is(said(post($ng->port, "$key-free")), $REFUSED, 'refused');
        $mend->($redis, $proxy);
        my $first = runs($ng, "$key-free");
        is(said(post($ng->port, "$key-free")), "$first replayed", 'and is replayed');
        is_deeply([attempts_of("$key-free")], [1], 'executed once, as a first attempt');
        finish($ng, signal => 'TERM');
    };

    subtest "a record that such a claim met is left alone ($way)" => sub {
        my ($ng, $redis, $proxy) = start_all();
        my $done = said(post($ng->port, "$key-done"));
        my ($gate, $conn) = start_run($ng->port, "$key-run");
        post($ng->port, "$key-held", do => 'die=before');
        $break->($redis, $proxy);
        my @keys = map {"$key-$_"} qw(done run held);
        is_deeply(tally(parallel(3, sub ($i) { post_args($ng->port, $keys[$i]) })),
            { $REFUSED => 3 }, 'refused');
        $mend->($redis, $proxy);
        is_back($ng);
        # For whatever is to be taken back.
        sleep 0.5;
        is(said(post($ng->port, "$key-done")), "$done replayed", 'completed stays so');
        is(said(post($ng->port, "$key-run")), '409 in_progress', 'pending too');
        is(said(post($ng->port, "$key-held")), '409 outcome_unknown', 'and unknown');
        $gate->open;
        my $run = said($conn->response);
        is(said(post($ng->port, "$key-run")), "$run replayed", 'the run is stored');
        is(scalar(grep { ledger_count(key => "$key-$_") != 1 } qw(done run held)), 0, 'each ran once');
        finish($ng, signal => 'TERM');
    };
}

subtest 'a claim that reaches Redis when all seems well again is given back too' => sub {
    my ($ng, $redis, $proxy) = start_all();
    $proxy->mode('stall');
    my $lost = send_post($ng->port, 'stray');
    wait_until(sub { under_way($ng->port(3)) == 1 }, 5, 'the request');
    sleep 0.1;
    $proxy->mode('strand');
    is(said($lost->response), $REFUSED, 'refused');
    is_back($ng);
    # Looked for by now, and not found.
    sleep 0.5;
    $proxy->mode('pass');
    ok(wait_until(sub {
        my @names = keys_of($redis);
        return grep { ord(substr $redis->command('GET', $_) // '', 1) == 1 } @names;
    }, 3, 'the claim'), 'then it takes effect');
    runs($ng, 'stray');
    is_deeply([attempts_of('stray')], [1], 'executed once, as a first attempt');
    finish($ng, signal => 'TERM');
};

subtest 'many claims lost at once, some for the same key' => sub {
    my ($ng, $redis, $proxy) = start_all(workers => 2);
    my @keys = map {"many-$_"} 1 .. 25;
    $redis->freeze;
    is_deeply(tally(parallel(100, sub ($i) { post_args($ng->port, $keys[$i % 25]) })),
        { $REFUSED => 100 }, 'refused');
    $redis->thaw;
    my %said = map { $_ => runs($ng, $_) } @keys;
    is_deeply([map { said(post($ng->port, $_)) } @keys], [map {"$said{$_} replayed"} @keys],
        'all are replayed');
    is(scalar(grep { ledger_count(key => $_) != 1 } @keys), 0, 'each executed once');
    finish($ng, signal => 'TERM');
};

subtest 'where it runs unprotected, a lost claim does not stay behind' => sub {
    my ($ng, $redis, $proxy) = start_all();
    $redis->freeze;
    my $passed = post($ng->port, 'pass', uri => '/pass');
    like(said($passed), qr/^201 #\d+$/, 'runs');
    is(status_of($passed), 'STORE_ERROR', 'unprotected');
    $redis->thaw;
    is_back($ng);
    my $first = runs($ng, 'pass', uri => '/pass');
    is(said(post($ng->port, 'pass', uri => '/pass')), "$first replayed", 'then protected again');
    finish($ng, signal => 'TERM');
};

subtest 'a client that leaves before its claim is answered leaves no claim' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=8s');
    is_back($ng);
    $redis->freeze;
    my $conn = send_post($ng->port, 'left');
    wait_until(sub { under_way($ng->port(3)) == 1 }, 5, 'the request');
    $conn->reset;
    sleep 0.3;
    $redis->thaw;
    my $said = wait_said(qr/^201/, sub { post($ng->port, 'left') }, 5);
    my ($n) = executions('left');
    like($said, qr/^201 #$n(?: replayed)?$/, 'a retry gets the answer of the one run');
    is_deeply([attempts_of('left')], [1], 'executed once');
    finish($ng, signal => 'TERM');
};

subtest 'a worker that leaves gives back what it can' => sub {
    my ($ng, $redis, $proxy) = start_all();
    my ($old) = $ng->worker_pids;
    $proxy->mode('mute');
    is(said(post($ng->port, 'reload')), $REFUSED, 'refused');
    ok($ng->reload, 'reloaded');
    $proxy->mode('pass');
    my $first = runs($ng, 'reload');
    is(said(post($ng->port, 'reload')), "$first replayed", 'and is replayed');
    is(ledger_count(key => 'reload'), 1, 'executed once');
    ok(wait_until(sub { is_gone($old) }, 10, 'the worker'), 'the old worker leaves');
    finish($ng, signal => 'TERM');
};

subtest 'a worker that leaves is not kept by claims that Redis never got' => sub {
    my ($ng, $redis, $proxy) = start_all();
    my $known = said(post($ng->port, 'known'));
    $proxy->mode('stall');
    is_deeply(tally(map { post($ng->port, $_) } 'known', 'never'), { $REFUSED => 2 }, 'refused');
    $proxy->mode('cut');
    $proxy->mode('pass');
    is_back($ng);
    my $began = time;
    ok($ng->stop(timeout => 20), 'it stops');
    cmp_ok(time - $began, '<', 5, 'soon');
    $ng->check_logs;
};

subtest 'a lost take-over is given back, and the next is no first attempt' => sub {
    my ($redis, $proxy) = proxied_redis();
    # By script every claim can take over at once.
    $proxy->mode('old');
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS,
        lines => 'idempotency_unknown_outcome release;');
    is_back($ng);
    like(said(post($ng->port, 'taken', do => 'die=before')), qr/^502/, 'unknown');
    $proxy->mode('mute');
    is(said(post($ng->port, 'taken')), $REFUSED, 'refused');
    $proxy->mode('old');
    my $second = runs($ng, 'taken');
    is(said(post($ng->port, 'taken')), "$second replayed", 'and is replayed');
    my @attempts = attempts_of('taken');
    is(scalar @attempts, 2, 'executed twice in all');
    cmp_ok($attempts[1] // 0, '>', 1, 'the second time not as a first attempt');
    finish($ng, signal => 'TERM');
};

subtest 'a lost take-over is not forgotten: where it is held it stays unknown' => sub {
    my ($redis, $proxy) = proxied_redis();
    $proxy->mode('old');
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS,
        lines => 'idempotency_unknown_outcome release;');
    my $holds = on_redis_nginx($redis->url);
    is_back($ng);
    like(said(post($ng->port, 'kept', do => 'die=before')), qr/^502/, 'unknown');
    $proxy->mode('mute');
    is(said(post($ng->port, 'kept')), $REFUSED, 'a take-over that is lost');
    $proxy->mode('old');
    is_back($ng);
    is(wait_said('409 outcome_unknown', sub { post($holds->port, 'kept') }), '409 outcome_unknown',
        'nginx that holds such outcomes does not run it');
    is(ledger_count(key => 'kept'), 1, 'executed once');
    finish($_, signal => 'TERM') for $ng, $holds;
};

subtest 'a claim is taken back from a Redis that stood still longer than its lease' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS, lines => 'idempotency_lease 1500ms;');
    is_back($ng);
    $redis->freeze;
    is(said(post($ng->port, 'longer')), $REFUSED, 'refused');
    sleep 2.5;
    $redis->thaw;
    is_back($ng);
    # However late the claim took effect: nobody has run it.
    my $said = wait_said(qr/^201/, sub { post($ng->port, 'longer') });
    like($said, qr/^201 #\d+$/, 'a retry runs');
    is_deeply([attempts_of('longer')], [1], 'as a first attempt');
    finish($ng, signal => 'TERM');
};

done_testing();
