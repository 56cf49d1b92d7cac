package OnRedis;

# An nginx whose store is a Redis, for the files about what can happen to it.
#
#   my $ng = on_redis_nginx($redis->url, params => 'timeout=300ms',
#       lines => 'idempotency_lease 1s;');
#
# /         protected
# /pass     runs unprotected where the store does not answer
# /open     the response is passed on while it is captured
# port 3    stub_status

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use Test::More;

use lib dirname(abs_path(__FILE__));
use Keyed;
use Ledger qw(ledger_lines);
use Nginx;

our @EXPORT = qw(on_redis_nginx redis_conf lines_in status_of attempts_of all_said
    is_back finish $REFUSED);

our $REFUSED = '503 store_unavailable';

# params: of the store; lines: in http{}; servers: more of them; and what
# Nginx->start() takes.
sub on_redis_nginx ($url, %opt) {
    my @conf = delete @opt{qw(params lines servers)};
    return Nginx->start(%opt, http => redis_conf($url, @conf));
}

sub redis_conf ($url, $params = '', $lines = '', $servers = '') {
    $_ //= '' for $params, $lines, $servers;
    # Where it is not about time, a busy machine has enough of it.
    $params .= ' timeout=5s connect_timeout=5s' if $params !~ /timeout=/;
    my $pass = 'proxy_pass http://application;';
    return <<"CONF";
    idempotency_store default $url $params;
    idempotency_scope none;
    $lines
    # Else a worker that quits waits for clients to hang up.
    lingering_close off;
    proxy_set_header X-Attempt \$idempotency_attempt;
    proxy_set_header X-Token \$idempotency_token;
    proxy_set_header Connection '';
    proxy_http_version 1.1;
    add_header X-Status \$idempotency_status always;
    upstream application {
        server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
        keepalive 32;
    }
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        client_max_body_size 8m;
        location / { idempotency on; $pass }
        location /pass { idempotency on; idempotency_store_failure pass; $pass }
        location /open { idempotency on; idempotency_hold off; $pass }
        location = /pid { return 200 \$pid; }
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        location / { stub_status; access_log off; }
    }
    $servers
CONF
}

# Of the error log.
sub lines_in ($ng, $pattern) {
    return grep {/$pattern/} split /\n/, $ng->error_log;
}

sub status_of ($response) { return $response->{headers}{'x-status'}[0] // 'none' }

sub attempts_of ($key) {
    return map { / key=\Q$key\E .*attempt=(\d+)/ ? $1 : () } ledger_lines();
}

# {answer => how often}
sub all_said (@responses) {
    my %count;
    $count{ said($_) }++ for @responses;
    return \%count;
}

# Whether the store answers again, by itself and soon. Every key asked with is
# another one.
my $asked = 0;

sub is_back ($ng, $seconds = 12) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $said;
    wait_until(sub {
        ($said = said(post($ng->port, 'back-' . ++$asked))) =~ /^201/;
    }, $seconds, 'the store to answer');
    return like($said, qr/^201 #\d+$/, 'the store answers again by itself');
}

# signal => 'TERM' where a worker may have to see to something yet.
sub finish ($ng, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok(wait_until(sub { under_way($ng->port(3)) == 0 }, 5, 'the rest'),
        'no request is left over');
    ok($ng->stop(%opt{grep { exists $opt{$_} } 'signal'}), 'stops');
    $ng->check_logs;
}

1;
