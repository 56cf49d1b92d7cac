#!/usr/bin/env perl

# Redis over TLS: whom the module trusts, and what it says where it does not.

use v5.36;

use Digest::SHA qw(sha1_hex);
use Test::More;

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

my $tls = RedisServer->start(tls => 1);
my $strict = RedisServer->start(tls => 'client');
my $plain = RedisServer->start;

my $claims = 0;

sub works ($url, $params, $name) {
    my $key = 'tls-' . ++$claims;
    subtest $name => sub {
        my $ng = on_redis_nginx($url, params => "connect_timeout=5s timeout=5s $params");
        my $first = post($ng->port, $key);
        like(said($first), qr/^201 #\d+$/, 'runs');
        is(said(post($ng->port, $key)), said($first) . ' replayed', 'is replayed');
        is(ledger_count(key => $key), 1, 'executed once');
        unlike($ng->error_log, qr/\[(?:warn|error|crit)\]/, 'nothing is logged');
        finish($ng);
    };
}

# Every request is refused at once, and the log says why, once.
sub fails ($url, $params, $name, $reason) {
    my $key = 'tls-' . ++$claims;
    subtest $name => sub {
        my $ng = on_redis_nginx($url, params => "connect_timeout=5s $params");
        my @answers = map { post($ng->port, $key) } 1 .. 3;
        is_deeply(tally(@answers), { $REFUSED => 3 }, 'refused');
        is(ledger_count(key => $key), 0, 'not executed');
        my @lines = lines_in($ng, $GONE);
        is(scalar @lines, 1, 'one line is logged') or diag(@lines);
        like($lines[0] // '', $reason, 'which says why');
        finish($ng);
    };
}

my $ca = 'tls_ca=' . $tls->path('ca.crt');
my $strict_ca = 'tls_ca=' . $strict->path('ca.crt');
my $certificate = join ' ', map { "tls_$_->[0]=" . $strict->path("client.$_->[1]") }
    ['cert', 'crt'], ['key', 'key'];
my $by_name = 'rediss://localhost:' . $tls->port;
my $untrusted = qr/certificate|verif/i;

works($tls->url, $ca, 'a certificate for the address');
works($by_name, $ca, 'a certificate for the name');
works($tls->url, "$ca tls_name=redis.test", 'a certificate for the name that is written');
fails($tls->url, "$ca tls_name=other.test", 'a certificate for another name', qr/other\.test|name|host/);
fails($tls->url, 'tls_ca=' . $tls->path('foreign-ca.crt'), 'a certificate of a stranger', $untrusted);
fails($tls->url, '', 'a certificate that the system does not trust', $untrusted);
works($tls->url, 'tls_verify=off', 'whatever certificate, where nobody looks');
works($tls->url, 'tls_verify=off tls_name=other.test', '... and whatever name');

works($strict->url, "$strict_ca $certificate", 'a certificate of our own');
fails($strict->url, $strict_ca, 'none, though Redis wants one', qr/./);

fails($plain->url =~ s/^redis:/rediss:/r, 'tls_verify=off', 'TLS to a Redis that does not speak it', qr/./);
fails($tls->url =~ s/^rediss:/redis:/r, '', 'no TLS to a Redis that wants it', qr/./);

subtest 'large bodies come back byte by byte' => sub {
    my $ng = on_redis_nginx($tls->url, params => "timeout=5s connect_timeout=5s $ca",
        lines => 'idempotency_max_response 4m;');
    my $body = join '', map { pack 'N', $_ * 2654435761 % 2**32 } 1 .. 600_000;
    my @answers = map { post($ng->port, 'large', body => $body, do => 'echo=1') } 1 .. 2;
    is(said($answers[1]), said($answers[0]) . ' replayed', 'replayed');
    is_deeply([map { sha1_hex($_->{body}) } @answers], [(sha1_hex($body)) x 2], 'the same');
    finish($ng);
};

subtest 'many requests at once share a connection' => sub {
    my $ng = on_redis_nginx($tls->url, params => "timeout=5s connect_timeout=5s $ca");
    my @first = parallel(100, sub ($i) { post_args($ng->port, "many-$i", body => 'x' x 3000 x ($i % 9)) });
    my @second = parallel(100, sub ($i) { post_args($ng->port, "many-$i", body => 'x' x 3000 x ($i % 9)) });
    is_deeply([map { said($_) } @second], [map { said($_) . ' replayed' } @first], 'all are replayed');
    is(scalar($tls->clients), 1, 'one');
    finish($ng);
};

subtest 'it comes back by itself over TLS too' => sub {
    my $redis = RedisServer->start(tls => 1, aof => 'always');
    my $ng = on_redis_nginx($redis->url,
        params => 'connect_timeout=5s tls_ca=' . $redis->path('ca.crt'));
    my $first = said(post($ng->port, 'again'));
    $redis->kill;
    is(said(post($ng->port, 'again')), $REFUSED, 'refused without it');
    $redis->launch;
    is_back($ng);
    is(said(post($ng->port, 'again')), "$first replayed", 'and its records are there');
    finish($ng);
};

done_testing();
