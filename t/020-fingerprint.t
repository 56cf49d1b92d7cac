# What makes two requests with one key the same request, however their bodies
# are sent and read.

use v5.36;

use Digest::SHA qw(sha1_hex);
use IO::Select;
use Test::More;
use Time::HiRes qw(sleep);
use Http2;
use Keyed;
use Ledger;
use Nginx;

# The path belongs to the fingerprint, so each way to read a body has a port
# of its own, and all share their records.
my @SERVERS = (
    [plain => ''],
    [file => 'client_body_in_file_only clean;'],
    [small => 'client_body_buffer_size 1k;'],
    [single => 'client_body_in_single_buffer on;'],
    [unbuffered => 'proxy_request_buffering off; proxy_http_version 1.1;'],
    [mirror => 'mirror /mirror;'],
    ['mirror from file' => 'mirror /mirror; client_body_buffer_size 1k;'],
    ['mirror from single buffer' => 'mirror /mirror; client_body_in_single_buffer on;'],
    [http2 => ''],
    ['http2 with mirror from file' => 'mirror /mirror; client_body_buffer_size 1k;'],
);
our %port_of = map { $SERVERS[$_][0] => $_ + 1 } 0 .. $#SERVERS;

my $http = <<'CONF' . join '', map { server(@$_) } @SERVERS;
log_format told escape=none
    '$http_x_id $status $idempotency_status $idempotency_fingerprint';
access_log %%DIR%%/access.log told;
client_max_body_size 10m;
idempotency_scope none;
idempotency_scope_route off;
idempotency on;
CONF

