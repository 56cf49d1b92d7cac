# A body that another module has read before the gate is fingerprinted all the
# same, from memory or from its file.

use v5.36;

use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $lua = lua_modules() or plan(skip_all => 'without Lua');

my $ng = Nginx->start(main => $lua, http => <<'CONF');
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    rewrite_by_lua_block { ngx.req.read_body() }
    location /memory { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /file {
        client_body_in_file_only clean;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /raw {
        idempotency_fingerprint raw;
        client_body_buffer_size 1k;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
retry_against($ng);

# [type, body, the same in other words, another]
my $long = 'x' x 5_000;
my @BODIES = (
    ['text/plain', "text $long", "text $long", "text $long."],
    ['application/json', qq({"a":1,"b":"$long"}), qq({"b":"$long", "a":1.0}), qq({"a":2,"b":"$long"})],
    ['application/x-www-form-urlencoded', "a=1&b=$long", "b=$long&a=%31", "a=2&b=$long"],
);

for my $uri ('/memory', '/file', '/raw') {
    for my $case (@BODIES) {
        my ($type, $body, $same, $other) = @$case;
        $same = $body if $uri eq '/raw';
        for my $chunked (0, 1) {
            claim "$uri, $type" . ($chunked ? ', chunked' : '') => sub {
                my %as = (chunked => $chunked, headers => ['Content-Type' => $type]);
                my $first = write_to($uri, %as, body => $body, do => 'echo=1&status=201');
                ok($first->{body} eq $body, 'the application gets it whole');
                is_replay(write_to($uri, %as, body => $same), $first);
                is_refused(write_to($uri, %as, body => $other), 'key_reused', 422);
                is(executions(), 1, 'executions');
            };
        }
    }
}

for my $size (0, 10, 5_000, 100_000) {
    claim "over HTTP/2, $size bytes" => sub {
        my $h2 = Http2->new($ng->port(2));
        my @ask = ('POST', '/raw', body => 'x' x $size, headers => [
            'idempotency-key' => claim_key(), 'x-behaviour' => 'echo=1&status=201']);
        my ($first, $again) = map { $h2->request(@ask) } 1 .. 2;
        is($first->{status}, 201, 'it runs');
        is(length $first->{body}, $size, 'the application gets it whole');
        is($again->{headers}{'idempotent-replayed'}[0], 'true', 'the retry is a replay');
        is(executions(), 1, 'executions');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
