#!/usr/bin/env perl

# "durability": a claim counts when so many replicas, or disks, have it.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;
use Sentinels;

redis_only();

my $PARAMS = 'timeout=1s connect_timeout=1s durability_timeout=300ms';
my $TOO_FEW = qr/\[error\].*did not have claims on as many disks or replicas as "durability" asks for/;

sub told ($port, $key, %opt) {
    return wait_said(qr/^(?!503)/, sub { post($port, $key, %opt) }, 15);
}

# An nginx that has seen it work: a replica that has just got its copy may take
# a while until it confirms writes.
sub warm_nginx ($redis, $params) {
    my $ng = on_redis_nginx($redis->url, params => $params);
    like(told($ng->port, 'warm-' . $ng->port), qr/^201/, 'it works');
    return $ng;
}

# A master and replicas that follow it.
sub with_replicas ($count) {
    my $master = RedisServer->start(conf => ['repl-diskless-sync-delay 0']);
    my @replicas = map { RedisServer->start(conf => ['replicaof 127.0.0.1 ' . $master->port]) }
        1 .. $count;
    wait_until(sub { Sentinels::synced($master) == $count }, 20, 'replicas in sync');
    return ($master, @replicas);
}

sub has_waitaof {
    state $has = do {
        my $redis = RedisServer->start;
        defined $redis->command('COMMAND', 'INFO', 'WAITAOF')->[0];
    };
    return $has;
}

# ---- replicas -------------------------------------------------------------

subtest 'what runs is known to all replicas' => sub {
    my ($redis, @replicas) = with_replicas(2);
    my $ng = warm_nginx($redis, "$PARAMS durability=replicas:2");
    $redis->command('FLUSHALL');
    for my $i (1 .. 20) {
        my ($gate, $conn) = start_run($ng->port, "all-$i");
        my $missing = grep { !grep {/^idem:[0-9a-f]{32}$/} keys_of($_) } @replicas;
        $gate->open;
        my $first = said($conn->response);
        is(said(post($ng->port, "all-$i")), "$first replayed", 'it is replayed');
        is($missing, 0, 'both had it when it ran');
        $redis->command('FLUSHALL');
        wait_until(sub { !grep {/^idem:[0-9a-f]{32}$/} map { keys_of($_) } @replicas }, 5, 'nothing');
    }
    finish($ng, allow => $TOO_FEW);
};

subtest 'a replica hangs: nothing new runs, replays go on as ever' => sub {
    my ($redis, @replicas) = with_replicas(2);
    my $ng = warm_nginx($redis, "$PARAMS durability=replicas:2");
    my $first = said(post($ng->port, 'before'));
    like($first, qr/^201 #\d+$/, 'it runs');
    $replicas[0]->freeze;
    my $new = send_post($ng->port, 'hangs');
    sleep 0.1;
    my $at = time;
    is(said(post($ng->port, 'before')), "$first replayed", 'it is replayed');
    cmp_ok(time - $at, '<', 0.15, 'without waiting for the other');
    is(said($new->response), $REFUSED, 'which is refused');
    is(ledger_count(key => 'hangs'), 0, 'and does not run');
    ok(lines_in($ng, $TOO_FEW), 'the log tells');
    $replicas[0]->thaw;
    like(told($ng->port, 'hangs'), qr/^201 #\d+$/, 'its key is free: it runs when the replica is back');
    finish($ng, allow => $TOO_FEW);
};

subtest 'no replica at all' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => "$PARAMS durability=replicas:1");
    is(said(post($ng->port, 'alone')), $REFUSED, 'refused');
    ok(wait_until(sub { !grep {/^idem:[0-9a-f]{32}$/} keys_of($redis) }, 5, 'no record'), 'the claim is taken back');
    is(ledger_count(key => 'alone'), 0, 'nothing ran');
    finish($ng, allow => $TOO_FEW);
};

subtest 'many claims are asked for together' => sub {
    my ($redis, $replica) = with_replicas(1);
    my $ng = warm_nginx($redis, 'timeout=5s durability=replicas:1');
    $redis->reset_stats;
    is(scalar(grep { $_->{status} == 201 } parallel(200, sub ($i) { post_args($ng->port, "many-$i") })),
        200, 'all run');
    my $waits = $redis->command_stats->{wait};
    cmp_ok($waits, '<=', 150, "$waits questions for 200 claims");
    finish($ng, allow => $TOO_FEW);
};

