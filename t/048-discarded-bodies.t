#!/usr/bin/env perl

# A body that is not read, or cannot be: what is left of it on the connection is
# never taken for the next request.

use v5.36;

use Test::More;

use Http2;
use Keyed;
use Ledger;
use Nginx;

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

my $ng = Nginx->start(http => <<"CONF");
    idempotency_scope none;
    lingering_timeout 300ms;
    server {
        listen 127.0.0.1:%%PORT%%;
        listen 127.0.0.1:%%PORT2%% http2;
        location / { idempotency on; $pass }
        location /required { idempotency on; idempotency_required on; $pass }
        location /strict { idempotency on; idempotency_strict_methods on; $pass }
        location /rpc { idempotency on; idempotency_required on; idempotency_jsonrpc on; $pass }
        location /worded {
            idempotency on;
            idempotency_required on;
            idempotency_error_body any text/plain 'no key';
            $pass
        }
        location /paged {
            idempotency on;
            idempotency_required on;
            error_page 400 /page;
            $pass
        }
        location /page { return 200 page; }
        location = /admin { idempotency_admin; }
        location = /status { idempotency_status json; }
        location = /page-of-status { idempotency_status html; }
        location = /second { return 200 "second request\\n"; }
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        location / { stub_status; access_log off; }
    }
CONF

my $second = "GET /second HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
my @json = ('Content-Type' => 'application/json');
my @long = ('Idempotency-Key' => 'k' x 300);

# Where, how, and the status with a sound body.
my @PLACES = (
    ['an act without its header', 'POST', '/admin', [], 403],
    ['an act of another site', 'POST', '/admin', ['X-Idempotency-Admin' => 1, Origin => 'null'], 403],
    ['an act', 'POST', '/admin', ['X-Idempotency-Admin' => 1], 400],
    ['another method for administrators', 'PUT', '/admin', [], 405],
    ['a question with a body', 'GET', '/admin?unknown', [], 200],
    ['a status with a body', 'GET', '/status', [], 200],
    ['a status page with a body', 'GET', '/page-of-status', [], 200],
    ['another method for the status', 'POST', '/status', [], 405],
    ['a key that is too long', 'POST', '/x', \@long, 400],
    ['a key that is missing', 'POST', '/required', [], 400],
    ['a key with another method', 'OPTIONS', '/strict', ['Idempotency-Key' => 'k'], 400],
    ['a JSON-RPC call without a key', 'POST', '/rpc', \@json, 400],
    ['a refusal in other words', 'POST', '/worded', [], 400],
    ['a refusal with a page', 'POST', '/paged', [], 400],
    ['a run', 'POST', '/x', ['Idempotency-Key' => 'run'], 201],
    ['a replay', 'POST', '/x', ['Idempotency-Key' => 'run'], 201],
);

my %BROKEN = (
    'no chunk' => "ZZ\r\n",
    'a chunk that is too large' => "fffffffffffffffff\r\n",
    'a chunk, then none' => "2\r\n{}\r\nZZ\r\n",
    'no end of a chunk' => "2\r\n{}ZZ\r\n",
);

sub head_of ($method, $uri, $headers) {
    return Http1::request_bytes($method, $uri, body => '',
        headers => [@$headers, Connection => 'keep-alive', 'Transfer-Encoding' => 'chunked']);
}

# All that comes until nginx closes.
sub all_of ($conn) {
    my $all = '';
    my $select = IO::Select->new($conn->sock);
    while ($select->can_read(10)) {
        sysread($conn->sock, $all, 1 << 16, length $all) or return $all;
    }
    return "$all (not closed)";
}

sub statuses ($all) { return join ' ', $all =~ m{HTTP/1\.1 (\d+)}g }

for my $place (@PLACES) {
    my ($name, $method, $uri, $headers, $status) = @$place;
    claim "$name: a broken body is not the next request" => sub {
        for my $how (sort keys %BROKEN) {
            my $conn = Http1->new($ng->port);
            $conn->write(head_of($method, $uri, $headers) . $BROKEN{$how} . $second);
            my $all = all_of($conn);
            unlike($all, qr/second request|not closed/, "$how: the connection is closed");
            like(statuses($all), qr/^[45]\d\d$/, '... after one answer');
            $conn->close;
        }
    };

    claim "$name: nor is one that breaks later" => sub {
        my $conn = Http1->new($ng->port);
        $conn->write(head_of($method, $uri, $headers) . "2\r\n{}\r\n");
        # The answer may come before the rest, or wait for it.
        IO::Select->new($conn->sock)->can_read(0.2);
        $conn->write("ZZ\r\n$second");
        my $all = all_of($conn);
        unlike($all, qr/second request|not closed/, 'the connection is closed');
        cmp_ok(scalar(split ' ', statuses($all)), '<=', 1, 'after one answer at most');
        $conn->close;
    };

    claim "$name: the request after a sound body is answered" => sub {
        for my $body ("2\r\n{}\r\n0\r\n\r\n", "0\r\n\r\n") {
            my $conn = Http1->new($ng->port);
            $conn->write(head_of($method, $uri, $headers) . $body . $second);
            my $all = all_of($conn);
            is(statuses($all), "$status 200", 'both are answered') or diag($all);
            like($all, qr/second request/, 'each in its turn');
            $conn->close;
        }
    # nginx itself closes after an error page for 400.
    } if $name !~ /^a run|^a replay|with a page/;

    claim "$name: HTTP/2" => sub {
        my $h2 = Http2->new($ng->port(2));
        my $id = $h2->send($method, $uri, headers => $headers, end => 0);
        $h2->data($id, $second, 0);
        my $other = $h2->request('GET', '/second');
        is("$other->{status} $other->{body}", "200 second request\n", 'another stream is answered');
        $h2->data($id, $second, 1);
        unlike($h2->response($id)->{body} // '', qr/second request/, 'the body is none');
        $h2->close;
    };
}

is(ledger_count(uri => '/second') + 0, 0, 'nothing else came to the application');
is(ledger_count(key => 'run') + 0, 1, 'the run was executed once');

finish($ng);
done_testing();
