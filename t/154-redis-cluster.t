#!/usr/bin/env perl

# A store in a Redis Cluster: slots that move, failovers, nodes that come and go.

use v5.36;

use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

use Cluster;
use Ledger;
use Nginx;
use Keyed;
use OnCluster;
use OnRedis;
use RedisServer;

redis_only();
plan(skip_all => 'before Redis 7 the kit cannot choose its ports') if RedisServer::is_old();

my $cluster = Cluster->start;

# ---- the base -------------------------------------------------------------

subtest 'records are spread over all masters, and known to all hosts' => sub {
    my ($ng, $other) = start_sites($cluster);
    my %told = map { $_ => said(post($ng->port, $_)) } map {"spread-$_"} 1 .. 40;
    is_deeply([grep { $told{$_} !~ /^201 #\d+$/ } sort keys %told], [], 'all run');
    is_deeply([grep { said(post($other->port, $_)) ne "$told{$_} replayed" } sort keys %told], [],
        'all are replayed by another host');
    my @masters = map { $cluster->master_of($_) } 0, 8000, 16000;
    is(scalar(grep { keys_on($_) } @masters), 3, 'each master has some');
    finish($_) for $ng, $other;
};

subtest 'the first request of a worker waits until it knows the slots' => sub {
    my $ng = on_redis_nginx($cluster->url, params => 'timeout=3s');
    like(said(post($ng->port, 'at-once')), qr/^201 #\d+$/, 'it runs');
    finish($ng);
};

subtest 'one of the hosts in the address is enough, whichever it is' => sub {
    my $url = 'redis+cluster://127.0.0.1:' . closed_port() . ',' . ($cluster->servers)[5]->address;
    my $ng = on_redis_nginx($url, params => 'timeout=3s');
    like(told($ng->port, 'a-replica'), qr/^201 #\d+$/, 'a replica, after one that is not there');
    is(scalar(lines_in($ng, qr/\[error\]/)), 0, 'no error in the log');
    finish($ng);
};

subtest 'SCRIPT FLUSH' => sub {
    my ($ng) = start_sites($cluster, 1);
    Cluster::ask($_, 'SCRIPT', 'FLUSH') for $cluster->running;
    my @said = map { said(post($ng->port, "flush-$_")) } 1 .. 12;
    is_deeply([grep { !/^201 #\d+$/ } @said], [], 'nobody notices');
    is(said(post($ng->port, 'flush-1')), "$said[0] replayed", 'it is stored');
    finish($ng);
};

# ---- slots that move ------------------------------------------------------

subtest 'a slot moves: a running request ends, its retry is replayed' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $from = $cluster->master_of(0);
    my $to = $cluster->master_of(16000);
    my ($key, $gate, $conn, $name) = start_run_on($ng, $from);
    my $slot = $cluster->slot_of($name);
    $cluster->migrate($slot, $to);
    is(said(post($other->port, $key)), '409 in_progress', 'it runs, says the new master');
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'it ends');
    is(said(post($other->port, $key)), "$first replayed", 'and is replayed');
    is(ledger_count(key => $key), 1, 'executed once');
    is(scalar(lines_in($ng, qr/has restarted or is another server/)), 0, 'nothing had to be put back');
    $cluster->migrate($slot, $from);
    is(said(post($other->port, $key)), "$first replayed", 'also when the slot is back');
    finish($_) for $ng, $other;
};

subtest 'a slot is open: keys that are gone from the one are asked for at the other' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $from = $cluster->master_of(0);
    my $to = $cluster->master_of(16000);
    my ($key, $told, $name) = run_on($ng, $from);
    my ($running, $gate, $conn) = start_run_on($ng, $from);
    my $slot = $cluster->slot_of($name);
    $cluster->begin_migration($slot, $to);
    is(said(post($ng->port, $key)), "$told replayed", 'one that has not moved');
    $cluster->move_keys($slot, $from, $to);
    Cluster::ask($to, 'SCRIPT', 'FLUSH');
    is(said(post($_->port, $key)), "$told replayed", 'one that has') for $ng, $other;
    is(ledger_count(key => $key), 1, 'executed once');
    # A new key of this slot: released, so that it is claimed again.
    $cluster->end_migration($slot, $from, $to);
    is(said(post($_->port, $key)), "$told replayed", 'the end') for $ng, $other;
    $gate->open;
    like(said($conn->response), qr/^201/, 'others go on');
    $cluster->migrate($slot, $from);
    finish($_) for $ng, $other;
};

subtest 'slots move under load: none runs twice, none is refused' => sub {
    my ($ng, $other) = start_sites($cluster, 2, params => 'timeout=5s connect_timeout=5s failover_grace=500ms');
    my @masters = map { $cluster->master_of($_) } 0, 8000, 16000;
    my @keys = map {"load-$_"} 1 .. 400;
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        # One slot after the other, to and fro: each is open for a while.
        my $until = time + 60;
        for my $slot (0 .. 300) {
            last if -e $cluster->{dir} . '/enough' || time > $until;
            my $from = $cluster->begin_migration($slot * 7, $masters[1]);
            sleep 0.01;
            $cluster->move_keys($slot * 7, $from, $masters[1]);
            $cluster->end_migration($slot * 7, $from, $masters[1]);
        }
        POSIX::_exit(0);
    }
    my %refused;
    for my $round (1 .. 2) {
        for my $key (@keys) {
            for my $at ($ng, $other) {
                my $said = said(post($at->port, $key));
                $refused{"$key $said"}++ if $said !~ /^201/;
            }
        }
    }
    write_file($cluster->{dir} . '/enough', '');
    waitpid $pid, 0;
    is_deeply(\%refused, {}, 'all are answered');
    is_deeply([grep { ledger_count(key => $_) != 1 } @keys], [], 'each was executed once');
    cmp_ok(scalar(grep { $cluster->master_of($_ * 7) == $masters[1] } 0 .. 20), '>', 10, 'slots have moved');
    finish($_) for $ng, $other;
};

# ---- failovers ------------------------------------------------------------

subtest 'a master dies: what ran, and what runs, is known to its replica' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(16000);
    my ($key, $told) = run_on($ng, $old);
    my ($running, $gate, $conn) = start_run_on($ng, $old);
    my $new = $cluster->failover($old);
    my $switched = time;
    is(told($other->port, $running), '409 in_progress', 'what runs is in progress');
    cmp_ok(time - $switched, '<', 2.5, 'at most two seconds and the grace after the switch');
    is(told($other->port, $key), "$told replayed", 'what has ended is replayed');
    $gate->open;
    my $second = said($conn->response);
    is(told($other->port, $running), "$second replayed", 'as is what ends now');
    is(ledger_count(key => $_), 1, "$_: executed once") for $key, $running;
    ok(lines_in($ng, qr/Redis at "127\.0\.0\.1:\d+" is available again/), 'the log tells');
    $old->launch;
    $cluster->wait_complete;
    finish($_) for $ng, $other;
};

subtest 'the copy lags behind: what was lost is put back, and comes first' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(8000);
    my ($copy) = $cluster->replicas_of($old);
    # Nothing is copied any more.
    $copy->freeze;
    eval { Cluster::ask($old, 'CLIENT', 'KILL', 'TYPE', 'replica') };
    my ($key, $told) = run_on($ng, $old);
    my ($running, $gate, $conn) = start_run_on($ng, $old);
    my $slot = Cluster::first_slot($old);
    $old->kill;
    $copy->thaw;
    $cluster->wait_switched($slot, $old);
    is(told($other->port, $key), "$told replayed", 'what has ended');
    is(told($other->port, $running), '409 in_progress', 'what runs');
    is(ledger_count(key => $_), 1, "$_: executed once") for $key, $running;
    ok(wait_until(sub { lines_in($ng, qr/has restarted or is another server: it had lost [1-9]\d* records/) },
        5, 'a line'), 'the log tells');
    $gate->open;
    like(said($conn->response), qr/^201/, 'which ends');
    $old->launch;
    $cluster->wait_complete;
    finish($_) for $ng, $other;
};

subtest 'a master restarts empty: what it had is put back' => sub {
    my $own = Cluster->start(replicas => 0, coverage => 'no');
    my ($ng, $other) = start_sites($own);
    my $server = $own->master_of(0);
    my ($running, $gate, $conn) = start_run_on($ng, $server);
    $server->restart;
    $own->wait_complete;
    is(told($other->port, $running), '409 in_progress', 'what runs');
    $gate->open;
    my $first = said($conn->response);
    is(told($other->port, $running), "$first replayed", 'and ends');
    is(ledger_count(key => $running), 1, 'executed once');
    finish($_) for $ng, $other;
};

subtest 'a failover on demand, while others go on' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(16000);
    my ($copy) = $cluster->replicas_of($old);
    my ($key, $told) = run_on($ng, $old);
    Cluster::ask($copy, 'CLUSTER', 'FAILOVER');
    ok($cluster->wait_switched(16000, $old), 'there is another master');
    is(told($_->port, $key), "$told replayed", 'replayed') for $ng, $other;
        finish($_) for $ng, $other;
};

subtest 'a node hangs during a command: its outcome is stored by the next one' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(0);
    my ($running, $gate, $conn) = start_run_on($ng, $old);
    my $slot = Cluster::first_slot($old);
    $old->freeze;
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'the client has its response');
    $cluster->wait_switched($slot, $old);
    is(wait_said(qr/replayed/, sub { post($other->port, $running) }, 20), "$first replayed",
        'a retry has it too');
    is(ledger_count(key => $running), 1, 'executed once');
    $old->thaw;
    $cluster->wait_complete;
    is(said(post($other->port, $running)), "$first replayed", 'also when it is back');
    finish($_) for $ng, $other;
};

