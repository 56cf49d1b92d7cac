#!/usr/bin/env perl

# The name of a Redis gets another address, as in a fail-over.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use DnsServer;
use FreePorts qw(free_ports);
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

# Two servers on one port, at addresses of their own.
sub two_servers {
    for (1 .. 5) {
        my ($port) = free_ports(1);
        my @redis = eval {
            map { RedisServer->start(port => $port, bind => $_) } '127.0.0.1', '127.0.0.2';
        };
        return ($port, @redis) if @redis == 2;
    }
    die "no port for two servers\n";
}

# How long the resolver uses what it was told: a second, but it counts whole ones.
my $BELIEVED = 2.1;

my $named = sub ($port, $dns) {
    return on_redis_nginx("redis://localhost:$port", params => 'timeout=300ms connect_timeout=500ms',
        lines => 'resolver 127.0.0.1:' . $dns->port . ' ipv6=off valid=1s; resolver_timeout 1s;');
};

subtest 'when the connection is lost the name is looked up again' => sub {
    my ($port, $old, $new) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    ok($old->command('DBSIZE') > 0, 'the records are where the name says');
    $dns->say('127.0.0.2');
    $old->kill;
    is_back($ng);
    my $first = said(post($ng->port, 'moved'));
    is(said(post($ng->port, 'moved')), "$first replayed", 'it is used as before');
    ok($new->command('DBSIZE') > 1, 'the records are where the name says now');
    finish($ng);
};

subtest 'a master that becomes a replica is left for the one that the name means now' => sub {
    my ($port, $old, $new) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    $dns->say('127.0.0.2');
    $old->command('REPLICAOF', '127.0.0.2', $port);
    is_back($ng);
    wait_until(sub { $new->clients == 1 }, 10, 'a connection');
    is(scalar($new->clients), 1, 'nginx is there');
    finish($ng);
};

subtest 'a new worker asks for the name, too' => sub {
    my ($port, $old, $new) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    $dns->say('127.0.0.2');
    $old->kill;
    is_back($ng);
    my $first = said(post($ng->port, 'respawned'));
    # Where the name was when the configuration was read there is one again.
    $old->launch;
    my ($worker) = $ng->worker_pids;
    kill KILL => $worker;
    wait_until(sub { grep { $_ != $worker } $ng->worker_pids }, 10, 'another worker');
    is(wait_said(qr/^201/, sub { post($ng->port, 'respawned') }), "$first replayed",
        'it uses the one that the name means');
    is(ledger_count(key => 'respawned'), 1, 'executed once');
    is($old->command('DBSIZE'), 0, 'the other one was not asked');
    finish($ng, killed => 1, allow => qr/exited on signal 9/);
};

subtest 'a new worker that cannot ask does not use an old address' => sub {
    my ($port, $old, $new) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    $dns->stop;
    my ($worker) = $ng->worker_pids;
    kill KILL => $worker;
    wait_until(sub { grep { $_ != $worker } $ng->worker_pids }, 10, 'another worker');
    my $said;
    wait_until(sub { $said = eval { said(post($ng->port, 'cannot-ask')) } }, 5, 'an answer');
    is($said, $REFUSED, 'refused');
    ok(wait_until(sub { lines_in($ng, qr/is unavailable: its name cannot be resolved now/) }, 5, 'a line'),
        'the log says why');
    finish($ng, killed => 1, signal => 'TERM', allow => qr/exited on signal 9/);
};

subtest 'a name that only the system knows' => sub {
    my ($port, $old) = two_servers();
    my $dns = DnsServer->start(undef);
    my $ng = $named->($port, $dns);
    is_back($ng);
    finish($ng);
};

subtest 'a name server that does not answer leaves the addresses that were known' => sub {
    my ($port, $old) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    $dns->stop;
    sleep $BELIEVED;
    $old->restart;
    is_back($ng);
    finish($ng);
};

# Who took a name away does not want its old address to be used.
subtest 'a name that there was, and is no more, leads nowhere' => sub {
    my ($port, $old) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    $dns->say(undef);
    sleep $BELIEVED;
    $old->restart;
    ok(wait_until(sub { lines_in($ng, qr/is unavailable: its name does not exist any more/) }, 10, 'a line'),
        'the log says why');
    is(said(post($ng->port, 'no-more')), $REFUSED, 'refused');
    is($old->clients, 0, 'nobody connects to the address that it had');
    $dns->say('127.0.0.1');
    is_back($ng);
    finish($ng);
};

subtest 'nginx ends while a name is looked up' => sub {
    my ($port, $old) = two_servers();
    my $dns = DnsServer->start('127.0.0.1');
    my $ng = $named->($port, $dns);
    is_back($ng);
    $dns->stop;
    $old->kill;
    is(said(post($ng->port, 'ends')), $REFUSED, 'refused');
    sleep 0.3;
    ok($ng->reload, 'reloads');
    is(said(post($ng->port, 'ends')), $REFUSED, 'refused');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

done_testing();
