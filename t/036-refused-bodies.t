# A body that nginx refused or threw away: an error page may lead the request
# to an application all the same, but never twice.

use v5.36;

use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $lua = lua_modules();
my $lua_conf = $lua && <<'CONF';
    location /discarding {
        access_by_lua_block { ngx.req.discard_body() }
        proxy_pass http://app;
    }
    location /read-before {
        rewrite_by_lua_block { ngx.req.read_body() }
        error_page 400 413 = @big;
        proxy_pass http://app;
    }
CONF

my $ng = Nginx->start(main => $lua, http => <<"CONF");
upstream app { server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    client_max_body_size 1k;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    lingering_timeout 500ms;

    location /named { error_page 400 413 = \@big; proxy_pass http://app; }
    location /recursive {
        recursive_error_pages on;
        error_page 400 413 =200 \@big;
        proxy_pass http://app;
    }
    location /keyed {
        idempotency_key json:/id;
        error_page 413 = \@keyed;
        proxy_pass http://app;
    }
    location \@keyed {
        idempotency_key json:/id;
        client_max_body_size 0;
        proxy_pass http://app;
    }
    location /page { error_page 400 413 /page.txt; proxy_pass http://app; }
    location /answered { error_page 400 413 = \@answer; proxy_pass http://app; }
    location \@big { client_max_body_size 0; proxy_pass http://app; }
    location \@answer { return 413 "too big\\n"; }
    location = /page.txt { root %%DIR%%; }
    $lua_conf
}
CONF
retry_against($ng);

write_file($ng->path('page.txt'), "the page\n");

my $big = '{"text":"' . 'x' x 5_000 . '"}';

sub chunk ($bytes) { return sprintf "%x\r\n%s\r\n", length $bytes, $bytes }

# Sends the head, then the parts of the body one by one.
sub in_parts ($uri, $headers, @parts) {
    my $conn = Http1->new($ng->port);
    my $key = claim_key();
    $conn->send('POST', $uri, headers => ['Idempotency-Key' => $key, @$headers], body => '');
    for my $part (@parts) {
        select undef, undef, undef, 0.1;
        $conn->write($part);
    }
    my $response = $conn->response;
    $conn->close;
    return $response;
}

my @chunked = ('Transfer-Encoding' => 'chunked');
my @length = ('Content-Length' => length $big);
my ($head, $tail) = unpack 'a500 a*', $big;

my %SEND = (
    'chunked, at once' => sub ($uri) {
        return write_to($uri, body => $big, chunked => 1);
    },
    'chunked, in parts' => sub ($uri) {
        return in_parts($uri, \@chunked, chunk($head), chunk($tail), "0\r\n\r\n");
    },
    'no chunk at all' => sub ($uri) {
        return in_parts($uri, \@chunked, chunk($head), "zz\r\n");
    },
    'no chunk, at once' => sub ($uri) {
        return in_parts($uri, \@chunked, chunk($head) . "zz\r\n");
    },
    'by length, at once' => sub ($uri) { return write_to($uri, body => $big) },
    'by length, in parts' => sub ($uri) { return in_parts($uri, \@length, $head, $tail) },
    'by length, never whole' => sub ($uri) { return in_parts($uri, \@length, $head) },
);

for my $uri ('/named', '/recursive', $lua ? '/read-before' : ()) {
    for my $way (sort keys %SEND) {
        claim "$uri is not run twice ($way)" => sub {
            my ($first, $second) = map { $SEND{$way}->($uri) } 1 .. 2;
            ok($first->{status}, 'the first is answered');
            ok($second->{status}, 'the retry is answered');
            cmp_ok(executions(), '<=', 1, 'executions') or diag(join "\n", ledger_of());
            is($second->{status}, $first->{status}, 'both alike');
        };
    }

    for my $way (grep {!/length, at once/} sort keys %SEND) {
        claim "$uri does not run with half a body ($way)" => sub {
            my $first = $SEND{$way}->($uri);
            is($first->{status}, $way =~ /^no/ && $uri ne '/read-before' ? 400 : 413,
                'the client is told why');
            is(executions(), 0, 'executions');
        };
    }

    # What nginx could throw away at once is as if it had not been sent.
    claim "$uri runs without its body, and is replayed" => sub {
        my $send = $SEND{'by length, at once'};
        my $first = $send->($uri);
        is($first->{status}, $uri eq '/recursive' ? 200 : 201, 'it runs');
        is_replay($send->($uri), $first);
        is(executions(), 1, 'executions');
    };
}

for my $way (sort keys %SEND) {
    claim "a page answers ($way)" => sub {
        my $first = $SEND{$way}->('/page');
        is($first->{body}, "the page\n", 'the page');
        is($SEND{$way}->('/answered')->{body}, "too big\n", 'a named location');
        is(executions(), 0, 'executions');
    };
}

# The key went with it.
my @json = ('Content-Type' => 'application/json');

for my $case (
    ['at once', []],
    ['chunked', [chunked => 1]],
    ['in parts', undef],
    )
{
    my ($way, $opt) = @$case;
    claim "a body that had the key ($way)" => sub {
        my $body = '{"id":"' . claim_key() . '","text":"' . 'x' x 5_000 . '"}';
        for (1 .. 2) {
            my $got = $opt
                ? write_to('/keyed', key => undef, body => $body, headers => \@json, @$opt)
                : in_parts('/keyed', [@json, 'Content-Length' => length $body],
                    unpack 'a500 a*', $body);
            is($got->{status}, 413, 'it is refused');
        }
        is(ledger_count(uri => '/keyed'), 0, 'executions');
    };
}

claim 'a body that is lost and encoded could have a key' => sub {
    my $before = ledger_count(uri => '/keyed');
    is(write_to('/keyed', key => undef, body => $big, headers => [@json, 'Content-Encoding' => 'gzip'])->{status},
        413, 'it is refused');
    is(ledger_count(uri => '/keyed'), $before, 'executions');
};

claim 'a body that could have no key' => sub {
    is(write_to('/keyed', key => undef, body => $big)->{status}, 201, 'it runs');
    is(write_to('/keyed', key => undef, body => '', headers => \@json)->{status}, 201,
        'one that is empty runs too');
};

sub over_http2 ($uri) {
    my $h2 = Http2->new($ng->port(2));
    my $response = $h2->request('POST', $uri, headers => ['idempotency-key' => claim_key()],
        body => $big);
    $h2->close;
    return $response;
}

claim 'over HTTP/2 it is not run twice' => sub {
    my ($first, $second) = map { over_http2('/named') } 1 .. 2;
    ok($first->{status} && $second->{status}, 'both are answered');
    cmp_ok(executions(), '<=', 1, 'executions') or diag(join "\n", ledger_of());
};

if ($lua) {
    claim 'over HTTP/2 a part does not run, if the body turns out too large' => sub {
        my $h2 = Http2->new($ng->port(2));
        my $id = $h2->send('POST', '/read-before', end => 0,
            headers => ['idempotency-key' => claim_key()]);
        $h2->data($id, 'x' x 500);
        select undef, undef, undef, 0.1;
        $h2->data($id, 'y' x 5_000, 1);
        is($h2->response($id)->{status}, 413, 'it is refused');
        $h2->close;
        is(executions(), 0, 'executions');
    };

    claim 'a request whose body Lua threw away runs once' => sub {
        my $first = write_to('/discarding', body => $head);
        is($first->{status}, 201, 'it runs');
        is_replay(write_to('/discarding', body => $head), $first);
        is(executions(), 1, 'executions');
    };

    claim 'a request whose body Lua is still throwing away does not run' => sub {
        my @body = (['Content-Length' => 700], 'x' x 600, 'y' x 100);
        is(in_parts('/discarding', @body)->{status}, 413, 'it is refused') for 1 .. 2;
        is(executions(), 0, 'executions');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
