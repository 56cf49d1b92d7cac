#!/usr/bin/env perl

# idempotency_wait: duplicates that wait for the one in flight.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Http2;
use Keyed;

subtest 'a duplicate in the same worker is woken by the end of the run' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my $gate = Keyed::Gate->new;
    my @keys = map {"same-$_"} 1 .. 10;
    my @owners = map { send_post($ng->port, $_, do => $gate->closed) } @keys;
    begun($_) for @keys;
    my @waiters = map { send_post($ng->port, $_) } @keys;
    wait_parked($ng, 20);
    # By now the store is asked only every 200 to 400 ms.
    sleep 1.2;
    $gate->open;
    my @responses = collect([@owners, @waiters], 15);
    is_deeply([map { said($_) } @responses[10 .. 19]],
        [map { said($_) . ' replayed' } @responses[0 .. 9]], 'all get the stored answer');
    my @lag = sort { $a <=> $b } map {
        $waiters[$_]{request}{at} + $responses[10 + $_]{time}
            - $owners[$_]{request}{at} - $responses[$_]{time};
    } 0 .. 9;
    cmp_ok($lag[7], '<', 0.1, 'at once') or diag("@lag");
    is(ledger_count(key => $_), 1, "$_ executed once") for @keys;
    finish($ng);
};

# They share the bytes of the answer, and the filter recodes them where they lie.
for my $size (200, 50_000) {
    subtest "duplicates get an answer that is recoded, $size bytes" => sub {
        my $ng = start_nginx(<<'CONF');
            idempotency_wait 20s;
            charset_map one two { 61 62; 62 63; 63 61; }
            source_charset one;
            charset two;
            charset_types text/plain;
CONF
        my $gate = Keyed::Gate->new;
        my %how = (do => $gate->closed . "&type=text/plain&size=$size");
        my $owner = send_post($ng->port, 'recoded', %how);
        begun('recoded');
        my @waiters = map { send_post($ng->port, 'recoded', %how) } 1 .. 3;
        wait_parked($ng, 4);
        $gate->open;
        my ($first, @others) = collect([$owner, @waiters], 15);
        is($first->{headers}{'content-type'}[0], 'text/plain; charset=two', 'it is recoded');
        is(length $first->{body}, $size, 'all of it');
        push @others, post($ng->port, 'recoded', %how);
        ok($_->{body} eq $first->{body}, 'the same to all') for @others;
        finish($ng);
    };
}

subtest 'a duplicate in another worker gets the answer soon' => sub {
    my $ng = start_nginx('idempotency_wait 20s;', workers => 2);
    my @pids = $ng->worker_pids;
    my ($gate, $owner) = start_run($ng->port, 'other',
        conn => connection_to($ng->port, $pids[0]));
    my $waiter = connection_to($ng->port, $pids[1]);
    my (undef, @arguments) = post_args($ng->port, 'other');
    $waiter->send(@arguments);
    wait_parked($ng, 2);
    sleep 0.5;
    $gate->open;
    my $opened = time;
    my $got = $waiter->response;
    is(said($got), said($owner->response) . ' replayed', 'the stored answer');
    cmp_ok(time - $opened, '<', 2, 'soon');
    is(ledger_count(key => 'other'), 1, 'executed once');
    finish($ng);
};

subtest 'a duplicate gives up after its limit, and a later retry replays' => sub {
    my $ng = start_nginx('idempotency_wait 400ms; idempotency_retry_after 3s;');
    my ($gate, $owner) = start_run($ng->port, 'limit');
    my $early = post($ng->port, 'limit');
    is(said($early), '409 in_progress', 'told to come again');
    is_deeply($early->{headers}{'retry-after'}, ['3'], 'with Retry-After');
    cmp_ok($early->{time}, '>=', 0.38, 'not before its time');
    cmp_ok($early->{time}, '<', 3, 'not long after it');
    $gate->open;
    my $first = $owner->response;
    is(said(post($ng->port, 'limit')), said($first) . ' replayed', 'then replayed');
    is(ledger_count(key => 'limit'), 1, 'executed once');
    finish($ng);
};

subtest 'a worker that stood still does not tell what it knew before' => sub {
    my $ng = start_nginx('idempotency_wait 1s;', workers => 2);
    my @pids = $ng->worker_pids;
    my ($gate, $owner) = start_run($ng->port, 'stale', conn => connection_to($ng->port, $pids[0]));
    my $waiter = connection_to($ng->port, $pids[1]);
    my (undef, @arguments) = post_args($ng->port, 'stale');
    $waiter->send(@arguments);
    wait_parked($ng, 2);
    kill STOP => $pids[1];
    $gate->open;
    my $first = said($owner->response);
    # Its time is over, and so is the run.
    sleep 1.2;
    kill CONT => $pids[1];
    is(said($waiter->response), "$first replayed", 'it asks once more');
    finish($ng);
};

