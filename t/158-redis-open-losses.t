#!/usr/bin/env perl

# Ways in which a request still runs twice after Redis has lost its records, though
# the host that ran it lives. Each is marked TODO: it fails, and is to be closed.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Keyed;
use Ledger;
use Nginx;
use OnRedis;
use Proxy;
use RedisServer;

redis_only();

our $TODO;

my $PARAMS = 'timeout=500ms connect_timeout=400ms';

# Asks until it is told something else than that the store is not there.
sub told ($port, $key, %opt) {
    return wait_said(qr/^(?!503)/, sub { post($port, $key, %opt) }, 10);
}

sub runs_once ($why, $title, $check) {
    TODO: {
        local $TODO = $why;
        subtest $title => $check;
    }
}

# ---- older than reassert --------------------------------------------------

# Begun first, as it takes longer than all others together.
my $old_redis = RedisServer->start;
my $old_nginx = on_redis_nginx($old_redis->url, params => $PARAMS);
my %old = map { $_ => said(post($old_nginx->port, "old-$_")) } 1 .. 3;
my $stored = time;

# ---- a worker that starts -------------------------------------------------

runs_once('a worker that starts does not know that the server is another one, and does not wait',
    'a reload in the moment in which Redis is back, empty' => sub {
        my ($redis, $proxy) = proxied_redis();
        my $owner = on_redis_nginx($proxy->url, params => $PARAMS);
        my $other = on_redis_nginx($redis->url, params => $PARAMS);
        my ($gate, $conn) = start_run($owner->port, 'reload');
        # It connects half a second later than others: in time, as the grace is 1 s.
        $proxy->mode('cut');
        $redis->restart;
        $other->reload;
        my $began = time;
        my $second = send_post($other->port, 'reload');
        sleep 0.5 - (time - $began) if time - $began < 0.5;
        $proxy->mode('pass');
        my $said = said($second->response);
        is($said =~ /^201/ ? 'ran' : 'did not run', 'did not run', "a retry: $said");
        $gate->open;
        $conn->response;
        is(ledger_count(key => 'reload'), 1, 'executed once');
        $_->stop for $owner, $other;
    });

# ---- an idle host ---------------------------------------------------------

runs_once('an idle host checks its connection every 5 s, and others wait for 1 s',
    'the address of Redis moves to an empty server, and the host that ran it is idle' => sub {
        my ($redis, $proxy) = proxied_redis();
        my $next = RedisServer->start;
        my ($idle, $busy) = map { on_redis_nginx($proxy->url, params => $PARAMS) } 1 .. 2;
        my $first = said(post($idle->port, 'moved'));
        like($first, qr/^201/, 'it ran');
        $proxy->tell('move it ' . $next->path('redis.sock'));
        $redis->kill;
        # Its first requests notice that nobody answers any more.
        is(wait_said(qr/^201/, sub { post($busy->port, 'notice-' . time) }, 10) =~ /^201/, 1,
            'another host claims at the empty server');
        is(said(post($busy->port, 'moved')), "$first replayed", 'a retry there is replayed');
        is(ledger_count(key => 'moved'), 1, 'executed once');
        $_->stop for $idle, $busy;
    });

# ---- more than a worker keeps ---------------------------------------------

runs_once('of what does not fit into 8 megabytes a worker forgets that it has run, too',
    'sixty responses of 200 kilobytes' => sub {
        my $redis = RedisServer->start;
        my $ng = on_redis_nginx($redis->url, params => $PARAMS);
        like(said(post($ng->port, "large-$_", do => 'size=200000')), qr/^201/, "run $_") for 1 .. 60;
        $redis->restart;
        told($ng->port, "large-$_") for 1 .. 60;
        my @twice = grep { ledger_count(key => "large-$_") > 1 } 1 .. 60;
        is(scalar @twice, 0, 'none is executed twice');
        $ng->stop;
    });

# ---- older than reassert, the end -----------------------------------------

runs_once('an outcome that is older than "reassert" (30 s) is not put back',
    'Redis without persistence is killed 35 s after the response' => sub {
        my $left = $stored + 35 - time;
        sleep $left if $left > 0;
        $old_redis->kill;
        $old_redis->launch or die $old_redis->log;
        is(told($old_nginx->port, "old-$_"), "$old{$_} replayed", "retry $_ is replayed") for sort keys %old;
        my @twice = grep { ledger_count(key => "old-$_") > 1 } sort keys %old;
        is(scalar @twice, 0, 'none is executed twice');
        $old_nginx->stop;
    });

done_testing;
