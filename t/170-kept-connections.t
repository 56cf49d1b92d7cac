# nginx from 1.29.7 on keeps connections to an upstream{} unasked, those of each
# location apart: they may have been made with other certificates or protocols.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

plan(skip_all => 'this nginx keeps no connection unasked') if !nginx_has_reached('1.29.7');

my $ng = Nginx->start(http => <<'CONF');
upstream peer { server 127.0.0.1:%%PORT2%%; }
upstream shared { server 127.0.0.1:%%PORT2%%; keepalive 4; }

server {
    listen 127.0.0.1:%%PORT%%;
    idempotency on;
    idempotency_scope none;
    location /a { proxy_pass http://peer; }
    location /b { proxy_pass http://peer; }
    location /off { idempotency off; proxy_pass http://peer; }
    location /shared/ { proxy_pass http://shared; }
    location /shared/too { proxy_pass http://shared; }
}

server {
    listen 127.0.0.1:%%PORT2%%;
    add_header X-Connection $connection always;
    location / {
        proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
retry_against($ng);

# The numbers of the connections to the peer over which these were sent.
sub connections (@uris) {
    state $number = 0;
    return map { header(write_to($_, key => 'connection-' . $number++), 'X-Connection') } @uris;
}

claim 'requests of a location share a connection' => sub {
    my @used = connections(('/a') x 10);
    is_deeply(\@used, [($used[0]) x 10], 'it is one');
};

claim 'protected or not, the location counts' => sub {
    my @used = connections(('/off', '/a', '/b') x 10);
    my @first = @used[0 .. 2];
    is_deeply(\@used, [(@first) x 10], 'each location uses its own');
    isnt($first[1], $first[2], 'and not that of another');
};

claim 'locations share what they are told to share' => sub {
    my @used = connections(('/shared/', '/shared/too') x 5);
    is_deeply(\@used, [($used[0]) x 10], 'it is one');
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
