# A response without a body whose header has to wait, since another stream of
# the same HTTP/2 connection has filled it: the response is complete all the same.

use v5.36;

use Socket;
use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
upstream app { server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
log_format outcome '$http_idempotency_key $status $idempotency_status $idempotency_outcome';
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2 sndbuf=8k;
    access_log %%DIR%%/outcome.log outcome;
    idempotency on;
    idempotency_scope none;
    idempotency_scope_route method path;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    location /held { proxy_pass http://app; }
    location /open { idempotency_hold off; proxy_pass http://app; }
    location /release {
        idempotency_hold off;
        idempotency_unknown_outcome release;
        proxy_pass http://app;
    }
    location /large { idempotency off; proxy_pass http://app; }
}
CONF
retry_against($ng);

for my $uri (qw(/held /open /release)) {
    claim "$uri: read later" => sub {
        my ($h2, $id) = write_on_full_connection($uri);
        my $response = $h2->response($id, 10);
        is($response->{status}, 204, 'the response');
        is_deeply([outcome_of(claim_key())], ['204 NEW completed'], 'the request has ended');
        $h2->close;
    };
    claim "$uri: reset before it was read" => sub {
        my ($h2) = write_on_full_connection($uri);
        $h2->reset;
        like((outcome_of(claim_key()))[0], qr/NEW completed$/, 'the request has ended');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();

# Nothing is read of a large response, so the next header stays in a queue. The
# claim ends as soon as the run has its outcome.
sub write_on_full_connection ($uri) {
    socket(my $socket, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    setsockopt($socket, SOL_SOCKET, SO_RCVBUF, 2048);
    connect($socket, pack_sockaddr_in($ng->port(2), INADDR_LOOPBACK)) or die "connect: $!\n";
    my $h2 = Http2->on(bless $socket, 'IO::Socket::INET');
    # More than the connection may carry by default.
    $h2->frame(8, 0, 0, pack 'N', 100_000_000);
    $h2->send('GET', '/large', headers => ['x-behaviour' => 'size=400000&type=text/plain']);
    my ($before, $same) = (0, 0);
    wait_until(sub {
        my $now = unread($socket);
        $same = $now && $now == $before ? $same + 1 : 0;
        $before = $now;
        return $same == 10;
    }, 10, 'a full connection');
    my $id = $h2->send('POST', $uri, body => $Keyed::BODY,
        headers => ['idempotency-key' => claim_key(), 'x-behaviour' => 'status=204']);
    begun(claim_key());
    my $retry;
    wait_until(sub { said($retry = write_to($uri)) !~ /in_progress/ }, 10, 'the outcome');
    like(said($retry), qr/^204 #\d+ replayed$/, 'the retry');
    is(executions(), 1, 'executions');
    return ($h2, $id);
}

# Bytes that nobody has read yet.
sub unread ($socket) {
    my $count = pack 'i', 0;
    ioctl($socket, 0x541b, $count) // die "FIONREAD: $!\n";
    return unpack 'i', $count;
}

# Of the first request, by the access log.
sub outcome_of ($key) {
    my @lines;
    wait_until(sub { @lines = $ng->read('outcome.log') =~ /^\Q$key\E (.* NEW .*)$/mg }, 10, 'a log line');
    return @lines;
}