subtest 'a node vanishes during a claim: the key is not locked' => sub {
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(8000);
    my $slot = Cluster::first_slot($old);
    $old->freeze;
    my @asked = map { [$_, send_post($ng->port, $_)] } map {"vanish-$_"} 1 .. 12;
    my @refused = map { said($_->[1]->response) =~ /^503/ ? $_->[0] : () } @asked;
    cmp_ok(scalar @refused, '>', 0, 'some are refused');
    $old->kill;
    $cluster->wait_switched($slot, $old);
    is_deeply([grep { told($other->port, $_) !~ /^201/ } @refused], [], 'their retries run');
    is_deeply([grep { ledger_count(key => $_) != 1 } @refused], [], 'once');
    $old->launch;
    $cluster->wait_complete;
    finish($_) for $ng, $other;
};

# ---- nodes come and go ----------------------------------------------------

subtest 'a node is added and removed: no connection is left over' => sub {
    my ($ng) = start_sites($cluster, 1);
    my $open = sub { scalar(() = glob('/proc/' . pid_of_worker($ng) . '/fd/*')) };
    like(told($ng->port, 'before-' . $_), qr/^201/, 'it works') for 1 .. 6;
    my $from = $cluster->master_of(0);
    my $before = $open->();
    my $new = $cluster->add_master;
    for my $round (1 .. 3) {
        my ($key, $told, $name) = run_on($ng, $from);
        my $slot = $cluster->slot_of($name);
        $cluster->migrate($slot, $new);
        is(said(post($ng->port, $key)), "$told replayed", 'at the new node');
        is(connections($new), 1, 'which has one connection');
        $cluster->migrate($slot, $from);
        is(said(post($ng->port, $key)), "$told replayed", 'and back');
        ok(wait_until(sub { connections($new) == 0 }, 5, 'no connection'), 'it is let go');
    }
    ok(wait_until(sub { $open->() <= $before }, 5, 'as many files as before'), 'nothing is left over');
    is(scalar(lines_in($ng, qr/had lost/)), 0, 'nothing was put back');
    finish($ng);
    remove_node($new);
};

