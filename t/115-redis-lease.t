#!/usr/bin/env perl

# Leases between machines: each nginx is one, and Redis is all they share.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

my $redis = RedisServer->start;
my @BOTH = ($redis, params => 'connect_timeout=5s');

# ---- renewal --------------------------------------------------------------

subtest 'a run longer than lease and TTL is in progress for all' => sub {
    my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 600ms; idempotency_ttl 1s;');
    my ($gate, $conn) = start_run($owner->port, 'long');
    my (%said, $began) = ();
    $began = time;
    while (time < $began + 2.4) {
        $said{ said(post($_->port, 'long')) }++ for $owner, $other;
        sleep 0.05;
    }
    is_deeply([keys %said], ['409 in_progress'], 'every duplicate is told so');
    $gate->open;
    my $first = said($conn->response);
    is(said(post($other->port, 'long')), "$first replayed", 'then it is replayed');
    is(ledger_count(key => 'long'), 1, 'executed once');
    finish($_) for $owner, $other;
};

subtest 'a Redis that stands still for less than the lease ends nobody\'s' => sub {
    my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 6s;');
    my ($gate, $conn) = start_run($owner->port, 'pause');
    $redis->freeze;
    # Longer than a command may take.
    sleep 2.5;
    $redis->thaw;
    is_back($_) for $owner, $other;
    is(said(post($other->port, 'pause')), '409 in_progress', 'it is in progress');
    $gate->open;
    my $first = said($conn->response);
    is(said(post($other->port, 'pause')), "$first replayed", 'and is replayed');
    is(ledger_count(key => 'pause'), 1, 'executed once');
    finish($_, signal => 'TERM') for $owner, $other;
};

# ---- a machine is gone ----------------------------------------------------

subtest 'the owner\'s machine dies: the outcome is unknown when its lease is over' => sub {
    my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 900ms;');
    my ($gate) = start_run($owner->port, 'dies');
    $owner->kill_whole;
    my (%before, $said);
    wait_until(sub {
        $said = said(post($other->port, 'dies'));
        $before{$said}++ if $said ne '409 outcome_unknown';
        return $said eq '409 outcome_unknown';
    }, 10, 'the end of the lease');
    is($said, '409 outcome_unknown', 'a retry is told so');
    is_deeply([keys %before], ['409 in_progress'], 'and before, that it was in progress');
    is(said(post($other->port, 'dies', body => 'other')), '422 key_reused',
        'it is not free for another request');
    ok($owner->launch, 'the machine is back');
    is(said(post($owner->port, 'dies')), '409 outcome_unknown', 'and knows no more');
    $gate->open;
    is(ledger_count(key => 'dies'), 1, 'executed once');
    finish($_) for $owner, $other;
};

subtest 'where that is wanted exactly one of many retries takes over' => sub {
    my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 900ms; idempotency_unknown_outcome release;', workers => 2);
    my ($dies, $third) = two_nginx(@BOTH, lines => 'idempotency_lease 900ms; idempotency_unknown_outcome release;');
    my @keys = map {"over-$_"} 1 .. 10;
    my $gate = Keyed::Gate->new;
    my @lost = map { send_post($dies->port, $_, do => $gate->closed) } @keys;
    begun($_) for @keys;
    $dies->kill_whole;
    my $port = sub ($i) { ($owner, $other, $third)[$i % 3]->port };
    is_deeply(tally(map { post($port->($_), $keys[$_]) } 0 .. 9), { '409 in_progress' => 10 },
        'nobody does before the lease is over');
    sleep 1;
    my $second = Keyed::Gate->new;
    my @conns = map { my $i = $_;
        map { send_post($port->($_), $keys[$i], do => $second->closed) } 0 .. 11
    } 0 .. 9;
    begun($_, 2) for @keys;
    # Who is not among them has been refused by now, or runs too.
    sleep 0.5;
    $second->open;
    my @answers = collect(\@conns, 20);
    my @wrong;
    for my $i (0 .. 9) {
        my $said = tally(@answers[$i * 12 .. $i * 12 + 11]);
        my @runs = executions($keys[$i]);
        my $n = $runs[1] // 0;
        my %rest = %$said;
        my $ran = delete $rest{"201 #$n"} // 0;
        delete @rest{ '409 in_progress', "201 #$n replayed" };
        push @wrong, [$keys[$i], \@runs, $said] if @runs != 2 || $ran != 1 || %rest;
    }
    is_deeply(\@wrong, [], 'one runs, the others are refused or get its answer');
    is_deeply([map { attempts_of($_) } @keys], [(1, 2) x 10], 'as the second attempt');
    $gate->open;
    finish($_) for $owner, $other, $third;
};

# ---- an owner that comes back ---------------------------------------------

# The owner's worker stands still until its lease is over.
sub stop_owner ($owner, $key, $do) {
    my ($worker) = $owner->worker_pids;
    my ($gate, $conn) = start_run($owner->port, $key, do => $do);
    kill STOP => $worker;
    $gate->open;
    return ($worker, $conn, $gate);
}

