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

use v5.36;

use Exporter 'import';
use Test::More;

use Keyed;
use Nginx;
use Proxy;
use RedisServer;
use Store ();

our @EXPORT = qw(on_redis_nginx two_nginx proxied_redis redis_conf keys_of status_of is_back
    documented_acl $REFUSED $GONE $BACK);

our $REFUSED = '503 store_unavailable';

# What the log says when a server goes, and when it is back.
our $GONE = qr/\[error\].*idempotency: Redis at "\S+" is unavailable: /;
our $BACK = qr/\[warn\].*idempotency: Redis at "\S+" is available again/;

# params: of the store; lines: in http{}; servers: more of them; and what
# Nginx->start() takes.
sub on_redis_nginx ($url, %opt) {
    my @conf = delete @opt{qw(params lines servers)};
    return Nginx->start(%opt, http => redis_conf($url, @conf));
}

sub two_nginx ($redis, %opt) {
    return map { on_redis_nginx($redis->url, %opt) } 1 .. 2;
}

# A Redis, and a network before it that fails as it is told.
sub proxied_redis (%opt) {
    my $redis = RedisServer->start(%opt);
    return ($redis, Proxy->to($redis->path('redis.sock')));
}

sub redis_conf ($url, $params = '', $lines = '', $servers = '') {
    $_ //= '' for $params, $lines, $servers;
    $params .= ' connect_timeout=5s' if $params !~ /timeout=/;
    $params .= ' ' . Store::patience("$lines $servers") if $params !~ /\btimeout=/;
    my $pass = 'proxy_pass http://application;';
    return <<"CONF";
    idempotency_store default $url $params;
    idempotency_scope none;
    idempotency_scope_route host method path;
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

# The names of the records of a database.
sub keys_of ($redis, $db = 0) {
    $redis->command('SELECT', $db);
    my @keys = sort @{ $redis->command('KEYS', '*') };
    $redis->command('SELECT', 0);
    return @keys;
}

sub status_of ($response) { return header($response, 'X-Status') // 'none' }

# The permissions of a user as docs/redis.md prints them: the words that follow
# its name in ACL SETUSER, with this password.
sub documented_acl ($password = 'password') {
    my ($words) = Nginx::slurp('docs/redis.md') =~ /^    ACL SETUSER idem (on >password .*)$/m
        or die "no ACL SETUSER in docs/redis.md\n";
    return map { s/^>password$/>$password/r } split ' ', $words;
}

# Whether the store answers again, by itself and soon. Every key asked with is
# another one.
my $asked = 0;

sub is_back ($ng, $seconds = 12) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $said = wait_said(qr/^201/, sub { post($ng->port, 'back-' . ++$asked) }, $seconds);
    return like($said, qr/^201 #\d+$/, 'the store answers again by itself');
}

1;
