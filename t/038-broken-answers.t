# An upstream that breaks its protocol in the middle of an answer: what was
# held is not shown, the client gets 502, and the outcome is unknown.

use v5.36;

use Test::More;
use BrokenH2;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my @ENDS = qw(goaway reset nonsense);
my $grpc = join '', map {
    "location /grpc/$_ { grpc_pass grpc://127.0.0.1:" . BrokenH2->start($_) . "; }\n"
} @ENDS;

my $ng = Nginx->start(http => <<"CONF");
upstream app { server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    proxy_http_version 1.1;
    proxy_set_header Connection '';

    location /buffered { proxy_pass http://app; }
    location /unbuffered { proxy_buffering off; proxy_pass http://app; }
    location /page {
        error_page 502 /page.txt;
        proxy_pass http://app;
    }
    location /open { idempotency_hold off; proxy_buffering off; proxy_pass http://app; }
    $grpc
    location = /page.txt { root %%DIR%%; }
}
CONF
retry_against($ng);

write_file($ng->path('page.txt'), "the page\n");

for my $uri ('/buffered', '/unbuffered', '/page') {
    for my $size (10, 40_000) {
        claim "$uri: no chunk after $size bytes of an answer" => sub {
            my $first = ends($uri, do => "chunked=1&size=$size&bad=chunk",
                first => 502, then => 'unknown');
            ok($first->{complete}, 'the answer of 502 is whole');
            unlike($first->{body}, qr/^[0-9a-f]{5}/, 'nothing of the other is shown');
        };

        claim "$uri over HTTP/2: no chunk after $size bytes" => sub {
            my $h2 = Http2->new($ng->port(2));
            my $first = $h2->request('POST', $uri, body => $Keyed::BODY, headers => [
                'idempotency-key' => claim_key(),
                'x-behaviour' => "chunked=1&size=$size&bad=chunk"]);
            is($first->{status}, 502, 'the client gets 502');
            is(executions(), 1, 'executions');
        };
    }
}

for my $uri ('/buffered', '/unbuffered', '/page', '/open') {
    claim "$uri: what comes back is no HTTP" => sub {
        my $first = ends($uri, do => 'bad=1', first => 502, then => 'unknown');
        ok($first->{complete}, 'the answer of 502 is whole');
        unlike($first->{body}, qr/NONSENSE/, 'nothing of the other is shown');
        like($first->{body}, qr/the page/, 'an error page is sent') if $uri eq '/page';
    };

    claim "$uri over HTTP/2: what comes back is no HTTP" => sub {
        my $h2 = Http2->new($ng->port(2));
        my $first = $h2->request('POST', $uri, body => $Keyed::BODY, headers => [
            'idempotency-key' => claim_key(), 'x-behaviour' => 'bad=1']);
        is($first->{status}, 502, 'the client gets 502');
        is(executions(), 1, 'executions');
    };
}

claim 'what is passed on breaks off' => sub {
    my $first = write_to('/open', do => 'chunked=1&size=40000&pieces=4&gap=0.1&bad=chunk');
    is($first->{status}, 201, 'the status went out');
    ok(!$first->{complete}, 'the answer is not whole');
    is_refused(write_to('/open'), 'outcome_unknown');
    is(executions(), 1, 'executions');
};

for my $end (@ENDS) {
    for my $type ('application/grpc', 'text/plain') {
        claim "a gRPC server ends an answer of $type by $end" => sub {
            my $h2 = Http2->new($ng->port(2));
            my @ask = ('POST', "/grpc/$end", body => 'call', headers => [
                'content-type' => $type, te => 'trailers',
                'idempotency-key' => claim_key()]);
            my $first = $h2->request(@ask);
            is($first->{status}, 502, 'the client gets 502');
            my $second = $h2->request(@ask);
            my $told = $type eq 'text/plain' ? $second->{body}
                : join ' ', %{ $second->{headers} }, map { ref ? @$_ : $_ } values %{ $second->{headers} };
            like($told, qr/outcome/, 'the outcome is unknown');
            is($second->{status}, $type eq 'text/plain' ? 409 : 200, 'and it is not run again');
        };
    }
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
