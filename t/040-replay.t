# A replay is the first answer again, without the application: byte by byte,
# whatever the retry asks for and however it is sent.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use FindBin;
use lib "$FindBin::Bin/lib";

use Compress::Zlib ();
use Test::More;
use Time::HiRes ();
use Http1;
use Http2;
use Ledger;
use Nginx;
use Keyed;

my $params = join "\n", map {
    my $protocol = $_;
    map {"    ${protocol}_param $_;"} 'REQUEST_METHOD $request_method',
        'REQUEST_URI $request_uri', 'CONTENT_TYPE $content_type',
        'CONTENT_LENGTH $content_length';
} qw(fastcgi scgi uwsgi);

my $ng = Nginx->start(http => <<"CONF");
proxy_cache_path %%DIR%%/cache keys_zone=answers:1m;

server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;

    idempotency on;
    idempotency_scope none;
    idempotency_scope_route host method path;
    proxy_http_version 1.1;
$params

    location / { proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }

    location /ranges {
        proxy_force_ranges on;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /files/ { internal; root %%DIR%%; }
    location /gzip {
        gzip on;
        gzip_types application/json;
        gzip_min_length 1;
        gzip_http_version 1.0;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /sub {
        sub_filter_types application/json;
        sub_filter execution "the execution";
        add_header X-Added yes always;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /charset {
        charset utf-8;
        charset_types application/json;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /variables {
        idempotency_ttl 100s;
        add_header X-Status "\$idempotency_status" always;
        add_header X-Age "\$idempotency_age" always;
        add_header X-Expires "\$idempotency_expires" always;
        add_header X-Peers "\$upstream_addr" always;
        add_header X-Sent "\$status \$sent_http_content_type \$sent_http_location
            \$sent_http_x_execution \$sent_http_etag \$sent_http_last_modified
            \$sent_http_cache_control" always;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /cached {
        proxy_cache answers;
        proxy_cache_methods GET HEAD POST;
        proxy_cache_key \$uri;
        proxy_cache_valid any 1h;
        add_header X-Cache \$upstream_cache_status;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /cache-of-gets {
        proxy_cache answers;
        proxy_cache_key \$uri;
        proxy_cache_valid any 1h;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /stale {
        proxy_cache answers;
        proxy_cache_methods GET HEAD POST;
        proxy_cache_key \$uri;
        proxy_cache_valid any 1s;
        proxy_cache_use_stale error;
        add_header X-Cache \$upstream_cache_status;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }

    location /fastcgi { fastcgi_pass 127.0.0.1:\$TEST_NGINX_FASTCGI_PORT; }
    location /fastcgi/unbuffered {
        fastcgi_buffering off;
        fastcgi_pass 127.0.0.1:\$TEST_NGINX_FASTCGI_PORT;
    }
    location /fastcgi/kept {
        fastcgi_keep_conn on;
        fastcgi_pass 127.0.0.1:\$TEST_NGINX_FASTCGI_PORT;
    }
    location /fastcgi/passed-on {
        idempotency_hold off;
        fastcgi_pass 127.0.0.1:\$TEST_NGINX_FASTCGI_PORT;
    }
    location /scgi { scgi_pass 127.0.0.1:\$TEST_NGINX_SCGI_PORT; }
    location /uwsgi { uwsgi_pass 127.0.0.1:\$TEST_NGINX_UWSGI_PORT; }
}
CONF
retry_against($ng);

mkdir $ng->path('files');
open my $file, '>', $ng->path('files/doc.txt') or die "doc.txt: $!\n";
print {$file} 'whole';
close $file;

# All but what is the connection's own or says that it is a replay.
sub fields ($response) {
    my %fields = %{ $response->{headers} };
    delete @fields{qw(date connection keep-alive idempotent-replayed)};
    return \%fields;
}

sub is_same ($retry, $first) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok($first->{complete} && $retry->{complete}, 'both are whole');
    is_replay($retry, $first);
    is($retry->{reason}, $first->{reason}, 'the reason phrase is the first one');
    is_deeply(fields($retry), fields($first), 'the headers are the first ones');
}

sub twice ($uri, $do = undef, %retry) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $first = write_to($uri, do => $do);
    my $retry = write_to($uri, %retry);
    is_same($retry, $first);
    is(executions(), 1, 'executions');
    return ($first, $retry);
}

# ---- body and head --------------------------------------------------------

for my $size (0, 1, 100_000, (1 << 20) - 1, 1 << 20) {
    for my $framing ('', '&chunked=1') {
        claim "a body of $size bytes is replayed ($framing)" => sub {
            my ($first) = twice('/x', "size=$size$framing");
            is(length $first->{body}, $size, 'the size');
        };
    }
}

claim 'a binary body is replayed' => sub {
    my $bytes = join '', map {chr} 0 .. 255, reverse 0 .. 255;
    my $first = write_to('/x', do => 'echo=1&type=application/octet-stream',
        body => $bytes);
    ok($first->{body} eq $bytes, 'the first answer has it');
    is_same(write_to('/x', body => $bytes), $first);
    is(executions(), 1, 'executions');
};

for my $status (200, 202, 204, 206, 299, 301, 302, 303, 304, 308) {
    claim "a $status is replayed with its reason" => sub {
        my ($first) = twice('/x', "status=$status");
        is($first->{status}, $status, 'the status');
    };
}

claim 'a relative Location stays relative' => sub {
    my ($first, $retry) = twice('/x', 'status=303');
    like(header($retry, 'Location'), qr{^/orders/\d+$}, 'Location');
};

for my $case (
    ['a content type with charset', 'type=text/html;+charset=koi8-r'],
    ['an answer without content type', 'nocontenttype=1'],
    ['validators', 'lm=1'],
    ['Cache-Control', 'h=Cache-Control:no-store&h=Cache-Control:private'],
    ['Link', 'h=Link:</a>;rel=next&h=Link:</b>;rel=prev'],
    ['Expires', 'h=Expires:Thu,+01+Jan+2032+00:00:00+GMT'],
    ['Accept-Ranges', 'h=Accept-Ranges:bytes'],
    ['Content-Range', 'status=206&h=Content-Range:bytes+0-1/2&body=ab'],
    ['Refresh', 'h=Refresh:5'],
    ['Content-Language', 'h=Content-Language:de'],
    ['a header without value', 'h=X-Empty:'],
    ['an absolute Location', 'h=Location:http://other.example/x'],
    ['WWW-Authenticate', 'h=WWW-Authenticate:Basic'],
    ['a header with bytes above 127', 'h=X-High:%E4%F6%FC'],
) {
    my ($what, $do) = @$case;
    claim "$what: replayed as it was" => sub { twice('/x', $do) };
}

claim 'a charset that nginx adds is there once' => sub {
    my ($first) = twice('/charset');
    is(header($first, 'Content-Type'), 'application/json; charset=utf-8', 'type');
};

# ---- what a retry may ask for ---------------------------------------------

my @conditions = (
    ['If-None-Match', '*'],
    ['If-Modified-Since', 'Thu, 01 Jan 2032 00:00:00 GMT'],
    ['If-Match', '"other"'],
    ['If-Unmodified-Since', 'Thu, 01 Jan 1998 00:00:00 GMT'],
    ['Range', 'bytes=0-3'],
);

# A whole answer of the application, of the cache, and of a file that the
# application points to: nginx holds each to conditions in a way of its own.
my %answers = (
    '/ranges' => 'status=200&lm=1&body=whole',
    '/cached/conditional' => 'status=200&lm=1&body=whole',
    '/x' => 'status=200&h=X-Accel-Redirect:/files/doc.txt',
);

for my $condition (@conditions) {
    my ($name) = @$condition;

    claim "$name of the retry changes nothing" => sub {
        twice('/ranges', 'status=200&lm=1', headers => $condition);
    };

    for my $place (sort keys %answers) {
        claim "$name of the first request changes nothing ($place)" => sub {
            my $uri = $place . '/' . claim_key();
            my $first = write_to($uri, do => $answers{$place},
                headers => $condition);
            is($first->{status}, 200, 'the first client gets the whole answer');
            is($first->{body}, 'whole', 'with its body');
            my $retry = write_to($uri);
            is($retry->{status}, 200, 'a retry gets the whole answer');
            is($retry->{body}, 'whole', 'with its body');
            is(header($retry, 'Idempotent-Replayed'), 'true', 'it is a replay');
            is(executions(), 1, 'executions');
        };
    }
}

claim 'the ETag itself as If-None-Match changes nothing' => sub {
    my $first = write_to('/x', do => 'status=200&lm=1');
    my @match = (headers => ['If-None-Match' => header($first, 'ETag')]);
    is_same(write_to('/x', @match), $first);
    is(executions(), 1, 'executions');
};

# ---- filters --------------------------------------------------------------

my @gzip = (headers => ['Accept-Encoding' => 'gzip']);

claim 'gzip serves each client as it asks' => sub {
    my $first = write_to('/gzip', do => 'status=200&size=5000');
    is(header($first, 'Content-Encoding'), undef, 'the first is plain');
    my $retry = write_to('/gzip', @gzip);
    is(header($retry, 'Content-Encoding'), 'gzip', 'a retry may be compressed');
    ok(Compress::Zlib::memGunzip($retry->{body}) eq $first->{body},
        'it is the same body');
    is(header($retry, 'Idempotent-Replayed'), 'true', 'it is a replay');
    is_replay(write_to('/gzip'), $first);
    is(executions(), 1, 'executions');
};

claim 'a first answer that went out compressed is replayed plain' => sub {
    my $first = write_to('/gzip', do => 'status=200&size=5000', @gzip);
    is(header($first, 'Content-Encoding'), 'gzip', 'the first is compressed');
    my $retry = write_to('/gzip');
    is(header($retry, 'Content-Encoding'), undef, 'a retry is plain');
    ok(Compress::Zlib::memGunzip($first->{body}) eq $retry->{body},
        'it is the same body');
    is(executions(), 1, 'executions');
};

claim 'a body the application compressed is not compressed again' => sub {
    my $bytes = Compress::Zlib::memGzip('x' x 5000);
    my $first = write_to('/gzip', body => $bytes, headers => $gzip[1],
        do => 'status=200&echo=1&h=Content-Encoding:gzip');
    ok($first->{body} eq $bytes, 'the first client gets it as it is');
    is_same(write_to('/gzip', @gzip, body => $bytes), $first);
    is(executions(), 1, 'executions');
};

claim 'sub_filter and add_header work once on each answer' => sub {
    my ($first) = twice('/sub');
    like($first->{body}, qr/"the execution"/, 'the body is changed');
    is(header($first, 'X-Added'), 'yes', 'the header is added');
};

# ---- protocols ------------------------------------------------------------

sub over_http2 ($uri, $do = undef) {
    return Http2->new($ng->port(2))->request('POST', $uri,
        headers => ['idempotency-key' => claim_key(),
            defined $do ? ('x-behaviour' => $do) : ()],
        body => $Keyed::BODY);
}

for my $do ('size=50000', 'size=50000&chunked=1', 'status=204', 'size=0') {
    claim "an HTTP/1 answer is replayed over HTTP/2 ($do)" => sub {
        my $first = write_to('/x', do => $do);
        my $retry = over_http2('/x');
        ok($retry->{complete}, 'it is whole');
        is_replay($retry, $first);
        is(header($retry, 'Location'), header($first, 'Location'), 'Location');
        is(executions(), 1, 'executions');
    };

    claim "an HTTP/2 answer is replayed over HTTP/1 and HTTP/2 ($do)" => sub {
        my $first = over_http2('/x', $do);
        is_replay($_, $first) for write_to('/x'), over_http2('/x');
        is(executions(), 1, 'executions');
    };
}

for my $do ('size=50000', 'size=50000&chunked=1') {
    claim "an answer is replayed over HTTP/1.0 ($do)" => sub {
        my $first = write_to('/x', do => $do);
        my $retry = write_to('/x', version => '1.0');
        is_replay($retry, $first);
        is(header($retry, 'Transfer-Encoding'), undef, 'it is not chunked');
        is(executions(), 1, 'executions');
    };

    claim "an HTTP/1.0 answer is replayed ($do)" => sub {
        my $first = write_to('/x', do => $do, version => '1.0');
        is(length $first->{body}, 50_000, 'the first is whole');
        is_replay(write_to('/x'), $first);
        is_replay(write_to('/x', version => '1.0'), $first);
        is(executions(), 1, 'executions');
    };
}

# ---- connections ----------------------------------------------------------

sub keep (%more) {
    my @more = @{ delete $more{headers} // [] };
    return (headers => [Connection => 'keep-alive',
        'Idempotency-Key' => claim_key(), @more], body => 'a', %more);
}

my @series = (
    # what, status, request
    ['the run',            201, sub { ('POST', '/x', keep()) }],
    ['a replay',           201, sub { ('POST', '/x', keep()) }],
    ['a reused key',       422, sub { ('POST', '/x', keep(body => 'b' x 9999)) }],
    ['a replay of chunks', 201, sub { ('POST', '/x', keep(chunked => 1)) }],
    ['an invalid key',     400, sub { ('POST', '/x',
        keep(headers => ['Idempotency-Key' => 'two'], body => 'c' x 9999)) }],
    ['a GET',              200, sub { ('GET', '/x',
        headers => [Connection => 'keep-alive']) }],
    ['a last replay',      201, sub { ('POST', '/x', keep()) }],
);

claim 'a connection goes on after replays and refusals' => sub {
    my $conn = Http1->new($ng->port);
    for my $step (@series) {
        my ($what, $status, $request) = @$step;
        is($conn->send($request->())->response->{status}, $status, $what);
    }
    is(executions(), 1, 'executions');
};

claim 'pipelined replays and refusals come in order' => sub {
    my $conn = Http1->new($ng->port);
    $conn->send($_->[2]->()) for @series;
    is($conn->response->{status}, $_->[1], $_->[0]) for @series;
    is(executions(), 1, 'executions');
};

claim 'an HTTP/2 connection goes on after replays and refusals' => sub {
    my $h2 = Http2->new($ng->port(2));
    my $post = sub ($body) {
        $h2->request('POST', '/x', body => $body,
            headers => ['idempotency-key' => claim_key()])->{status};
    };
    is($post->('a'), 201, 'the run');
    is($post->('a'), 201, 'a replay');
    is($post->('b' x 9999), 422, 'a reused key');
    is($post->('a'), 201, 'a replay');
    is(executions(), 1, 'executions');
};

# ---- surroundings ---------------------------------------------------------

claim 'a replay needs no application' => sub {
    my $first = write_to('/x', do => 'size=1000');
    upstream_stop();
    is_same(write_to('/x'), $first);
    upstream_start();
};

claim 'variables tell a replay from the run' => sub {
    my $first = write_to('/variables', do => 'lm=1&h=Cache-Control:no-store');
    is(header($first, 'X-Status'), 'NEW', 'the run');
    is(header($first, 'X-Age'), undef, 'has no age');
    isnt(header($first, 'X-Peers'), undef, 'and a peer');
    cmp_ok(abs(header($first, 'X-Expires') - time - 100), '<', 10,
        'it tells when its record lapses');

    my $retry = write_to('/variables');
    is(header($retry, 'X-Status'), 'REPLAY', 'the replay');
    like(header($retry, 'X-Age'), qr/^\d$/, 'has an age');
    is(header($retry, 'X-Peers'), undef, 'and no peer');
    cmp_ok(abs(header($retry, 'X-Expires') - header($first, 'X-Expires')), '<=', 1,
        'its record lapses when it was said');
    is(header($retry, 'X-Sent'), header($first, 'X-Sent'),
        'what nginx says of the answer is the same');
    is(executions(), 1, 'executions');
};

claim 'the age of a replay grows' => sub {
    write_to('/variables');
    ok(wait_until(sub { header(write_to('/variables'), 'X-Age') >= 1 }, 5,
        'a second'), 'after a second it is 1');
    is(executions(), 1, 'executions');
};

# ---- proxy_cache ----------------------------------------------------------

# Not where milliseconds between the clocks of nginx and the store could round
# the time up on one side and down on the other.
claim 'a replay expires when the run said' => sub {
    my $fraction = sub { my $now = Time::HiRes::time(); return $now - int $now };
    wait_until(sub { $fraction->() > 0.65 && $fraction->() < 0.8 }, 5, 'a moment within a second');
    my $said = header(write_to('/variables'), 'X-Expires');
    my $end = Time::HiRes::time() + 1.2;
    my %replays;
    while (Time::HiRes::time() < $end) {
        $replays{ header(write_to('/variables'), 'X-Expires') }++;
        select undef, undef, undef, 0.05;
    }
    is_deeply([keys %replays], [$said], 'the same second on all replays') or diag(explain(\%replays));
};

claim 'a cache that does not take writes changes nothing' => sub {
    twice('/cache-of-gets/x');
};

claim 'a stale answer instead of a failed run leaves it unknown' => sub {
    my $uri = '/stale/' . claim_key();
    write_to($uri, key => claim_key() . '-other');
    my $stale;
    ok(wait_until(sub {
        # Only a key that is never replayed tells what the cache does.
        $stale = write_to($uri, key => undef, do => 'die=before');
        header($stale, 'X-Cache') eq 'STALE';
    }, 5, 'the cache'), 'the cache has a stale answer');
    my $first = write_to($uri, do => 'die=before');
    is(header($first, 'X-Cache'), 'STALE', 'the client gets it');
    is_refused(write_to($uri), 'outcome_unknown');
    is(executions(), 1, 'executions');
};

# ---- other protocols behind nginx -----------------------------------------

for my $protocol (qw(fastcgi scgi uwsgi)) {
    for my $do ('size=100000', 'size=100000&nolength=1', 'size=0&nolength=1',
        'size=0', 'status=204', 'lm=1', 'status=303') {
        claim "an answer over $protocol is replayed ($do)" => sub {
            twice("/$protocol", $do);
        };
    }

    claim "an answer over $protocol that never came is unknown" => sub {
        ends("/$protocol", do => 'die=before', first => 502, then => 'unknown');
    };

    claim "a truncated answer over $protocol is unknown" => sub {
        my $first = write_to("/$protocol", do => 'truncate=1&size=50000');
        ok($first->{status} == 502 || !$first->{complete},
            'the client gets no whole answer');
        is_refused(write_to("/$protocol"), 'outcome_unknown');
        is(executions(), 1, 'executions');
    };

    claim "an error answer over $protocol releases the key" => sub {
        ends("/$protocol", do => 'status=500', first => 500, then => 'runs');
    };
}

# Its end is marked, so that a length is not needed to miss it.
for my $uri ('/fastcgi', map {"/fastcgi/$_"} qw(unbuffered kept passed-on)) {
    claim "an answer without length over FastCGI is replayed ($uri)" => sub {
        twice($uri, 'size=50000&nolength=1');
    };

    claim "one that breaks off leaves the outcome unknown ($uri)" => sub {
        write_to($uri, do => 'truncate=1&size=50000&nolength=1');
        is_refused(write_to($uri), 'outcome_unknown');
        is(executions(), 1, 'executions');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
