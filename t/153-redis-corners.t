#!/usr/bin/env perl

# Where two rare things meet: a failover or a reload, and something else.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use FakeRedis;
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use Proxy;
use RedisServer;
use Sentinels;

redis_only();

sub told ($port, $key, %opt) {
    return wait_said(qr/^(?!503)/, sub { post($port, $key, %opt) }, 15);
}

subtest 'Sentinel: a worker that is shutting down still stores what it runs' => sub {
    my $site = Sentinels->start(replicas => 0, sentinels => 1);
    my $ng = on_redis_nginx($site->url, params => 'timeout=500ms connect_timeout=1s sentinel_check=200ms');
    like(told($ng->port, 'hello'), qr/^201/, 'it works');
    my ($gate, $conn) = start_run($ng->port, 'long');
    $ng->reload;
    # What the Sentinels have said before does not count any more.
    sleep 1.5;
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'it ends');
    is(wait_said(qr/^(?!503|409 in_progress)/, sub { post($ng->port, 'long') }, 5), "$first replayed",
        'and is replayed');
    is(ledger_count(key => 'long'), 1, 'executed once');
    finish($ng);
};

subtest 'a new master without replicas: claims wait for an outcome that it has refused' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=1s failover_grace=500ms');
    my ($gate, $conn) = start_run($ng->port, 'refused');
    $proxy->mode('refuse');
    $redis->restart;
    $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 1);
    $proxy->mode('pass');
    wait_until(sub { $redis->clients }, 5, 'the link');
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'its client is answered');
    # By now it is tried again at long intervals.
    sleep 1.7;
    $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 0);
    is(told($ng->port, 'refused'), "$first replayed", 'a retry gets it');
    is(ledger_count(key => 'refused'), 1, 'executed once');
    finish($ng, allow => qr/NOREPLICAS/);
};

subtest 'a new master that refuses writes for long: all is put back when it no longer does' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=1s failover_grace=500ms');
    my $first = said(post($ng->port, 'long-refused'));
    like($first, qr/^201 #\d+$/, 'it runs');
    $proxy->mode('refuse');
    $redis->restart;
    $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 1);
    $proxy->mode('pass');
    ok(wait_until(sub { lines_in($ng, qr/has restarted or is another server/) }, 20, 'the line'),
        'claims do not wait any longer');
    $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 0);
    ok(wait_until(sub { scalar keys_of($redis) }, 2, 'a record'), 'it is put back');
    is(told($ng->port, 'long-refused'), "$first replayed", 'a retry gets it');
    is(ledger_count(key => 'long-refused'), 1, 'executed once');
    finish($ng, allow => qr/NOREPLICAS/);
};

# It has lost its memory, and the first that claims after that is not the host
# that knows of the run.
for my $still_has (0, 1) {
    my $name = $still_has ? 'what it still has proves nothing' : 'other hosts wait for those who put back';
    subtest "a new master that refuses writes at first: $name" => sub {
        my ($redis, $proxy) = proxied_redis();
        my $params = 'timeout=500ms connect_timeout=1s failover_grace=500ms';
        my ($ng, $other) = map { on_redis_nginx($proxy->url, params => $params) } 1 .. 2;
        my @there = $still_has ? record_of($redis, $other) : ();
        my @keys = map {"late-$still_has-$_"} 1 .. 5;
        my %first = map { $_ => said(post($ng->port, $_)) } @keys;
        $proxy->mode('refuse');
        $redis->restart;
        $redis->command('SET', @there) if @there;
        $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 1);
        $proxy->mode('pass');
        ok(wait_until(sub { lines_in($other, qr/restarted or is another server: .* still had $still_has\b/) }, 5,
            'the line'), 'the other host has nothing to put back');
        $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 0);
        my @conns = map { send_post($other->port, $_) } @keys;
        my @at_once = map { said($_) } collect(\@conns, 5);
        is(scalar(grep {/^201 #\d+$/} @at_once), 0, 'none of them runs again') or diag("@at_once");
        is(told($other->port, $_), "$first{$_} replayed", 'a retry gets its response') for @keys;
        is(ledger_count(key => $_), 1, 'executed once') for @keys;
        like(told($other->port, "new-$still_has"), qr/^201 #\d+$/, 'and what is new runs');
        finish($_, allow => qr/NOREPLICAS/) for $ng, $other;
    };
}

# The name and the bytes of one that has ended.
sub record_of ($redis, $ng) {
    like(said(post($ng->port, 'there')), qr/^201/, 'it runs');
    my ($name) = keys_of($redis);
    return ($name, $redis->command('GET', $name));
}

subtest 'an outcome that has expired does not push out the run that came after it' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=500ms connect_timeout=1s',
        lines => 'idempotency_ttl 1s;');
    like(said(post($ng->port, 'short')), qr/^201 #\d+$/, 'it runs');
    sleep 1.3;
    my ($gate, $conn) = start_run($ng->port, 'short');
    $redis->restart;
    is(told($ng->port, 'short'), '409 in_progress', 'the second run is in progress');
    $gate->open;
    my $second = said($conn->response);
    is(told($ng->port, 'short'), "$second replayed", 'and is replayed');
    finish($ng);
};

subtest 'the fence holds while replicas are asked, even with "pass"' => sub {
    my $site = Sentinels->start(replicas => 0, sentinels => 1);
    my $proxy = Proxy->to(($site->sentinels)[0]->path('redis.sock'));
    my $ng = on_redis_nginx('redis+sentinel://127.0.0.1:' . $proxy->port . '/payments',
        params => 'timeout=2s connect_timeout=1s sentinel_check=100ms'
            . ' durability=replicas:1 durability_timeout=900ms');
    is(wait_said(qr/^201/, sub { post($ng->port, 'before', uri => '/pass') }) =~ s/#.*//r, '201 ',
        'too few replicas: it runs unprotected');
    $proxy->mode('stall');
    is(said(post($ng->port, 'cut-off', uri => '/pass')), $REFUSED, 'cut off meanwhile: it does not');
    is(ledger_count(key => 'cut-off'), 0, 'nothing ran');
    $proxy->mode('pass');
    finish($ng, allow => qr/Sentinel|no majority|is unavailable|durability/);
};

subtest 'a renewal whose script is not known does not come after the release' => sub {
    my $redis = RedisServer->start;
    my $fake = FakeRedis->before($redis, sub ($words, $ask) {
        my $reply = $ask->();
        sleep 0.7 if $reply =~ /^-NOSCRIPT/;
        return $reply;
    });
    my $ng = on_redis_nginx($fake->url, params => 'timeout=1s', lines => 'idempotency_lease 3s;');
    like(said(post($ng->port, 'known', do => 'status=500')), qr/^500/, 'the script for releases is known');
    my ($gate, $conn) = start_run($ng->port, 'renewed', do => 'status=500');
    # A third of the lease, and a bit.
    sleep 1.2;
    $gate->open;
    like(said($conn->response), qr/^500/, 'it is released');
    sleep 0.5;
    like(said(post($ng->port, 'renewed')), qr/^201 #\d+$/, 'a retry runs');
    finish($ng);
};

done_testing();
