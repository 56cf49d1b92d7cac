# proxy_http_version 2, where nginx has it: peers that are asked over HTTP/2.
# Such a response needs no length and no chunks to be whole.

use v5.36;

use Test::More;
use BrokenH2;
use Keyed;
use Ledger;
use Nginx;

my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
plan(skip_all => 'this nginx asks no peer over HTTP/2')
    if !nginx_has_reached('1.29.4') || `$nginx -V 2>&1` !~ /http_v2_module/;

my @ENDS = qw(goaway reset nonsense close refused short);
my %HOW = (buffered => '', unbuffered => 'proxy_buffering off;',
    open => 'proxy_buffering off; idempotency_hold off;');
my $lua = lua_modules();
$HOW{lengthless} = "$HOW{unbuffered} header_filter_by_lua_block { ngx.header.content_length = nil }"
    if $lua;
my $broken = '';
for my $end (@ENDS) {
    my $port = BrokenH2->start($end);
    $broken .= "location /$_/$end { $HOW{$_} proxy_pass http://127.0.0.1:$port; }\n" for keys %HOW;
}
my $refused = closed_port();

my $ng = Nginx->start(main => $lua, http => <<"CONF");
proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;
upstream h2 { server 127.0.0.1:%%PORT2%%; keepalive 4; }
upstream two { server 127.0.0.1:%%PORT2%%; server 127.0.0.1:%%PORT3%%; keepalive 4; }

server {
    listen 127.0.0.1:%%PORT%% sndbuf=16k;
    idempotency on;
    idempotency_scope none;
    lingering_close off;
    proxy_http_version 2;
    proxy_next_upstream error timeout http_500 non_idempotent;

    location / { proxy_pass http://h2; }
    location /unbuffered { proxy_buffering off; proxy_pass http://h2; }
    location /open { idempotency_hold off; proxy_buffering off; proxy_pass http://h2; }
    location /two { proxy_pass http://two; }
    location /absent { proxy_pass http://127.0.0.1:$refused; }
    location /trailers { proxy_pass_trailers on; proxy_pass http://h2; }
    location /trailers/open {
        proxy_pass_trailers on;
        idempotency_hold off;
        proxy_buffering off;
        proxy_pass http://h2;
    }
    location /cache {
        proxy_cache cache;
        proxy_cache_methods POST;
        proxy_cache_key \$uri;
        proxy_cache_valid any 1m;
        idempotency_unknown_outcome release;
        proxy_pass http://h2;
    }
    $broken
}

# The application, over HTTP/2. A connection ends after its second request.
server {
    listen 127.0.0.1:%%PORT2%%;
    listen 127.0.0.1:%%PORT3%%;
    http2 on;
    keepalive_requests 2;
    location / {
        proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /trailers {
        add_trailer X-After after always;
        # These two are the module's own.
        add_trailer X-Accel-Idempotency release always;
        add_trailer Idempotent-Replayed true always;
        proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
retry_against($ng);

for my $uri ('/', '/unbuffered', '/open') {
    for my $do ('', 'chunked=1&size=20&type=text/plain',
        'chunked=1&size=200000&type=application/json', 'status=204') {
        claim "$uri: an answer ($do) is replayed" => sub {
            ends($uri, do => $do, first => $do =~ /204/ ? 204 : 201, then => 'replayed');
        };
    }
}
unlike($ng->error_log, qr/ended with the connection/,
    'nobody is told to use another version of HTTP');

for my $uri ('/trailers', '/trailers/open') {
    claim "$uri: trailers are part of the answer" => sub {
        my ($first, $again) = map { write_to($uri, do => 'chunked=1&size=20') } 1 .. 2;
        is_deeply($first->{trailers}, { 'x-after' => ['after'] }, 'the client gets them');
        is_replay($again, $first);
        is_deeply($again->{trailers}, { 'x-after' => ['after'] }, 'and so does a retry');
        is(executions(), 1, 'executions');
    };
}

for my $case ([600_000, qr/^201 #\d+ replayed$/], [6_000_000, qr/^409 response_not_kept$/]) {
    my ($size, $then) = @$case;
    claim "the client leaves in the middle of $size bytes that nginx has in a file" => sub {
        my $conn = start_write("/cache/$size", do => "chunked=1&size=$size&type=text/plain");
        select undef, undef, undef, 0.3;
        $conn->close;
        my $said = wait_said(qr/^(?!409 in_progress)/, sub { write_to("/cache/$size") }, 5);
        like($said, $then, 'a retry is told');
        is(executions(), 1, 'executions');
    };
}

claim 'a client that leaves does not end the run' => sub {
    my $conn = start_write('/', do => 'sleep=0.5');
    ok(wait_until(sub { executions() == 1 }, 5, 'the run'), 'it runs');
    $conn->close;
    my $said = wait_said(qr/^(?!409 in_progress)/, sub { write_to('/') }, 5);
    like($said, qr/^201 #\d+ replayed$/, 'a retry is told');
    is(executions(), 1, 'executions');
};

for my $end (@ENDS) {
    for my $how (grep { $_ ne 'open' } sort keys %HOW) {
        claim "a peer ends its $how answer by $end" => sub {
            my $first = ends("/$how/$end", first => 502, then => 'unknown', executed => 0);
            ok($first->{complete}, 'the answer of 502 is whole');
        };
    }

    claim "a peer ends an answer that is passed on by $end" => sub {
        my $first = write_to("/open/$end");
        ok(($first->{status} // 0) == 502 || !$first->{complete}, 'it is not whole');
        is_refused(write_to("/open/$end"), 'outcome_unknown');
    };
}

claim 'a peer that is not there is not asked' => sub {
    my $first = write_to('/absent');
    is($first->{status}, 502, 'the client gets 502');
    is(write_to('/absent')->{status}, 502, 'and the retry asks again');
};

for my $do ('die=before', 'status=500') {
    claim "no second peer is asked after $do" => sub {
        write_to('/two', do => $do);
        is(executions(), 1, 'executions');
    };
}

claim 'requests over kept connections run once each' => sub {
    my $key = claim_key();
    my @said = map { said(write_to('/two', key => "$key-$_")) } 1 .. 40;
    is_deeply([grep { !/^201 #/ } @said], [], 'all are run');
    is_deeply([grep { executions("$key-$_") != 1 } 1 .. 40], [], 'once each');
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
