# Replays to clients that read slowly share the memory of the response.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

plan skip_all => 'sanitizers keep freed memory' if !defined $ENV{TEST_NGINX_LUA_MODULES};

my $PASS = 'proxy_http_version 1.1; proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

my $ng = Nginx->start(http => <<"CONF");
idempotency on;
idempotency_scope none;
idempotency_max_response 8m;

server {
    listen 127.0.0.1:%%PORT%% sndbuf=16k;
    location / { $PASS }
    location /brief { idempotency_ttl 4s; $PASS }
}
CONF
retry_against($ng);

my $SIZE = 2_000_000;

# Without the zone.
sub resident {
    my ($pid) = $ng->worker_pids;
    my ($kb) = Nginx::slurp("/proc/$pid/status") =~ /^RssAnon:\s+(\d+)/m;
    return $kb * 1024;
}

# Clients that have sent a retry and read nothing yet.
sub waiting_readers ($count, $uri, %opt) {
    my @readers = map { start_write($uri, %opt) } 1 .. $count;
    wait_until(sub { replays() >= $count }, 10, 'all replays to begin');
    return @readers;
}

# Connections on which the kernel has bytes that the client does not take: the
# access log would come too late.
sub replays {
    my $port = sprintf '%04X', $ng->port;
    my @busy = grep { /^\s*\d+: \S+:$port \S+ 01 (\S+):/ && $1 ne '00000000' }
        split /\n/, Nginx::slurp('/proc/net/tcp');
    return scalar @busy;
}

claim 'many slow readers of one response' => sub {
    my $first = write_to('/', do => "size=$SIZE&type=text/plain");
    is(length $first->{body}, $SIZE, 'the response');
    my $before = resident();
    my @readers = waiting_readers(30, '/');
    my $more = resident() - $before;
    cmp_ok($more, '<', 6 * $SIZE, 'they do not hold a copy each')
        or diag("$more bytes more");
    my @got = collect(\@readers, 60);
    is(scalar(grep { $_->{body} eq $first->{body} } @got), 30, 'all get the whole response');
    # It is freed when the last has it. malloc may keep it, but then uses it again.
    my $kept = resident();
    for my $key (map {"another-$_"} 1 .. 4) {
        write_to('/', key => $key, do => "size=$SIZE&type=text/plain");
        collect([waiting_readers(5, '/', key => $key)], 60);
    }
    cmp_ok(resident() - $kept, '<', 2 * $SIZE, 'other responses after it take no more memory');
};

claim 'another response of the same key is another' => sub {
    my $one = write_to('/brief', do => 'size=1000000&type=text/plain&h=X-Run:1');
    my ($reader) = waiting_readers(1, '/brief');
    select undef, undef, undef, 4.2;
    my $two = write_to('/brief', do => 'size=1000000&type=text/plain&h=X-Run:2');
    is(header($two, 'Idempotent-Replayed'), undef, 'the first has expired');
    my $retry = write_to('/brief');
    is(header($retry, 'X-Run'), 2, 'a replay of the second');
    is(header($reader->response(30), 'X-Run'), 1, 'the slow reader has the first');
};

ok($ng->stop, 'nginx quits gracefully');
$ng->check_logs;

done_testing();
