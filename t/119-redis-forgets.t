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

# What the second left behind is of no attempt that came after the first.
for my $mode ('hold', 'release') {
    subtest "what ran in between is unknown: the answer of the first counts, $mode" => sub {
        my $redis = RedisServer->start;
        my ($ng, $other) = two_nginx($redis, params => $PARAMS,
            lines => "idempotency_lease 60s; idempotency_unknown_outcome $mode;");
        my $key = "unknown-$mode";
        my ($gate, $conn) = start_run($ng->port, $key);
        $redis->command('FLUSHALL');
        like(said(post($other->port, $key, do => 'die=before')), qr/^502/, 'the second has no answer');
        $gate->open;
        my $first = said($conn->response);
        like($first, qr/^201 #\d+$/, 'the first has one');
        is(said(post($other->port, $key)), "$first replayed", 'a third one gets it');
        is(ledger_count(key => $key), 2, 'and does not run');
        finish($_) for $ng, $other;
    };
}

# ---- two attempts that both run -------------------------------------------

my $LONG_LEASE = 'idempotency_lease 6s;';
my $RELEASE = 'idempotency_unknown_outcome release;';

# The first attempt has lost Redis and then its lease. The second has taken over
# elsewhere, and Redis has forgotten it. do: what each of them is to do.
sub forgotten_successor ($key, @do) {
    my ($redis, $proxy) = proxied_redis();
    my (%first, %second);
    ($first{ng}, $second{ng}) = map {
        on_redis_nginx($_, params => $PARAMS, lines => "$LONG_LEASE $RELEASE")
    } $proxy->url, $redis->url;
    @first{qw(gate conn)} = start_run($first{ng}->port, $key, do => $do[0]);
    $proxy->mode('refuse');
    $second{gate} = Keyed::Gate->new;
    my $do = join '&', $second{gate}->closed, $do[1] || ();
    $second{conn} = take_over($key, sub { send_post($second{ng}->port, $key, do => $do) });
    $redis->command('FLUSHALL');
    return ($redis, $proxy, \%first, \%second);
}

# The state and the attempt of the record.
sub record_in ($redis) {
    return join ' ', map { join ':', (unpack 'CCV', $redis->command('GET', $_) // '')[1, 2] } keys_of($redis);
}

sub record_becomes ($redis, $wanted, $title) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    wait_until(sub { record_in($redis) eq $wanted }, 10, $title);
    is(record_in($redis), $wanted, $title);
}

subtest 'a later attempt that runs takes its record back from an earlier one' => sub {
    my ($redis, $proxy, $first, $second) = forgotten_successor('later', 'die=before');
    $proxy->mode('pass');
    record_becomes($redis, '1:1', 'the first is there again before the second renews its lease');
    record_becomes($redis, '1:2', 'then the second is');
    ok(lines_in($second->{ng}, $LOST), 'the log tells');
    $first->{gate}->open;
    like(said($first->{conn}->response), qr/^502/, 'what became of the first is unknown');
    is(said(post($_->{ng}->port, 'later')), '409 in_progress', 'nobody takes over from the second')
        for $first, $second;
    is(ledger_count(key => 'later'), 2, 'no third run');
    $second->{gate}->open;
    my $said = said($second->{conn}->response);
    like($said, qr/^201 #\d+$/, 'the second ends');
    is(said(post($_->{ng}->port, 'later')), "$said replayed", 'and is replayed') for $first, $second;
    finish($_->{ng}) for $first, $second;
};

for my $case (['an answer', '', '2:2'], ['no answer', 'die=before', '4:2']) {
    my ($name, $do, $record) = @$case;
    subtest "a later attempt that ends with $name takes its record back too" => sub {
        my $key = "ends-$name" =~ s/ /-/gr;
        my ($redis, $proxy, $first, $second) = forgotten_successor($key, '', $do);
        $proxy->mode('pass');
        record_becomes($redis, '1:1', 'the first is there again');
        $second->{gate}->open;
        $second->{conn}->response;
        record_becomes($redis, $record, 'the second has stored its outcome');
        $first->{gate}->open;
        $first->{conn}->response;
        is(record_in($redis), $record, 'it stays');
        is(ledger_count(key => $key), 2, 'no third run');
        finish($_->{ng}) for $first, $second;
    };
}

# Not even that of a first attempt, which came late.
subtest 'a later attempt leaves an outcome where it is' => sub {
    my ($redis, $proxy, $first, $second) = forgotten_successor('stays');
    $first->{gate}->open;
    my $said = said($first->{conn}->response);
    like($said, qr/^201 #\d+$/, 'the first ends');
    $proxy->mode('pass');
    ok(wait_until(sub { lines_in($second->{ng}, qr/\[warn\].*lease lost/) }, 10, 'a line'), 'the second wants to renew its lease');
    is(record_in($redis), '2:1', 'the outcome stays');
    $second->{gate}->open;
    is(said($second->{conn}->response), "$said replayed", 'the second client is told what all are told');
    is(said(post($_->{ng}->port, 'stays')), "$said replayed", 'there is one outcome') for $first, $second;
    is(ledger_count(key => 'stays'), 2, 'no third run');
    finish($_->{ng}) for $first, $second;
};

# A claim that will be withdrawn, or a renewal that was long on its way.
for my $attempt (1, 2) {
    subtest "an answer takes the place of a claim: attempt 2 that of attempt $attempt" => sub {
        my $key = "answer-$attempt";
        my $redis = RedisServer->start;
        my $ng = on_redis_nginx($redis->url, params => $PARAMS, lines => $RELEASE);
        like(said(post($ng->port, $key, do => 'die=before')), qr/^502/, 'what became of the first is unknown');
        my $gate = Keyed::Gate->new;
        my $conn = send_post($ng->port, $key, do => $gate->closed);
        ok(begun($key, 2), 'the second runs');
        my ($name) = keys_of($redis);
        my $claim = $redis->command('GET', $name);
        substr $claim, 2, 20, pack 'Va16', $attempt, 'x' x 16;
        $redis->command('SET', $name, $claim, 'PX', unpack 'x54Q<', $claim);
        is(said(post($ng->port, $key)), '409 in_progress', 'its place is taken');
        $gate->open;
        my $said = said($conn->response);
        like($said, qr/^201 #\d+$/, 'it ends');
        is(said(post($ng->port, $key)), "$said replayed", 'and is what all are told');
        is(ledger_count(key => $key), 2, 'nothing else ran');
        ok(lines_in($ng, qr/this operation may have run twice/), 'the log tells');
        finish($ng);
    };
}

# Numbers begin anew with a record that is lost, has expired or was released.
for my $case (['', $LONG_LEASE, 0], [', whose lease has expired,', $LEASE, 1.7]) {
    my ($whose, $lease, $seconds) = @$case;
    subtest "a later attempt$whose leaves a first one that runs alone" => sub {
        my $key = "anew-$seconds";
        my ($redis, $proxy) = proxied_redis();
        my ($ng, $other) = map {
            on_redis_nginx($_, params => $PARAMS, lines => "$lease $RELEASE")
        } $proxy->url, $redis->url;
        like(said(post($ng->port, $key, do => 'die=before')), qr/^502/, 'what became of the first is unknown');
        my @gates = map { Keyed::Gate->new } 1 .. 2;
        my $old = send_post($ng->port, $key, do => 'die=before&' . $gates[0]->closed);
        ok(begun($key, 2), 'the second runs');
        $proxy->mode('refuse') if $seconds;
        sleep $seconds;
        $redis->command('FLUSHALL');
        my $new = send_post($other->port, $key, do => $gates[1]->closed);
        ok(begun($key, 3), 'another runs');
        $proxy->mode('pass');
        ok(wait_until(sub { lines_in($ng, qr/\[warn\].*lease lost/) }, 10, 'a line'), 'the second has lost its record');
        is(record_in($redis), '1:1', 'to a first attempt, which keeps it');
        $gates[0]->open;
        like(said($old->response), qr/^502/, 'what became of the second is unknown');
        is(said(post($_->port, $key)), '409 in_progress', 'nobody takes over from that') for $ng, $other;
        $gates[1]->open;
        my $said = said($new->response);
        like($said, qr/^201 #\d+$/, 'that ends');
        is(said(post($_->port, $key)), "$said replayed", 'and is what all are told') for $ng, $other;
        is_deeply([attempts_of($key)], [1, 2, 1], 'nothing else ran');
        finish($_) for $ng, $other;
    };
}

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