subtest 'another body does not wait' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my ($gate, $owner) = start_run($ng->port, 'body');
    my $other = post($ng->port, 'body', body => 'other');
    is(said($other), '422 key_reused', 'refused');
    cmp_ok($other->{time}, '<', 2, 'at once');
    $gate->open;
    like(said($owner->response), qr/^201 #\d+$/, 'the run is untouched');
    is(ledger_count(key => 'body'), 1, 'executed once');
    finish($ng);
};

for my $how (qw(close reset)) {
    subtest "a client that leaves ($how) frees its place" => sub {
        my $ng = start_nginx('idempotency_wait 20s;');
        my ($gate, $owner) = start_run($ng->port, "leave-$how");
        my @waiters = map { send_post($ng->port, "leave-$how") } 1 .. 20;
        wait_parked($ng, 21);
        $waiters[$_ * 2]->$how for 0 .. 9;
        ok(wait_until(sub { under_way($ng->port(3)) == 11 }, 10, 'ten to leave'),
            'those who left are gone');
        my $left = () = $ng->access_log =~ / 499 /g;
        is($left, 10, 'logged as 499');
        $gate->open;
        my $first = said($owner->response);
        is_deeply(tally(collect([@waiters[map { $_ * 2 + 1 } 0 .. 9]])),
            { "$first replayed" => 10 }, 'the others are served');
        is(ledger_count(key => "leave-$how"), 1, 'executed once');
        finish($ng);
    };
}

for my $workers (1, 2) {
    subtest "a released key: one waiter runs, the others wait on ($workers workers)" => sub {
        my $ng = start_nginx('idempotency_wait 20s;', workers => $workers);
        my $key = "release-$workers";
        my ($gate, $owner) = start_run($ng->port, $key, do => 'status=500');
        my $second = Keyed::Gate->new;
        my @waiters = map {
            send_post($ng->port, $key, do => $second->closed);
        } 1 .. 12;
        wait_parked($ng, 13);
        $gate->open;
        is($owner->response->{status}, 500, 'the owner is told its failure');
        ok(begun($key, 2), 'somebody else runs');
        # Longer than the longest step between two questions.
        sleep 0.6;
        is(ledger_count(key => $key), 2, 'nobody else while it does');
        $second->open;
        my ($n) = (executions($key))[1];
        is_deeply(tally(collect(\@waiters, 15)),
            { "201 #$n" => 1, "201 #$n replayed" => 11 }, 'all get its answer');
        is(ledger_count(key => $key), 2, 'and it ran once');
        finish($ng);
    };
}

subtest 'a chain of releases: every waiter runs in its turn, one at a time' => sub {
    my $ng = start_nginx('idempotency_wait 20s;', workers => 2);
    my ($gate, $owner) = start_run($ng->port, 'chain', do => 'status=500');
    my @waiters = map {
        send_post($ng->port, 'chain', do => 'status=500&sleep=0.02');
    } 1 .. 6;
    wait_parked($ng, 7);
    $gate->open;
    my @responses = collect([$owner, @waiters], 20);
    is_deeply([map { $_->{status} } @responses], [(500) x 7], 'each its own failure');
    my %numbers = map { said($_) => 1 } @responses;
    is(scalar keys %numbers, 7, 'none was told another one\'s');
    is(ledger_count(key => 'chain'), 7, 'seven runs');
    finish($ng);
};

# An owner in the worker that is killed, waiters in the other one.
sub kill_owner ($ng, $key, $count) {
    my ($doomed, $other) = $ng->worker_pids;
    my ($gate, $owner) = start_run($ng->port, $key,
        conn => connection_to($ng->port, $doomed));
    my @waiters = map { connection_to($ng->port, $other) } 1 .. $count;
    my (undef, @arguments) = post_args($ng->port, $key);
    $_->send(@arguments) for @waiters;
    wait_parked($ng, $count + 1);
    kill KILL => $doomed;
    my @responses = collect(\@waiters, 15);
    $gate->open;
    return @responses;
}

subtest 'the owner\'s worker dies: the waiters learn that nothing is known' => sub {
    my $ng = start_nginx('idempotency_wait 20s; idempotency_lease 600ms;', workers => 2);
    my @responses = kill_owner($ng, 'dies', 8);
    is_deeply(tally(@responses), { '409 outcome_unknown' => 8 }, 'all of them');
    my ($late) = sort { $b <=> $a } map { $_->{time} } @responses;
    cmp_ok($late, '<', 5, 'soon after the lease');
    is(ledger_count(key => 'dies'), 1, 'nobody ran it again');
    is(said(post($ng->port, 'dies')), '409 outcome_unknown', 'nor does a retry');
    finish($ng, killed => 1, allow => qr/exited on signal 9/);
};

subtest 'the owner\'s worker dies, outcome released: exactly one waiter runs' => sub {
    my $ng = start_nginx('idempotency_wait 20s; idempotency_lease 600ms;'
        . 'idempotency_unknown_outcome release;', workers => 2);
    my @responses = kill_owner($ng, 'taken', 8);
    my ($n) = (executions('taken'))[1];
    is_deeply(tally(@responses), { "201 #$n" => 1, "201 #$n replayed" => 7 },
        'the others get its answer');
    is_deeply([attempts_of('taken')], [1, 2], 'a first attempt and a second');
    finish($ng, killed => 1, allow => qr/exited on signal 9/);
};

