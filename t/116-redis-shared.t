#!/usr/bin/env perl

# Many nginx, one Redis: every operation runs once, whoever gets its requests.

use v5.36;

use List::Util qw(shuffle uniq);
use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

my $KEYS = $ENV{TEST_REDIS_KEYS} // 1000;
my $SENDS = 3;
my $AT_ONCE = 50;    # keys

my $redis = RedisServer->start;

subtest "$KEYS keys, $SENDS requests each, to either nginx" => sub {
    my @ng = two_nginx($redis, lines => 'idempotency_wait 20s;', workers => 2);
    ledger_reset();
    my (%answers, %bodies);
    my @keys = map {"key-$_"} 1 .. $KEYS;
    while (my @some = splice @keys, 0, $AT_ONCE) {
        my @send = shuffle((@some) x $SENDS);
        my @responses = parallel(scalar @send, sub ($i) { post_args($ng[rand 2]->port, $send[$i]) });
        for my $i (0 .. $#send) {
            push @{ $answers{ $send[$i] } }, said($responses[$i]);
            push @{ $bodies{ $send[$i] } }, $responses[$i]{body};
        }
    }
    my $runs = runs_by_key();
    my @wrong;
    for my $key (sort keys %answers) {
        my ($n, @more) = @{ $runs->{$key} // [] };
        my @said = sort @{ $answers{$key} };
        my @wanted = $n ? ("201 #$n", ("201 #$n replayed") x ($SENDS - 1)) : ();
        push @wrong, "$key: ran as " . join(' ', $n // (), @more) . '; said ' . join ', ', @said
            if @more || "@said" ne "@wanted" || uniq(@{ $bodies{$key} }) != 1;
    }
    is_deeply(\@wrong, [], 'each ran once, and all its requests got the same answer');
    is(ledger_count(), $KEYS, 'one run for each key');
    finish($_) for @ng;
};

# ---- waiting --------------------------------------------------------------

subtest 'a duplicate waits for a run on another machine' => sub {
    my ($owner, $other) = two_nginx($redis, lines => 'idempotency_wait 20s;');
    my ($gate, $conn) = start_run($owner->port, 'waits');
    my @waiters = map { send_post($other->port, 'waits') } 1 .. 5;
    wait_parked($other, 5);
    sleep 0.5;
    $gate->open;
    my $first = said($conn->response);
    my $ended = time;
    is_deeply(tally(collect(\@waiters)), { "$first replayed" => 5 }, 'all get its answer');
    cmp_ok(time - $ended, '<', 2, 'soon');
    is(ledger_count(key => 'waits'), 1, 'executed once');
    finish($_) for $owner, $other;
};

subtest 'a released key: one waiter of all machines runs, the others wait on' => sub {
    my @ng = two_nginx($redis, lines => 'idempotency_wait 20s;', workers => 2);
    my ($gate, $conn) = start_run($ng[0]->port, 'released', do => 'status=500');
    my $second = Keyed::Gate->new;
    my @waiters = map { send_post($ng[$_ % 2]->port, 'released', do => $second->closed) } 1 .. 20;
    wait_parked($ng[0], 11);
    wait_parked($ng[1], 10);
    $gate->open;
    is($conn->response->{status}, 500, 'the owner fails');
    ok(begun('released', 2), 'somebody else runs');
    # Longer than the longest step between two questions.
    sleep 0.6;
    is(ledger_count(key => 'released'), 2, 'nobody else while it does');
    $second->open;
    my $n = (executions('released'))[1];
    is_deeply(tally(collect(\@waiters, 15)), { "201 #$n" => 1, "201 #$n replayed" => 19 },
        'all get its answer');
    is(ledger_count(key => 'released'), 2, 'it ran once more');
    finish($_) for @ng;
};

# What so many waiters on one worker ask Redis until the run ends, in commands.
sub cost_of ($count) {
    my ($owner, $other) = two_nginx($redis, lines => 'idempotency_wait 60s; idempotency_lease 60s;');
    my $key = "cost-$count";
    my ($gate, $conn) = start_run($owner->port, $key);
    $redis->reset_stats;
    my $began = time;
    my @waiters = map { send_post($other->port, $key) } 1 .. $count;
    wait_parked($other, $count);
    sleep 1;
    my $stats = $redis->command_stats;
    my $elapsed = time - $began;
    $gate->open;
    my $first = said($conn->response);
    is_deeply(tally(collect(\@waiters, 30)), { "$first replayed" => $count },
        "$count waiters get the answer");
    is(ledger_count(key => $key), 1, '... of the one run');
    finish($_) for $owner, $other;
    my $asked = 0;
    $asked += $stats->{$_} // 0 for qw(set eval evalsha);
    note(sprintf '%d waiters: %d commands in %.1f s', $count, $asked, $elapsed);
    return ($asked, $elapsed);
}

subtest 'a thousand waiters of a worker ask Redis as often as one' => sub {
    # Steps of 10, 20, 40, 80 and 160 ms, then of 200 ms or more, each of two
    # commands at most; and what the run itself asks.
    for my $count (1, 1000) {
        my ($asked, $seconds) = cost_of($count);
        cmp_ok($asked, '<=', 2 * (8 + $seconds / 0.2), "$count: no more than the steps allow");
    }
};

done_testing();
