#!/usr/bin/env perl

# Redis loses its memory, as by a restart without persistence or a fail-over to
# a replica that lagged behind: who runs puts its record back.

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
my $LOST = qr/\[warn\].*idempotency: record of a running request was lost by Redis at "\S+" and is put back/;

my $PUT_BACK = qr/\[warn\].*idempotency: Redis at "\S+" has restarted .* had lost 1 records/;

# ---- at the end of the run ------------------------------------------------

# do, uri, what its client is told, what a retry is told
my %ENDS = (
    'an answer'                => ['', '/', qr/^201 #\d+$/, 'replayed'],
    'an answer, passed on'     => ['', '/open', qr/^201 #\d+$/, 'replayed'],
    'no answer'                => ['die=before', '/', qr/^502/, '409 outcome_unknown'],
    'no answer, nothing held'  => ['die=before', '/open', qr/^502/, '409 outcome_unknown'],
    'an answer not to be kept' => ['h=X-Accel-Idempotency:discard', '/', qr/^201/,
        '409 response_not_kept'],
);

for my $name (sort keys %ENDS) {
    my ($do, $uri, $told, $then) = @{ $ENDS{$name} };
    subtest "forgotten while it runs: $name is stored all the same" => sub {
        my $redis = RedisServer->start;
        my $ng = on_redis_nginx($redis->url, params => $PARAMS);
        my $key = "end-$name" =~ s/\W+/-/gr;
        my ($gate, $conn) = start_run($ng->port, $key, uri => $uri, do => $do);
        $redis->command('FLUSHALL');
        $gate->open;
        my $first = said($conn->response);
        like($first, $told, 'its client is answered');
        # What is passed on may be there before the outcome is stored.
        wait_until(sub { keys_of($redis) == 1 }, 5, 'the outcome');
        my $wanted = $then eq 'replayed' ? "$first replayed" : $then;
        is(wait_said($wanted, sub { post($ng->port, $key, uri => $uri) }, 3), $wanted,
            'and so is a retry');
        is(ledger_count(key => $key), 1, 'executed once');
        is(said(post($ng->port, $key, uri => $uri, body => 'other')), '422 key_reused',
            'the fingerprint is known too');
        is(scalar lines_in($ng, $LOST), 1, 'the log tells');
        finish($ng);
    };
}

subtest 'forgotten while it runs: what is released leaves nothing' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'released', do => 'status=500');
    $redis->command('FLUSHALL');
    $gate->open;
    like(said($conn->response), qr/^500/, 'it failed');
    is_deeply([keys_of($redis)], [], 'there is no record');
    like(said(post($ng->port, 'released')), qr/^201 #\d+$/, 'a retry runs');
    is(scalar lines_in($ng, qr/\[warn\]/), 0, 'nothing to tell') or diag(lines_in($ng, qr/\[warn\]/));
    finish($ng);
};

# ---- when the run ended without Redis -------------------------------------

for my $case (['an answer', '', qr/^201 #\d+$/, 'replayed'],
    ['no answer', 'die=before', qr/^502/, '409 outcome_unknown'])
{
    my ($name, $do, $told, $then) = @$case;
    subtest "Redis is away at the end and comes back empty: $name is stored late" => sub {
        my $redis = RedisServer->start;
        my $ng = on_redis_nginx($redis->url, params => $PARAMS);
        my $key = "late-$name" =~ s/ /-/gr;
        my ($gate, $conn) = start_run($ng->port, $key, do => $do);
        $redis->kill;
        $gate->open;
        my $first = said($conn->response);
        like($first, $told, 'its client is answered');
        $redis->launch;
        ok(wait_until(sub { lines_in($ng, qr/1 outcomes were stored late, 0 were lost/) }, 10, 'a line'),
            'the log says that it is stored');
        my $wanted = $then eq 'replayed' ? "$first replayed" : $then;
        is(wait_said($wanted, sub { post($ng->port, $key) }, 5), $wanted, 'a retry is told of it');
        is(ledger_count(key => $key), 1, 'executed once');
        finish($ng);
    };
}

# ---- while it runs --------------------------------------------------------

my $LEASE = 'idempotency_lease 1500ms;';

for my $way ('FLUSHALL', 'a restart') {
    subtest "a long run is in progress again soon after $way" => sub {
        my $redis = RedisServer->start;
        my ($ng, $other) = two_nginx($redis, params => $PARAMS, lines => $LEASE);
        my $key = "long-$way" =~ s/ /-/gr;
        my ($gate, $conn) = start_run($ng->port, $key);
        if ($way eq 'FLUSHALL') { $redis->command('FLUSHALL') }
        else                    { $redis->restart }
        ok(wait_until(sub { keys_of($redis) == 1 }, 8, 'a record'), 'its record is back');
        my ($name) = keys_of($redis);
        is_deeply([unpack 'CCV', $redis->command('GET', $name)], [1, 1, 1], 'pending, attempt 1');
        is(wait_said('409 in_progress', sub { post($other->port, $key) }, 5), '409 in_progress',
            'a retry elsewhere is told so');
        # Longer than the lease.
        sleep 2;
        is(said(post($other->port, $key)), '409 in_progress', 'and as long as it runs');
        $gate->open;
        my $first = said($conn->response);
        is(said(post($other->port, $key)), "$first replayed", 'then it is replayed');
        is(ledger_count(key => $key), 1, 'executed once');
        ok(lines_in($ng, $way eq 'FLUSHALL' ? $LOST : $PUT_BACK), 'the log tells');
        finish($_) for $ng, $other;
    };
}

subtest 'a second attempt is put back as one' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS,
        lines => "$LEASE idempotency_unknown_outcome release;");
    like(said(post($ng->port, 'second', do => 'die=before')), qr/^502/, 'no answer');
    my $gate = Keyed::Gate->new;
    my $conn = send_post($ng->port, 'second', do => $gate->closed);
    begun('second', 2);
    $redis->command('FLUSHALL');
    ok(wait_until(sub { keys_of($redis) == 1 }, 5, 'a record'), 'its record is back');
    is((unpack 'CCV', $redis->command('GET', (keys_of($redis))[0]))[2], 2, 'as the second attempt');
    $gate->open;
    like(said($conn->response), qr/^201/, 'it ends');
    is_deeply([attempts_of('second')], [1, 2], 'two attempts');
    finish($ng);
};