# ---- which replica is the next master matters -----------------------------

for my $case (['the one that has it', 0, qr/^409/, 1], ['the other one', 1, qr/^201/, 2]) {
    my ($which, $index, $then, $runs) = @$case;
    subtest "one replica of two is not enough: the next master is $which" => sub {
        my ($redis, @replicas) = with_replicas(2);
        my $ng = warm_nginx($redis, "$PARAMS durability=replicas:1");
        # It has lost its master, and keeps what it had.
        $replicas[1]->command('REPLICAOF', '127.0.0.1', closed_port());
        like(told($ng->port, "left-$index"), qr/^201/, 'one is enough');
        my $key = "one-of-two-$index";
        my ($gate, $conn) = start_run($ng->port, $key);
        # The host dies with its master: nobody puts anything back.
        $ng->kill_whole;
        $redis->kill;
        $replicas[$index]->command('REPLICAOF', 'NO', 'ONE');
        my $other = on_redis_nginx($replicas[$index]->url, params => 'timeout=1s');
        like(told($other->port, $key), $then, 'what a retry is told');
        is(ledger_count(key => $key), $runs, "executed $runs times");
        $gate->open;
        finish($other);
    };
}

subtest 'all replicas: the host dies together with its master' => sub {
    my $site = Sentinels->start;
    my $params = "$PARAMS sentinel_check=200ms failover_grace=500ms durability=replicas:2";
    my ($ng, $other) = map { on_redis_nginx($site->url, params => $params) } 1 .. 2;
    like(told($_->port, 'warm-' . $_->port), qr/^201/, 'it works') for $ng, $other;
    my ($gate, $conn) = start_run($ng->port, 'both-die');
    $ng->kill_whole;
    my $old = $site->failover;
    is(told($other->port, 'both-die'), '409 in_progress', 'a retry does not run');
    is(said(post($other->port, 'new')), $REFUSED, 'nothing new runs with one replica less');
    $old->launch;
    like(told($other->port, 'new', uri => '/'), qr/^201/, 'until there are two again');
    is(ledger_count(key => 'both-die'), 1, 'executed once');
    $gate->open;
    finish($other, allow => $TOO_FEW);
};

# ---- disks ----------------------------------------------------------------

subtest 'a server that cannot tell what is on its disk is not used' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => "$PARAMS durability=disk");
    is(said(post($ng->port, 'no-disk')), $REFUSED, 'refused');
    my $why = has_waitaof() ? qr/appendonly is disabled/ : qr/ERR unknown command/;
    ok(wait_until(sub { lines_in($ng, qr/is unavailable: it cannot do what "durability" asks for, the reply is ".*$why/) },
        5, 'a line'), 'the log tells why') or diag(lines_in($ng, qr/idempotency/));
    is(ledger_count(key => 'no-disk'), 0, 'nothing ran');
    finish($ng);
};

SKIP: {
    skip 'this server has no WAITAOF', 1 if !has_waitaof();
    subtest 'what runs is on the disk' => sub {
        my $redis = RedisServer->start(aof => 'everysec');
        my $ng = on_redis_nginx($redis->url, params => 'timeout=4s connect_timeout=1s durability=disk durability_timeout=1900ms');
        my ($gate, $conn) = start_run($ng->port, 'disk');
        $ng->kill_whole;
        $redis->kill;
        $redis->launch;
        my $other = on_redis_nginx($redis->url, params => 'timeout=1s');
        is(told($other->port, 'disk'), '409 in_progress', 'a retry is told so after a crash of all');
        $gate->open;
        finish($other);
    };
}

# ---- bad values -----------------------------------------------------------

my @WRONG = (
    (map { ["durability=$_", '"durability" must be none, replicas:N, disk or disk:N'] }
        qw(all replicas replicas: replicas:0 replicas:x disk: disk:0 none:1 replicas:101)),
    ['durability_timeout=0', '"durability_timeout" must be a time with a unit'],
    ['durability=replicas:1 timeout=200ms', '"durability_timeout" must be less than half of "timeout"'],
);

for my $case (@WRONG) {
    my ($params, $message) = @$case;
    my $text = eval { on_redis_nginx('redis://127.0.0.1:1', params => $params); 1 } ? 'it starts' : $@;
    like($text, qr/\[emerg\].*idempotency store "default": \Q$message\E/, $params);
}

done_testing();
