#!/usr/bin/env perl

# A store in a Redis Cluster whose masters change: what is put back.

use v5.36;

use Test::More;

use Cluster;
use Ledger;
use Nginx;
use Keyed;
use OnCluster;
use OnRedis;
use RedisServer;

redis_only();
plan(skip_all => 'before Redis 7 the kit cannot choose its ports') if RedisServer::is_old();

# Nothing gets to the copies of this master any more.
sub stop_copying ($master, @copies) {
    $_->freeze for @copies;
    Cluster::ask($master, 'CLIENT', 'KILL', 'TYPE', 'replica');
}

# ---- what is remembered ---------------------------------------------------

subtest 'a master is away: what is stored on the others does not push out its records' => sub {
    my $cluster = Cluster->start(coverage => 'no');
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(8000);
    my ($copy) = $cluster->replicas_of($old);
    my $slot = Cluster::first_slot($old);
    stop_copying($old, $copy);
    my ($key, $told) = run_on($ng, $old);
    $old->kill;
    # More than the 8 megabytes that a worker remembers.
    my $stored = 0;
    for (1 .. 200) {
        last if $stored == 60;
        $stored++ if said(post($ng->port, "large-$_", do => 'size=200000')) =~ /^201/;
    }
    is($stored, 60, 'much is stored on the others');
    $copy->thaw;
    ok($cluster->wait_switched($slot, $old), 'then there is another master');
    is(told($other->port, $key), "$told replayed", 'which gets back what was lost');
    is(ledger_count(key => $key), 1, 'executed once');
    finish($_, allow => $ABOUT) for $ng, $other;
};

done_testing();