subtest 'what ran in between is not disturbed' => sub {
    my $redis = RedisServer->start;
    my ($ng, $other) = two_nginx($redis, params => $PARAMS, lines => 'idempotency_lease 60s;');
    my ($gate, $conn) = start_run($ng->port, 'between');
    $redis->command('FLUSHALL');
    my $second = said(post($other->port, 'between'));
    like($second, qr/^201 #\d+$/, 'a retry that comes before anybody knows runs');
    $gate->open;
    is(said($conn->response), "$second replayed", 'the first client is told what all are told');
    is(said(post($_->port, 'between')), "$second replayed", 'there is one outcome') for $ng, $other;
    is(scalar lines_in($ng, $LOST), 0, 'nothing is put back');
    finish($_) for $ng, $other;
};

subtest 'what ran in between has failed: the first run has its record again' => sub {
    my $redis = RedisServer->start;
    my ($ng, $other) = two_nginx($redis, params => $PARAMS, lines => $LEASE);
    my ($gate, $conn) = start_run($ng->port, 'failed');
    $redis->command('FLUSHALL');
    my $second = Keyed::Gate->new;
    my $failed = send_post($other->port, 'failed', do => 'status=500&' . $second->closed);
    begun('failed', 2);
    ok(wait_until(sub { lines_in($ng, qr/\[warn\].*lease lost/) }, 5, 'a line'), 'the first has lost it');
    $second->open;
    like(said($failed->response), qr/^500/, 'the second says that nothing happened');
    ok(wait_until(sub { keys_of($redis) == 1 }, 5, 'a record'), 'the record is back');
    is(said(post($other->port, 'failed')), '409 in_progress', 'a third one does not run');
    $gate->open;
    my $first = said($conn->response);
    is(said(post($other->port, 'failed')), "$first replayed", 'and gets the answer of the first');
    is(ledger_count(key => 'failed'), 2, 'nothing else ran');
    is(scalar lines_in($ng, qr/\[warn\].*lease lost/), 1, 'that it was lost is said once');
    finish($_) for $ng, $other;
};

subtest 'what is not a record is not replaced by one' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'foreign', uri => '/open');
    my ($name) = keys_of($redis);
    $redis->command('SET', $name, '');
    $gate->open;
    like(said($conn->response), qr/^201/, 'its client is answered');
    sleep 0.3;
    is($redis->command('GET', $name), '', 'it is left alone');
    finish($ng, signal => 'TERM');
};

# ---- what is kept for ever ------------------------------------------------

subtest 'what is kept for ever has no expiry' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS, lines => 'idempotency_ttl forever;');
    my ($gate, $conn) = start_run($ng->port, 'ever');
    my ($name) = keys_of($redis);
    my $pending = $redis->command('PTTL', $name);
    cmp_ok($pending, '>', 2**36, 'a pending record outlives its lease by years');
    cmp_ok($pending, '<=', 2**37, '... and not by more than every server accepts');
    is(said(post($ng->port, 'ever')), '409 in_progress', 'it is in progress');
    $gate->open;
    my $first = said($conn->response);
    is($redis->command('PTTL', $name), -1, 'the outcome does not expire');
    is(said(post($ng->port, 'ever')), "$first replayed", 'it is replayed');
    post($ng->port, 'ever-unknown', do => 'die=before');
    is($redis->command('PTTL', $_), -1, 'so it is with all outcomes') for keys_of($redis);
    is(said(post($ng->port, 'ever-unknown')), '409 outcome_unknown', 'even of unknown ones');
    finish($ng);
};

done_testing();