subtest 'a node that was first reached by ASK claims by one command as soon as it has slots' => sub {
    my ($ng) = start_sites($cluster, 1);
    my $from = $cluster->master_of(0);
    my $new = $cluster->add_master;
    my ($key, $told, $name) = run_on($ng, $from);
    my $slot = $cluster->slot_of($name);
    $cluster->begin_migration($slot, $new);
    $cluster->move_keys($slot, $from, $new);
    is(said(post($ng->port, $key)), "$told replayed", 'ASK');
    $cluster->end_migration($slot, $from, $new);
    is(said(post($ng->port, $key)), "$told replayed", 'MOVED');
    Cluster::ask($new, 'DEL', $name);
    $new->reset_stats;
    like(said(post($ng->port, $key)), qr/^201 #\d+$/, 'it is claimed there');
    is($new->command_stats->{get}, undef, 'without GET');
    $cluster->migrate($slot, $from);
    finish($ng);
    remove_node($new);
};

sub remove_node ($gone) {
    $gone->kill;
    # Redis 8 tells the others, which may have forgotten it already.
    for my $server ($cluster->running) {
        my $id = id_of($gone, $server) // next;
        eval { Cluster::ask($server, 'CLUSTER', 'FORGET', $id) };
    }
    $cluster->{servers} = [grep { $_ != $gone } $cluster->servers];
}

# As the other server knows it.
sub id_of ($node, $server) {
    my $nodes = Cluster::nodes_of($server);
    return (grep { $nodes->{$_}{port} == $node->port } keys %$nodes)[0];
}

sub pid_of_worker ($ng) { return request($ng->port, 'GET', '/pid')->{body} }

done_testing();
