#!/usr/bin/env perl

# Redis is slower than the load: those whom it can serve are served, the others
# are refused at once, and when the load is gone so is the trouble.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

my $SLOW = qr/\[warn\].*idempotency: Redis at "\S+" is overloaded/;
my $FAST = qr/\[warn\].*idempotency: Redis at "\S+" is no longer overloaded after \d+ ms, meanwhile \d+ requests/;

my $sent = 0;

# So many new keys a second, for so many seconds, then as many as calm says;
# [when it was sent, answer].
sub load_with ($ng, $rate, $seconds, %calm) {
    my $began = time;
    my (@conns, @times);
    my $due = sub ($passed) {
        return $passed < $seconds ? $passed * $rate
            : $seconds * $rate + ($passed - $seconds) * ($calm{rate} // 0);
    };
    while ((my $passed = time - $began) < $seconds + ($calm{seconds} // 0)) {
        while (@conns < $due->($passed)) {
            push @conns, send_post($ng->port, 'load-' . $sent++);
            push @times, time - $began;
        }
        sleep 0.005;
    }
    my @answers = collect(\@conns, 20);
    return map { [$times[$_], $answers[$_]] } 0 .. $#conns;
}

sub ran ($said) { return $said =~ /^201/ ? 1 : 0 }

subtest 'a Redis of 95 commands a second, 150 requests a second' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=1s connect_timeout=5s',
        lines => q(log_format time '$status $request_time'; access_log %%DIR%%/times time;));
    my $known = said(post($ng->port, 'known'));
    $proxy->mode('crawl');
    my @said = load_with($ng, 150, 7);
    my $ended = time;

    my %by_second;
    for (@said) {
        my ($when, $answer) = @$_;
        push @{ $by_second{ int $when } }, ran(said($answer));
    }
    # Each request that runs is two commands. At first all are let in.
    for my $second (2 .. 6) {
        my $runs = grep {$_} @{ $by_second{$second} };
        cmp_ok($runs, '>=', 15, "second $second: $runs run of " . @{ $by_second{$second} });
    }
    my @wrong = grep { !/^201 #\d+$/ && $_ ne $REFUSED } map { said($_->[1]) } @said;
    is_deeply(\@wrong, [], 'all others are refused');
    my @times = sort { $a <=> $b } Nginx::slurp($ng->path('times')) =~ /^503 (\S+)$/mg;
    cmp_ok($times[@times / 2], '<', 0.1, 'at once');
    cmp_ok($times[-1], '<', 3, 'none has to wait for long');

    my $back = wait_until(sub { said(post($ng->port, 'after-' . $sent++)) =~ /^201/ }, 10, 'it');
    ok($back, 'it serves again');
    cmp_ok(time - $ended, '<', 1.5, '... within a second');
    is(said(post($ng->port, 'known')), "$known replayed", 'and knows what it knew');
    my @runs = grep { ledger_count(key => "load-$_") > 1 } 0 .. 40;
    is_deeply(\@runs, [], 'nothing ran twice');

    $proxy->mode('pass');
    ok(wait_until(sub {
        post($ng->port, 'calm-' . $sent++);
        sleep 0.1;
        return lines_in($ng, $FAST) == lines_in($ng, $SLOW);
    }, 5, 'a line'), 'a line says that it is over');
    is(scalar lines_in($ng, $GONE), 0, 'it was never said to be away');
    # Under way to its end it may be met once more.
    my $slow = lines_in($ng, $SLOW);
    cmp_ok($slow, '>=', 1, 'and that it began');
    cmp_ok($slow, '<=', 4, 'not one for each request');
    finish($ng, signal => 'TERM');
};

# A first request is two commands.
subtest 'half as much again as Redis can take, for 15 seconds' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=1s connect_timeout=5s');
    is_back($ng);
    $proxy->mode('crawl');
    my @said = load_with($ng, 1.5 * 95 / 2, 15, rate => 20, seconds => 3);
    my @during = grep { $_->[0] >= 2 && $_->[0] < 15 } @said;
    my $ran = grep { ran(said($_->[1])) } @during;
    cmp_ok($ran, '>=', 0.4 * @during, "meanwhile $ran of " . @during . ' run');
    my @after = grep { $_->[0] >= 16 } @said;
    cmp_ok(scalar @after, '>=', 30, 'a second after its end ' . @after . ' requests come');
    is(scalar(grep { !ran(said($_->[1])) } @after), 0, 'and all of them run');
    $proxy->mode('pass');
    finish($ng, signal => 'TERM');
};

subtest 'what was refused leaves nothing behind' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=5s');
    is_back($ng);
    $proxy->mode('crawl');
    my $first = $sent;
    my @said = load_with($ng, 200, 2);
    $proxy->mode('pass');
    my @refused = grep { !ran(said($said[$_][1])) } 0 .. $#said;
    ok(@refused > 20, 'many were refused');
    # Those that were claimed too late have to be given back.
    my %left = map { $_ => 1 } @refused;
    wait_until(sub {
        for my $i (keys %left) {
            delete $left{$i} if ran(said(post($ng->port, 'load-' . ($first + $i))));
        }
        return !%left;
    }, 15, 'every key');
    is_deeply([sort { $a <=> $b } keys %left], [], 'all of them run when they come again');
    is(scalar(grep { ledger_count(key => 'load-' . ($first + $_)) != 1 } @refused[0 .. 19]), 0, 'once');
    finish($ng, signal => 'TERM');
};

subtest 'a Redis that stands still for less than the timeout is not overloaded' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=3s connect_timeout=5s');
    is_back($ng);
    $redis->freeze;
    my @conns = map { send_post($ng->port, "pause-$_") } 1 .. 50;
    sleep 0.8;
    $redis->thaw;
    is(scalar(grep { ran(said($_)) } collect(\@conns, 10)), 50, 'all are served');
    is(scalar lines_in($ng, $SLOW), 0, 'and nothing is said');
    finish($ng);
};

done_testing();
