#!/usr/bin/env perl

# Leases: renewed while a run lasts, lost when its worker stands still, and
# fenced against an owner that comes back.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;

# On a connection that is kept, as new ones may go to a worker that sleeps.
sub ask ($conn, $key, %opt) {
    my (undef, @arguments) = post_args(0, $key, %opt,
        headers => [Connection => 'keep-alive']);
    $conn->send(@arguments);
    return $opt{later} ? $conn : $conn->response;
}

# ---- renewal --------------------------------------------------------------

subtest 'a run longer than lease and TTL is in progress all the time' => sub {
    my $ng = start_nginx('idempotency_lease 500ms; idempotency_ttl 1s;');
    my %case = (
        held => { uri => '/x', do => 'sleep=2.8' },
        left => { uri => '/x', do => 'sleep=2.8' },
        open => { uri => '/open', do => 'size=50000&pieces=6&gap=0.55' },
    );
    for my $key (keys %case) {
        $case{$key}{conn} = send_post($ng->port, $key, %{ $case{$key} });
        begun($key);
    }
    my $began = time;
    $case{left}{conn}->close;
    while (time < $began + 2.3) {
        $case{$_}{said}{ said(post($ng->port, $_, uri => $case{$_}{uri})) }++ for keys %case;
        sleep 0.05;
    }
    for my $key (sort keys %case) {
        my $case = $case{$key};
        my ($n) = executions($key);
        is_deeply([keys %{ $case->{said} }], ['409 in_progress'],
            "$key: every duplicate is told so");
        is(said($case->{conn}->response), "201 #$n", "$key: the client is answered")
            if $key ne 'left';
        my $retry = sub { post($ng->port, $key, uri => $case->{uri}) };
        is(wait_said("201 #$n replayed", $retry), "201 #$n replayed", "$key: then replayed");
        is(ledger_count(key => $key), 1, "$key: executed once");
    }
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a run that ends early changes nothing for those before and after it' => sub {
    my $ng = start_nginx('idempotency_lease 600ms;');
    my %conn;
    $conn{before} = send_post($ng->port, 'before', uri => '/x', do => 'sleep=1.8');
    begun('before');
    like(said(post($ng->port, 'brief', uri => '/x')), qr/^201 /, 'one ends early');
    $conn{after} = send_post($ng->port, 'after', uri => '/x', do => 'sleep=1.8');
    begun('after');
    my ($began, %said) = (time);
    while (time < $began + 1.2) {
        $said{ said(post($ng->port, $_, uri => '/x')) }++ for keys %conn;
        sleep 0.05;
    }
    is_deeply([keys %said], ['409 in_progress'], 'both leases are renewed');
    like(said($_->response), qr/^201 /, 'answered') for values %conn;
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a worker that quits waits for a run, but not for a renewal to come' => sub {
    my $ng = start_nginx('idempotency_lease 90s;');
    my $conn = send_post($ng->port, 'last', uri => '/x', do => 'sleep=1');
    begun('last');
    my $began = time;
    ok($ng->stop, 'stops');
    cmp_ok(time - $began, '<', 20, 'well before a third of the lease');
    like(said($conn->response), qr/^201 /, 'the run was answered');
    $ng->check_logs;
};

# ---- lost leases ----------------------------------------------------------

# A run whose worker is stopped in the middle of it, and two connections to
# the other worker.
sub stop_owner ($ng, $key, %opt) {
    my ($stopped, $other) = $ng->worker_pids;
    my ($conn, $third) = map { connection_to($ng->port, $other) } 1 .. 2;
    my ($gate, $owner) = start_run($ng->port, $key, %opt, conn => connection_to($ng->port, $stopped),
        headers => [Connection => 'keep-alive']);
    kill STOP => $stopped;
    return ($owner, $conn, $stopped, $gate, $third);
}

subtest 'a worker stands still: the outcome is unknown until it goes on' => sub {
    my $ng = start_nginx('idempotency_lease 800ms;', workers => 2);
    my ($owner, $conn, $stopped, $gate) = stop_owner($ng, 'still');
    is(said(ask($conn, 'still')), '409 in_progress', 'while the lease lasts it is in progress');
    $gate->open;
    is(wait_said('409 outcome_unknown', sub { ask($conn, 'still') }),
        '409 outcome_unknown', 'then its outcome is unknown');
    is(said(ask($conn, 'still', body => 'other')), '422 key_reused',
        'though not free for another request');
    kill CONT => $stopped;
    my ($n) = executions('still');
    is(said($owner->response), "201 #$n", 'the owner comes back and ends');
    is(wait_said("201 #$n replayed", sub { ask($conn, 'still') }),
        "201 #$n replayed", 'and its outcome is stored');
    is(ledger_count(key => 'still'), 1, 'executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# However the first owner ends when it comes back.
for my $case (
    ['an answer',  '',           undef],
    ['a failure',  'status=500', qr/^500 /],
    ['no answer',  'die=before', qr/^502/],
    )
{
    my ($name, $do, $told) = @$case;
    my $config = 'idempotency_lease 500ms; idempotency_unknown_outcome release;';

    subtest "an owner that lost its lease ends with $name after its successor" => sub {
        my $ng = start_nginx($config, workers => 2);
        my $key = "after-$name" =~ s/ /-/gr;
        my ($owner, $conn, $stopped, $gate) = stop_owner($ng, $key, do => $do);
        $gate->open;
        my $second = wait_said(qr/^201/, sub { ask($conn, $key) });
        my $n = (executions($key))[1] // 0;
        is($second, "201 #$n", 'a retry takes over and runs');
        is_deeply([attempts_of($key)], [1, 2], 'as the second attempt');
        kill CONT => $stopped;
        like(said($owner->response), $told // qr/^201 #$n replayed$/,
            'the first owner\'s client is not told otherwise than all others');
        is(said(ask($conn, $key)), "201 #$n replayed", 'the successor\'s is the one stored');
        is(ledger_count(key => $key), 2, 'and nobody ran it again');
        like($ng->error_log, qr/\[warn\].*lease lost/, 'warned');
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };

    subtest "an owner that lost its lease ends with $name during its successor's run" => sub {
        my $ng = start_nginx($config, workers => 2);
        my $key = "during-$name" =~ s/ /-/gr;
        my ($owner, $conn, $stopped, $gate, $third) =
            stop_owner($ng, $key, do => $do);
        $gate->open;
        my $second_gate = Keyed::Gate->new;
        take_over($key, sub { ask($conn, $key, later => 1, do => $second_gate->closed) });
        my $n = (executions($key))[1] // 0;
        kill CONT => $stopped;
        like(said($owner->response), $told // qr/^409 in_progress$/,
            'the first owner\'s client is not told otherwise than all others');
        is(said(ask($third, $key)), '409 in_progress', 'the successor is undisturbed');
        # Longer than its lease: it renews what is its own.
        sleep 0.7;
        is(said(ask($third, $key)), '409 in_progress', 'and stays so');
        $second_gate->open;
        is(said($conn->response), "201 #$n", 'the successor ends');
        is(said(ask($third, $key)), "201 #$n replayed", 'and its outcome is stored');
        is(ledger_count(key => $key), 2, 'nobody ran it again');
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

done_testing();