subtest 'a thousand duplicates of one key cost one run and no busy loop' => sub {
    my ($limit) = Nginx::slurp('/proc/self/limits') =~ /^Max open files\s+(\d+)/m;
    my $count = ($limit // 1e6) > 1200 ? 1000 : 500;
    my $ng = start_nginx('idempotency_wait 60s;');
    my ($gate, $owner) = start_run($ng->port, 'many');
    my @waiters = map { send_post($ng->port, 'many') } 1 .. $count;
    ok(wait_parked($ng, $count + 1), "$count wait");
    my ($pid) = $ng->worker_pids;
    my $before = cpu_time($pid);
    sleep 3;
    cmp_ok(cpu_time($pid) - $before, '<', 0.3, 'hardly any CPU time in 3 s');
    $gate->open;
    my $first = $owner->response;
    my @responses = collect(\@waiters, 30);
    is_deeply(tally(@responses), { said($first) . ' replayed' => $count }, 'all are served');
    is(scalar(grep { $_->{body} ne $first->{body} } @responses), 0, 'the same answer');
    is(ledger_count(key => 'many'), 1, 'executed once');
    finish($ng);
};

subtest 'many keys at once, each with duplicates in two workers' => sub {
    my $ng = start_nginx('idempotency_wait 20s;', workers => 2);
    my $gate = Keyed::Gate->new;
    my @keys = map {"several-$_"} 1 .. 20;
    my @conns = map {
        my $round = $_;
        map { send_post($ng->port, $_, do => $gate->closed) } @keys;
    } 1 .. 5;
    wait_parked($ng, 100);
    begun($_) for @keys;
    $gate->open;
    my @responses = collect(\@conns, 20);
    for my $i (0 .. $#keys) {
        my ($n) = executions($keys[$i]);
        is_deeply(tally(map { $responses[$i + 20 * $_] } 0 .. 4),
            { "201 #$n" => 1, "201 #$n replayed" => 4 }, "$keys[$i]: one run, one answer");
        is(ledger_count(key => $keys[$i]), 1, "$keys[$i]: executed once");
    }
    finish($ng);
};

subtest 'streams of one HTTP/2 connection wait, and leave, on their own' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my ($gate, $owner) = start_run($ng->port, 'h2');
    my $h2 = Http2->new($ng->port(2));
    my @ids = map {
        $h2->send('POST', '/x', headers => ['idempotency-key' => 'h2'], body => 'body');
    } 1 .. 6;
    wait_parked($ng, 7);
    $h2->rst($_) for @ids[0, 3];
    ok(wait_until(sub { under_way($ng->port(3)) == 5 }, 10, 'two to leave'),
        'two streams were reset');
    my $quick = $h2->request('GET', '/pid');
    is($quick->{status}, 200, 'the connection serves others meanwhile');
    $gate->open;
    my $first = said($owner->response);
    is(said($h2->response($ids[$_])), "$first replayed", "stream $ids[$_] is served")
        for 1, 2, 4, 5;
    is(ledger_count(key => 'h2'), 1, 'executed once');

    ($gate, $owner) = start_run($ng->port, 'h2-gone');
    $h2->send('POST', '/x', headers => ['idempotency-key' => 'h2-gone'], body => 'body')
        for 1 .. 3;
    wait_parked($ng, 4);
    $h2->close;
    ok(wait_until(sub { under_way($ng->port(3)) == 1 }, 10, 'three to leave'),
        'all leave with the connection');
    $gate->open;
    $first = said($owner->response);
    is(said(post($ng->port, 'h2-gone')), "$first replayed", 'the key is well');
    finish($ng);
};

subtest 'a request behind a waiting one on the same connection is served after it' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my ($gate, $owner) = start_run($ng->port, 'pipe');
    my $conn = Http1->new($ng->port);
    my (undef, @arguments) = post_args($ng->port, 'pipe',
        headers => [Connection => 'keep-alive']);
    $conn->send(@arguments)->send('GET', '/pid');
    wait_parked($ng, 2);
    my ($pid) = $ng->worker_pids;
    my $before = cpu_time($pid);
    sleep 0.5;
    cmp_ok(cpu_time($pid) - $before, '<', 0.2, 'no busy loop over what it sent');
    $gate->open;
    is(said($conn->response), said($owner->response) . ' replayed', 'the waiting one');
    is($conn->response->{body}, $pid, 'the one behind');
    finish($ng);
};

subtest 'those who wait have fingerprints as any other' => sub {
    my $ng = start_nginx('idempotency_wait 10s;');
    my ($gate, $conn) = start_run($ng->port, 'print');
    my @waiters = map { send_post($ng->port, 'print') } 1 .. 3;
    wait_parked($ng, 4);
    $gate->open;
    my %prints = map { ($_->{headers}{'x-fingerprint'}[0] // 'none') => 1 } map { $_->response } $conn, @waiters;
    like(join(' ', keys %prints), qr/^[0-9a-f]{64}$/, 'all the same one');
    finish($ng);
};

done_testing();
