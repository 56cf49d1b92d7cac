#!/usr/bin/env perl

# Reload, graceful quit and fast exit while requests run or wait.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Http2;
use Keyed;

subtest 'a run that a reload meets is ended and stored by the old worker' => sub {
    my $ng = start_nginx('');
    my ($gate, $conn) = start_run($ng->port, 'run');
    my ($old) = $ng->worker_pids;
    ok($ng->reload, 'reloaded');
    is(said(post($ng->port, 'run')), '409 in_progress', 'the new worker knows of it');
    $gate->open;
    my $first = $conn->response;
    like(said($first), qr/^201 #\d+$/, 'the client is answered');
    is(pid_of($first), $old, 'by the old worker');
    my $retry = post($ng->port, 'run');
    is(said($retry), said($first) . ' replayed', 'a retry is replayed');
    isnt(pid_of($retry), $old, 'by the new worker');
    is(ledger_count(key => 'run'), 1, 'executed once');
    ok(wait_until(sub { is_gone($old) }, 5, 'the old worker'), 'the old worker leaves');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'those who wait in old and new workers are served when the run ends' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my ($gate, $conn) = start_run($ng->port, 'wait');
    my ($old) = $ng->worker_pids;
    my @conns = map { send_post($ng->port, 'wait') } 1 .. 5;
    wait_parked($ng, 6);
    ok($ng->reload, 'reloaded');
    push @conns, map { send_post($ng->port, 'wait') } 1 .. 5;
    wait_parked($ng, 11);
    $gate->open;
    my @responses = collect(\@conns, 15);
    my $first = said($conn->response);
    is_deeply([map { said($_) } @responses], [("$first replayed") x 10], 'all ten');
    my $from_old = grep { pid_of($_) == $old } @responses;
    is($from_old, 5, 'five by the old worker');
    is(ledger_count(key => 'wait'), 1, 'executed once');
    ok(wait_until(sub { is_gone($old) }, 5, 'the old worker'), 'the old worker leaves');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a waiter in an old worker runs when the owner releases' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my ($gate, $owner) = start_run($ng->port, 'inherit', do => 'status=500');
    my @waiters = map { send_post($ng->port, 'inherit') } 1 .. 4;
    wait_parked($ng, 5);
    ok($ng->reload, 'reloaded');
    push @waiters, map { send_post($ng->port, 'inherit') } 1 .. 4;
    wait_parked($ng, 9);
    $gate->open;
    is($owner->response->{status}, 500, 'released');
    my $said = tally(collect(\@waiters, 15));
    my $n = (executions('inherit'))[1];
    is_deeply($said, { "201 #$n" => 1, "201 #$n replayed" => 7 }, 'one runs for all');
    is(ledger_count(key => 'inherit'), 2, 'executed once more');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a run without its client goes on in a worker that quits' => sub {
    my $ng = start_nginx('idempotency_wait 20s; idempotency_lease 500ms;');
    my ($gate, $conn) = start_run($ng->port, 'alone');
    my ($old) = $ng->worker_pids;
    $conn->close;
    ok($ng->reload, 'reloaded');
    # Several leases long: whoever renews it is still there.
    my $retry = send_post($ng->port, 'alone');
    sleep 1.2;
    ok(!is_gone($old), 'the old worker stays for it');
    $gate->open;
    my ($n) = executions('alone');
    is(said($retry->response), "201 #$n replayed", 'its outcome is stored');
    is(ledger_count(key => 'alone'), 1, 'executed once');
    ok(wait_until(sub { is_gone($old) }, 5, 'the old worker'), 'the old worker leaves');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

for my $uri ('/x', '/open') {
    subtest "a graceful quit lets a run end ($uri)" => sub {
        my $ng = start_nginx('');
        my ($gate, $conn) = start_run($ng->port, "quit$uri", uri => $uri);
        kill QUIT => $ng->master_pid;
        wait_until(sub { !$ng->worker_pids }, 5, 'the worker to quit');
        $gate->open;
        like(said($conn->response), qr/^201 #\d+$/, 'the client is answered');
        ok(wait_until(sub { $ng->reaped }, 10, 'nginx'), 'nginx leaves by itself');
        is(ledger_count(key => "quit$uri"), 1, 'executed once');
        $ng->check_logs;
    };
}

subtest 'a graceful quit serves those who wait' => sub {
    my $ng = start_nginx('idempotency_wait 20s;');
    my ($gate, $conn) = start_run($ng->port, 'parked');
    my @conns = map { send_post($ng->port, 'parked') } 1 .. 5;
    my $h2 = Http2->new($ng->port(2));
    my $id = $h2->send('POST', '/x', headers => ['idempotency-key' => 'parked'],
        body => 'body');
    wait_parked($ng, 7);
    kill QUIT => $ng->master_pid;
    wait_until(sub { !$ng->worker_pids }, 5, 'the worker to quit');
    $gate->open;
    my $first = said($conn->response);
    is_deeply([map { said($_) } collect(\@conns), $h2->response($id)],
        [("$first replayed") x 6], 'all of them');
    $h2->close;
    ok(wait_until(sub { $ng->reaped }, 10, 'nginx'), 'nginx leaves by itself');
    is(ledger_count(key => 'parked'), 1, 'executed once');
    $ng->check_logs;
};

subtest 'those who wait too long do not keep a quitting worker' => sub {
    my $ng = start_nginx('idempotency_wait 500ms;');
    my ($gate, $conn) = start_run($ng->port, 'short');
    my @conns = map { send_post($ng->port, 'short') } 1 .. 3;
    wait_parked($ng, 4);
    kill QUIT => $ng->master_pid;
    is_deeply([map { said($_) } collect(\@conns)], [('409 in_progress') x 3],
        'they are told to come again');
    $gate->open;
    like(said($conn->response), qr/^201 #\d+$/, 'the run ends');
    ok(wait_until(sub { $ng->reaped }, 10, 'nginx'), 'nginx leaves by itself');
    $ng->check_logs;
};

subtest 'worker_shutdown_timeout cuts a run: its outcome is unknown, not free' => sub {
    my $ng = start_nginx('idempotency_wait 20s;', main => 'worker_shutdown_timeout 300ms;');
    my ($gate, $conn) = start_run($ng->port, 'cut');
    my $waiter = send_post($ng->port, 'cut');
    wait_parked($ng, 2);
    my ($old) = $ng->worker_pids;
    ok($ng->reload, 'reloaded');
    ok(wait_until(sub { is_gone($old) }, 10, 'the old worker'), 'the old worker leaves');
    is(said($conn->response), 'nothing', 'the client gets no answer');
    is(said($waiter->response), 'nothing', 'nor does who waited');
    is(said(post($ng->port, 'cut')), '409 outcome_unknown', 'a retry learns that it is unknown');
    $gate->open;
    is(ledger_count(key => 'cut'), 1, 'executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a fast exit in the middle of a run crashes nothing' => sub {
    my $ng = start_nginx('idempotency_wait 20s;', workers => 2);
    my ($gate, $conn) = start_run($ng->port, 'term');
    my $waiter = send_post($ng->port, 'term');
    wait_parked($ng, 2);
    ok($ng->stop(signal => 'TERM', timeout => 5), 'nginx leaves at once');
    $gate->open;
    is(said($conn->response), 'nothing', 'the client gets no answer');
    is(ledger_count(key => 'term'), 1, 'executed once');
    $ng->check_logs;
};

subtest 'a restart begins without records' => sub {
    plan skip_all => 'Redis and a file keep them' if on_redis() || on_file();
    my $ng = start_nginx('');
    post($ng->port, 'restart');
    ok($ng->restart, 'restarted');
    like(said(post($ng->port, 'restart')), qr/^201 #\d+$/, 'runs');
    is(ledger_count(key => 'restart'), 2, 'executed again');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'reloads under load: one run for each key, and nothing is left behind' => sub {
    my $ng = start_nginx('idempotency_wait 20s; idempotency_lease 2s;', workers => 2);
    ledger_reset();
    my @keys = map {"load-$_"} 1 .. 120;
    my (@conns, %answers);
    for my $round (0 .. 5) {
        # Each key twice, some of them also in the next round.
        my @some = @keys[$round * 20 .. $round * 20 + 19];
        push @some, @keys[($round - 1) * 20 .. ($round - 1) * 20 + 9] if $round;
        push @conns, map { [$_, send_post($ng->port, $_, do => 'sleep=0.15')] }
            @some, @some;
        ok($ng->reload, "reload $round");
    }
    my @responses = collect([map { $_->[1] } @conns], 30);
    push @{ $answers{ $conns[$_][0] } }, said($responses[$_]) for 0 .. $#conns;
    my @odd = grep {
        my ($n, @more) = executions($_);
        @more || grep { !/^201 #$n(?: replayed)?$/ } @{ $answers{$_} };
    } @keys;
    is_deeply([map { "$_: @{ $answers{$_} }" } @odd], [], 'one run, one answer for each key');
    ok(wait_until(sub { Nginx::children_of($ng->master_pid) == 2 }, 10, 'two workers'),
        'two workers are left');
    ok(wait_until(sub { under_way($ng->port(3)) == 0 }, 5, 'the rest'),
        'no request is left over');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

done_testing();