sub server ($name, $directives) {
    my $h2 = $name =~ /^http2/ ? ' http2' : '';
    return <<CONF;
server {
    listen 127.0.0.1:%%PORT$port_of{$name}%%$h2;
    location / {
        $directives
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /raw/ {
        idempotency_fingerprint raw;
        $directives
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /off/ {
        idempotency_fingerprint off;
        $directives
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /limited/ {
        client_max_body_size 10;
        client_body_timeout 300ms;
        $directives
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /big-response/ {
        idempotency_max_response 1k;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /mirror {
        internal;
        access_log off;
        idempotency off;
        proxy_method GET;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
}

our $ng = Nginx->start(http => $http);

my $keys = 0;
my $id = 0;

sub fresh { return 'k' . ++$keys }

sub port ($server = 'plain') { return $ng->port($port_of{$server}) }

sub headers ($key, @more) { return ['Idempotency-Key' => $key, 'X-Id' => ++$id, @more] }

sub ask ($key, $uri, $body, %opt) {
    return said(request(port($opt{server} // 'plain'), $opt{method} // 'POST', $uri,
        headers => headers($key, @{ $opt{headers} // [] }), body => $body), number => 0);
}

sub logged ($id) {
    my $line = qr/^$id (\d+) (\S+) (\w*)$/m;
    wait_until(sub { $ng->access_log =~ $line }, 5, "the log line of request $id");
    return $ng->access_log =~ $line;
}

# ---- what counts ----------------------------------------------------------

# A first request, then another with the same key: [uri, body, more options].
sub second ($wanted, $claim, $one, $two) {
    ledger_reset();
    my $key = fresh();
    is_deeply([ask($key, @$one), ask($key, @$two), ask($key, @$one)],
        [201, $wanted, '201 replayed'], $claim);
    is(ledger_count(), 1, "$claim: one execution");
}

my $REUSED = '422 key_reused';

for my $place ('', '/raw') {
    my $mode = $place ? 'raw' : 'auto';
    second('201 replayed', "$mode: the same", ["$place/a?b=1", 'body'], ["$place/a?b=1", 'body']);
    second($REUSED, "$mode: another body", ["$place/a", 'body'], ["$place/a", 'Body']);
    second($REUSED, "$mode: a longer body", ["$place/a", 'body'], ["$place/a", "body\n"]);
    second($REUSED, "$mode: no body", ["$place/a", 'body'], ["$place/a", undef]);
    second($REUSED, "$mode: another method",
        ["$place/a", 'body'], ["$place/a", 'body', method => 'PUT']);
    second($REUSED, "$mode: another path", ["$place/a", 'body'], ["$place/b", 'body']);
    second($REUSED, "$mode: a path with other escapes",
        ["$place/a/b", 'body'], ["$place/a%2Fb", 'body']);
    second($REUSED, "$mode: other arguments", ["$place/a?b=1", 'body'], ["$place/a?b=2", 'body']);
    second($REUSED, "$mode: arguments in another order",
        ["$place/a?b=1&c=2", 'body'], ["$place/a?c=2&b=1", 'body']);
    second($REUSED, "$mode: no arguments", ["$place/a?b=1", 'body'], ["$place/a", 'body']);
    second($REUSED, "$mode: arguments that run into the body",
        ["$place/a?b", 'cd'], ["$place/a?bc", 'd']);
    second('201 replayed', "$mode: other headers", ["$place/a", 'body', headers => ['User-Agent' => 'a']],
        ["$place/a", 'body', headers => ['User-Agent' => 'b', 'X-Trace' => 'c']]);
    second('201 replayed', "$mode: an empty body is no body", ["$place/a", ''], ["$place/a", undef]);
}

my @json = (headers => ['Content-Type' => 'application/json']);
second($REUSED, 'raw: JSON counts byte by byte',
    ['/raw/a', '{"a":1}', @json], ['/raw/a', '{ "a":1}', @json]);
second('201 replayed', 'raw: the content type does not count',
    ['/raw/a', '{"a":1}', @json], ['/raw/a', '{"a":1}']);

second('201 replayed', 'off: another body', ['/off/a', 'body'], ['/off/a', 'other']);
second('201 replayed', 'off: no body', ['/off/a', 'body'], ['/off/a', undef]);
second($REUSED, 'off: another method', ['/off/a', 'b'], ['/off/a', 'b', method => 'PATCH']);
second($REUSED, 'off: another path', ['/off/a', 'b'], ['/off/b', 'b']);
second($REUSED, 'off: other arguments', ['/off/a?b=1', 'b'], ['/off/a?b=2', 'b']);
second('201 replayed', 'off: a body read before by mirror',
    ['/off/a', 'body'], ['/off/a', 'other', server => 'mirror']);

{
    my @lines = map { ask(fresh(), '/v', $_); [logged($id)] } 'a', 'a', 'b';
    like($lines[0][2], qr/^[0-9a-f]{32,}$/, '$idempotency_fingerprint is hex');
    is($lines[1][2], $lines[0][2], 'and does not depend on the key');
    isnt($lines[2][2], $lines[0][2], 'but on the body');
}

# ---- every way to send and to read a body ---------------------------------

sub send_length ($port, $headers, $body) {
    return request($port, 'POST', '/x', headers => $headers, body => $body);
}

sub send_chunks ($sizes) {
    return sub ($port, $headers, $body) {
        my ($text, $at, $n) = ('', 0, 0);
        while ($at < length $body) {
            my $part = substr $body, $at, $sizes->[$n++ % @$sizes];
            $at += length $part;
            $text .= sprintf "%x;ext=1\r\n%s\r\n", length $part, $part;
        }
        return request($port, 'POST', '/x', body => "${text}0\r\n\r\n",
            headers => [@$headers, 'Transfer-Encoding' => 'chunked']);
    };
}

# The body follows when the server has asked for it.
sub send_expect ($port, $headers, $body) {
    my $conn = send_request($port, 'POST', '/x', headers => [@$headers,
        Expect => '100-continue', 'Content-Length' => length $body]);
    IO::Select->new($conn->sock)->can_read(10);
    $conn->write($body);
    my $got = $conn->response;
    $conn->close;
    $got->{status} .= ' without 100' if !$got->{headers}{'idempotent-replayed'}
        && $got->{status} == 201 && "@{ $got->{interim} }" ne '100';
    return $got;
}

sub send_slowly ($port, $headers, $body) {
    my $conn = send_request($port, 'POST', '/x',
        headers => [@$headers, 'Content-Length' => length $body]);
    for my $byte (split //, $body) {
        $conn->write($byte);
        sleep 0.002;
    }
    my $got = $conn->response;
    $conn->close;
    return $got;
}

sub send_http2 ($port, $headers, $body) {
    my $h2 = Http2->new($port);
    my $got = $h2->request('POST', '/x', headers => $headers, body => $body);
    $h2->close;
    return $got;
}

sub send_frames ($port, $headers, $body) {
    my $h2 = Http2->new($port);
    my $stream = $h2->send('POST', '/x', headers => $headers, end => 0);
    $h2->data($stream, $_, 0) for unpack '(a1000)*', $body;
    $h2->data($stream, '', 1);
    my $got = $h2->response($stream);
    $h2->close;
    return $got;
}

my @HTTP1 = (
    ['Content-Length' => \&send_length], ['one chunk' => send_chunks([1 << 30])],
    ['many chunks' => send_chunks([1, 700, 33, 4096])], ['100-continue' => \&send_expect],
);
my @HTTP2 = (['one go' => \&send_http2], ['many frames' => \&send_frames]);

# The upstream proves that the way gave it these bytes, the plain server that
# their fingerprint is the usual one, and changed bytes that each one counts.
sub check_way ($server, $how, $send, $size) {
    ledger_reset();
    my $body = substr('0123456789abcdef' x ($size / 16 + 1), 0, $size);
    my $key = fresh();
    my @got = said($send->(port($server), headers($key), $body), number => 0);
    my ($line) = ledger_lines();
    push @got, $line =~ /body=(\w+) length=(\d+)/;
    push @got, said(send_length(port(), headers($key), $body), number => 0);
    my @wanted = (201, sha1_hex($body), $size, '201 replayed');
    if ($size) {
        for my $at (0, $size - 1) {
            my $changed = $body;
            substr($changed, $at, 1) = '!';
            push @got, said($send->(port($server), headers($key), $changed), number => 0);
            push @wanted, $REUSED;
        }
    }
    push @got, ledger_count();
    push @wanted, 1;
    is_deeply(\@got, \@wanted, "$server, $how, $size bytes");
}

for my $server (map { $_->[0] } @SERVERS) {
    for my $way ($server =~ /^http2/ ? @HTTP2 : @HTTP1) {
        # The largest are hashed in turns where another has read them before.
        check_way($server, @$way, $_) for 0, 100, 100_000,
            $server =~ /file/ && $way->[0] =~ /Length|one go/ ? 3_500_001 : ();
    }
}
check_way($_, 'byte by byte', \&send_slowly, 50) for 'plain', 'single', 'mirror';

# Between the turns of a large body others get theirs, and all come to an end.
{
    ledger_reset();
    my $key = fresh();
    my $body = 'large' x 1_000_000;
    my @got = parallel(4, sub ($n) {
        (port('mirror from file'), 'POST', '/turns',
            headers => headers($n % 2 ? $key : fresh()), body => $n % 2 ? $body : $body . $n);
    });
    is_deeply([map { $got[$_]{status} } 0, 2], [201, 201], 'large bodies at once, each its own');
    is(scalar(grep { $_->{status} !~ /^(?:201|409)$/ } @got[1, 3]), 0,
        'large bodies at once, twice the same');
    is(ledger_count(), 3, 'large bodies at once: three executions');
}

# A client that leaves while its body is hashed has claimed nothing, or runs
# to its end: the key is not lost either way.
{
    ledger_reset();
    my $key = fresh();
    my $body = 'leave' x 1_000_000;
    my $own = $id + 1;
    my $conn = send_request(port('mirror from file'), 'POST', '/leave', headers => headers($key),
        body => $body);
    $conn->reset;
    logged($own);
    like(ask($key, '/leave', $body), qr/^(?:201|replay)$/, 'a client that leaves with a large body');
    is(ledger_count(), 1, 'a client that leaves with a large body: one execution');
}

{
    ledger_reset();
    my $key = fresh();
    my $body = 'leave' x 1_000_000;
    my $own = $id + 1;
    my $h2 = Http2->new(port('http2 with mirror from file'));
    $h2->rst($h2->send('POST', '/leave', headers => headers($key), body => $body));
    logged($own);
    like(ask($key, '/leave', $body), qr/^(?:201|replay)$/, 'a stream that is reset with a large body');
    is(ledger_count(), 1, 'a stream that is reset with a large body: one execution');
    $h2->close;
}

SKIP: {
    my @lua = split ' ', $ENV{TEST_NGINX_LUA_MODULES} // '';
    skip 'lua is not there', 1 if !@lua;
    local $ng = Nginx->start(main => join('', map {"load_module $_;\n"} @lua), http => <<'CONF');
client_max_body_size 10m;
idempotency_scope none;
idempotency_scope_route off;
idempotency on;
server {
    listen 127.0.0.1:%%PORT%%;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    client_body_buffer_size 1k;
    location / {
        access_by_lua_block { ngx.req.read_body() }
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
    local $port_of{lua} = 2;
    check_way('lua', @{ $HTTP1[0] }, $_) for 0, 100, 3_500_001;
    check_way('lua', @{ $HTTP1[2] }, $_) for 0, 100, 100_000;
    ok($ng->stop, 'nginx with lua leaves by itself');
    $ng->check_logs;
}

# ---- bodies that are never there ------------------------------------------

# The key is free afterwards, for whatever request.
sub stays_free ($key, $claim) {
    is(ledger_count(), 0, "$claim: nothing is executed");
    is(ask($key, '/limited/free', 'other'), 201, "$claim: the key is free");
    is(ledger_count(), 1, "$claim: one execution");
}

for my $server ('plain', 'single', 'unbuffered', 'mirror') {
    for my $chunked (0, 1) {
        ledger_reset();
        my $key = fresh();
        my $claim = "$server, too large" . ($chunked ? ', chunked' : '');
        my $got = request(port($server), 'POST', '/limited/free', headers => headers($key),
            body => 'x' x 11, chunked => $chunked);
        is($got->{status}, 413, $claim);
        stays_free($key, $claim);
    }

    ledger_reset();
    my $key = fresh();
    my $half = send_request(port($server), 'POST', '/limited/free',
        headers => headers($key, 'Content-Length' => 10), body => 'half');
    $half->close;
    like((logged($id))[0], qr/^(?:400|499)$/, "$server, half sent: the client leaves");
    stays_free($key, "$server, half sent");

    ledger_reset();
    $key = fresh();
    is(request(port($server), 'POST', '/limited/free',
        headers => headers($key, 'Content-Length' => 10), body => 'half')->{status} // 408,
        408, "$server, half sent: nginx waits no longer");
    is((logged($id))[0], 408, "$server, half sent: and logs it");
    stays_free($key, "$server, timed out");

    ledger_reset();
    $key = fresh();
    is(request(port($server), 'POST', '/limited/free', body => "4\r\nhalf\r\nnonsense\r\n",
        headers => headers($key, 'Transfer-Encoding' => 'chunked'))->{status}, 400,
        "$server, malformed chunks");
    stays_free($key, "$server, malformed chunks");
}

{
    ledger_reset();
    my $key = fresh();
    my $h2 = Http2->new(port('http2'));
    my $stream = $h2->send('POST', '/limited/free', headers => headers($key), end => 0);
    $h2->data($stream, 'half', 0);
    $h2->rst($stream);
    logged($id);
    stays_free($key, 'http2, half sent');

    ledger_reset();
    $key = fresh();
    is($h2->request('POST', '/limited/free', headers => headers($key), body => 'x' x 11)
        ->{status}, 413, 'http2, too large');
    stays_free($key, 'http2, too large');
    $h2->close;
}

# What is half sent has claimed nothing yet.
{
    ledger_reset();
    my $key = fresh();
    my $half = send_request(port(), 'POST', '/half', headers => headers($key, 'Content-Length' => 10),
        body => 'first');
    is(ask($key, '/half', 'first half'), 201, 'a key is claimed by the first whole request');
    $half->write(' half');
    is(said($half->response, number => 0), '201 replayed', 'and replayed to the one that started before');
    is(ledger_count(), 1, 'once executed');
}

# ---- before the state -----------------------------------------------------

sub other_body ($uri, $wanted, $claim, %first) {
    ledger_reset();
    my $key = fresh();
    ask($key, $uri, 'body', headers => ['X-Behaviour' => $first{do}]);
    is(ask($key, $uri, 'other'), $wanted, $claim);
    is(ask($key, $uri, 'body'), $first{then}, "$claim: with the first body");
}

other_body('/s', $REUSED, 'reused, completed', do => 'status=200', then => '200 replayed');
other_body('/s', $REUSED, 'reused, unknown', do => 'die=before', then => '409 outcome_unknown');
other_body('/big-response/s', $REUSED, 'reused, not kept', do => 'size=2000',
    then => '409 response_not_kept');
other_body('/s', 201, 'not reused, released', do => 'status=400', then => $REUSED);

{
    ledger_reset();
    my $key = fresh();
    my $gate = Keyed::Gate->new;
    my $first = send_post(port(), $key, uri => '/s', do => $gate->closed);
    ok(wait_until(sub { ledger_count() == 1 }), 'one request is pending');
    is(ask($key, '/s', 'other'), $REUSED, 'reused, pending');
    is(ask($key, '/s', 'body'), '409 in_progress', 'not reused, pending');
    $gate->open;
    is(said($first->response, number => 0), 201, 'the first goes on');
    is(ledger_count(), 1, 'one execution');
}

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;
done_testing();