subtest 'nobody took over: the outcome of an owner that comes back is stored' => sub {
    my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 700ms;');
    my ($worker, $conn, $opened) = stop_owner($owner, 'back', '');
    is(wait_said('409 outcome_unknown', sub { post($other->port, 'back') }), '409 outcome_unknown',
        'it was unknown');
    kill CONT => $worker;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'its client is answered');
    is(wait_said("$first replayed", sub { post($other->port, 'back') }), "$first replayed",
        'retries are too');
    is(ledger_count(key => 'back'), 1, 'executed once');
    finish($_) for $owner, $other;
};

for my $case (['an answer', '', qr/^409 in_progress$/], ['a failure', 'status=500', qr/^500 /],
    ['no answer', 'die=before', qr/^502/])
{
    my ($name, $do, $told) = @$case;
    subtest "an owner that comes back with $name does not disturb its successor" => sub {
        my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 700ms; idempotency_unknown_outcome release;');
        my $key = "fenced-$name" =~ s/ /-/gr;
        my ($worker, $conn, $opened) = stop_owner($owner, $key, $do);
        my $gate = Keyed::Gate->new;
        my $successor = take_over($key, sub { send_post($other->port, $key, do => $gate->closed) });
        kill CONT => $worker;
        like(said($conn->response), $told, 'its client is not told otherwise than all others');
        is(said(post($other->port, $key)), '409 in_progress', 'the successor runs on');
        # Longer than its lease.
        sleep 0.9;
        is(said(post($owner->port, $key)), '409 in_progress', 'and renews its lease');
        $gate->open;
        my $second = said($successor->response);
        is(said(post($_->port, $key)), "$second replayed", 'its outcome is the one stored')
            for $owner, $other;
        is_deeply([attempts_of($key)], [1, 2], 'two attempts');
        ok(lines_in($owner, qr/\[warn\].*lease lost/), 'the owner is warned');
        finish($_) for $owner, $other;
    };
}

# Redis grants it, but nginx does something else until its lease is over: not
# stopped, as a worker that goes on looks at its timers first.
for my $taken_over (1, 0) {
    my $name = $taken_over ? 'does not run' : 'is given back';
    subtest "a claim that is answered after its lease $name" => sub {
        my $lua = lua_modules() || return plan(skip_all => 'lua is not there');
        my ($owner, $other) = two_nginx(@BOTH, main => $lua,
            lines => 'idempotency_lease 1500ms;'
                . ($taken_over ? 'idempotency_unknown_outcome release;' : ''),
            servers => 'server { listen 127.0.0.1:%%PORT2%%;
                location / { content_by_lua_block { os.execute("sleep 3") } } }');
        is_back($owner);
        my $key = "answered-$taken_over";
        $redis->freeze;
        my $conn = send_post($owner->port, $key);
        # The claim is on its way.
        sleep 0.2;
        my $busy = send_request($owner->port(2), 'GET', '/');
        sleep 0.2;
        $redis->thaw;
        my $second;
        if ($taken_over) {
            $second = wait_said(qr/^201/, sub { post($other->port, $key) });
            like($second, qr/^201 #\d+$/, 'another took over');
        }
        is(said($conn->response), $REFUSED, 'it is refused');
        $second //= wait_said(qr/^201/, sub { post($owner->port, $key) });
        is(wait_said(qr/^201/, sub { post($owner->port, $key) }), "$second replayed",
            'the one that ran is the one stored');
        is(ledger_count(key => $key), 1, 'executed once');
        is_deeply([attempts_of($key)], [$taken_over ? 2 : 1], 'as it should be announced');
        $busy->response;
        finish($_) for $owner, $other;
    };
}

subtest 'an owner that comes back does not renew the lease of its successor' => sub {
    my ($owner, $other) = two_nginx(@BOTH, lines => 'idempotency_lease 700ms; idempotency_unknown_outcome release;');
    my ($worker) = $owner->worker_pids;
    my ($gate, $conn) = start_run($owner->port, 'renews');
    kill STOP => $worker;
    my $second = Keyed::Gate->new;
    take_over('renews', sub { send_post($other->port, 'renews', do => $second->closed) });
    kill CONT => $worker;
    $other->kill_whole;
    # While the first run goes on.
    my $third = wait_said(qr/^201/, sub { post($owner->port, 'renews') });
    like($third, qr/^201 #\d+$/, 'its lease ends with its machine');
    is_deeply([attempts_of('renews')], [1, 2, 3], 'and somebody takes over');
    $_->open for $gate, $second;
    is(said($conn->response), "$third replayed", 'the first client is told what all are told');
    is(said(post($owner->port, 'renews')), "$third replayed", 'the third attempt\'s is the one stored');
    finish($owner);
};

done_testing();
