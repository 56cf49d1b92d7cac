# Clients that read a response slowly, or no longer, while it is passed on: the
# run goes to its end, and so does everything else that the worker does.

use v5.36;

use IO::Select;
use Socket;
use Test::More;
use Time::HiRes qw(time);

use Hpack;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $LUA = lua_modules();
my $lua = $LUA eq '' ? '' : <<'CONF';
    location /lua {
        idempotency_hold off;
        content_by_lua_block {
            for i = 1, 40 do
                ngx.print(string.rep("x", 20000))
                ngx.flush(true)
            end
        }
    }
CONF

my $ng = Nginx->start(main => $LUA, http => <<"CONF");
upstream app { server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%% sndbuf=16k;
    listen 127.0.0.1:%%PORT2%% http2 sndbuf=8k;
    http2_chunk_size 16k;
    idempotency on;
    idempotency_scope none;
    idempotency_scope_route method path;
    proxy_http_version 1.1;
    lingering_close off;

    # Of the connection it is longer.
    location /open { send_timeout 1s; idempotency_hold off; proxy_pass http://app; }
    location /unbuffered {
        send_timeout 1s;
        idempotency_hold off;
        proxy_buffering off;
        proxy_pass http://app;
    }
    location /large { send_timeout 1s; idempotency_max_response 100k; proxy_pass http://app; }
    location = /other { return 200 "other\\n"; }
    $lua
}
CONF
retry_against($ng);

my %THEN = ('/open' => '201 #1 replayed', '/unbuffered' => '201 #1 replayed',
    '/large' => '409 response_not_kept');

for my $uri (sort keys %THEN) {
    claim "$uri: a stream of HTTP/2 whose frames stand in the queue times out" => sub {
        my $gone = times_gone();
        my $h2 = slow_reader($ng->port(2));
        $h2->send('POST', $uri, body => $Keyed::BODY, headers => [
            'idempotency-key' => claim_key(),
            'x-behaviour' => 'size=900000&type=text/plain']);
        my $bytes = '';
        ok(wait_until(sub {
            select undef, undef, undef, 0.2;
            read_some($h2, \$bytes, 600);
            return times_gone() > $gone;
        }, 20, 'the timeout'), 'the client counts as gone');

        my $other = $h2->send('GET', '/other');
        ok(wait_until(sub {
            read_some($h2, \$bytes, 65536);
            return grep {/^headers $other\b/} frames(\$bytes);
        }, 10, 'the other stream'), 'another stream of the connection is answered');
        read_some($h2, \$bytes, 65536) for 1 .. 5;
        ok(!(grep {/^bad/} frames(\$bytes)), 'all frames are sound');

        my $then = wait_said(qr/^(?!409 in_progress)/, sub { write_to($uri) });
        is($then =~ s/#\d+/#1/r, $THEN{$uri}, 'the run went to its end');
        is(executions(), 1, 'executions');
    };
}

SKIP: {
    skip 'Lua is not to be had', 1 if $LUA eq '';

    claim 'a handler that waits until its client has read goes on when it left' => sub {
        my $conn = start_write('/lua');
        select undef, undef, undef, 0.3;
        $conn->close;
        is(wait_said(qr/^(?!409 in_progress)/, sub { write_to('/lua') }, 5),
            '200 replayed', 'the run went to its end');
        is(length write_to('/lua')->{body}, 800_000, 'with the whole response');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();

# A client with little room, so that nginx cannot get rid of its frames.
sub slow_reader ($port) {
    socket(my $sock, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    setsockopt($sock, SOL_SOCKET, SO_RCVBUF, 2048);
    connect($sock, pack_sockaddr_in($port, INADDR_LOOPBACK)) or die "connect: $!\n";
    my $h2 = Http2->on(bless $sock, 'IO::Socket::INET');
    $h2->frame(8, 0, 0, pack 'N', 100_000_000);
    return $h2;
}

sub read_some ($h2, $bytes, $most) {
    sysread $h2->{sock}, $$bytes, $most, length $$bytes
        if IO::Select->new($h2->{sock})->can_read(0.1);
}

sub times_gone { return scalar lines_in($ng, qr/client disconnected, the request continues/) }

sub frames ($bytes) {
    my @frames;
    for (my $at = 0; $at + 9 <= length $$bytes;) {
        my ($high, $low, $type, undef, $id) = unpack 'CnCCN', substr $$bytes, $at, 9;
        my $length = $high << 16 | $low;
        return @frames, "bad frame, type $type, length $length"
            if $type > 9 || $length > 16384;
        push @frames, ($type == 1 ? 'headers' : "type$type") . " $id";
        $at += 9 + $length;
    }
    return @frames;
}
