# What of a response is kept, how it reaches the first client meanwhile, and
# what the application may say about it.

use v5.36;

use IO::Select;
use Test::More;
use Http2;
use Keyed;
use Ledger qw(:DEFAULT escape);
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
idempotency_store tiny memory:128k;

server {
    listen 127.0.0.1:%%PORT%%;

    idempotency on;
    idempotency_scope none;
    proxy_http_version 1.1;

    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /unprotected {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /small {
        idempotency_max_response 1k;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /small/nowhere {
        idempotency_max_response 1k;
        proxy_hide_header Location;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /small/brief {
        idempotency_max_response 1k;
        idempotency_ttl 1s;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /tiny {
        idempotency tiny;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /held {
        proxy_buffering off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /passed-on {
        idempotency_hold off;
        proxy_buffering off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /deaf {
        idempotency_app_control off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /brief {
        idempotency_ttl 1s;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /hide {
        idempotency_hide_header X-Secret x-other;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;

        location /hide/not {
            idempotency_pass_header X-Other;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
    }
    location /pass {
        idempotency_pass_header set-cookie;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /dated {
        proxy_pass_header Date;
        proxy_pass_header Server;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /empty {
        idempotency_replay empty;
        idempotency_ttl 4xx 1h;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}

server {
    listen 127.0.0.1:%%PORT2%% http2;
    location / {
        idempotency on;
        idempotency_scope none;
        grpc_pass grpc://127.0.0.1:%%PORT3%%;
    }
}

# A gRPC service, made from the application and a trailer.
server {
    listen 127.0.0.1:%%PORT3%% http2;
    add_trailer grpc-status $http_x_grpc_status always;
    add_trailer grpc-message $http_x_grpc_message always;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
}
CONF
retry_against($ng);

# What the application sends when nothing stands between.
sub direct ($do) {
    return write_to('/x', key => undef, do => $do, port => upstream_port());
}

sub is_not_kept ($response, $status) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is_refused($response, 'response_not_kept');
    is(member($response, 'original_status'), $status,
        'it names the original status');
}

# ---- size -----------------------------------------------------------------

for my $framing ('', '&chunked=1', '&nolength=1', '&chunked=1&pieces=3') {
    claim "a body as large as the limit is kept ($framing)" => sub {
        ends('/small', do => "size=1024$framing", first => 201,
            then => 'replayed');
    };

    for my $size (1025, 100_000) {
        claim "a body of $size bytes is passed on, not kept ($framing)" => sub {
            my $do = "size=$size$framing";
            my $first = write_to('/small', do => $do);
            ok($first->{complete}, 'the client gets the whole answer');
            is($first->{status}, 201, 'with its status');
            ok($first->{body} eq direct($do)->{body}, 'and its body');
            my $retry = write_to('/small');
            is_not_kept($retry, 201);
            is(member($retry, 'original_location'), header($first, 'Location'),
                'it names the original Location');
            is(executions(), 1, 'executions');
        };
    }
}

claim 'a response that was not kept had perhaps no Location' => sub {
    write_to('/small/nowhere', do => 'size=2000');
    my $retry = write_to('/small/nowhere');
    is_not_kept($retry, 201);
    unlike($retry->{body}, qr/original_location/, 'none is named');
};

claim 'a response for which the store has no room is not kept' => sub {
    my $first = write_to('/tiny', do => 'size=500000');
    is(length $first->{body}, 500_000, 'the client gets the whole answer');
    my $retry = write_to('/tiny');
    is_not_kept($retry, 201);
    is(member($retry, 'original_location'), header($first, 'Location'),
        'it names the original Location');
    is(executions(), 1, 'executions');
};

claim 'a large answer of another status is judged by its status' => sub {
    ends('/small', do => 'status=500&size=2000', first => 500, then => 'runs');
};

claim 'that a response was not kept is known as long as a 200' => sub {
    write_to('/small/brief', do => 'size=2000');
    is_not_kept(write_to('/small/brief'), 201);
    my $retry;
    ok(wait_until(sub {
        $retry = write_to('/small/brief');
        $retry->{status} != 409;
    }, 5, 'the ttl to be over'), 'the record lapses');
    is_rerun($retry);
};

# ---- held or passed on ----------------------------------------------------

# Reads until the body holds so much; what came stays with the connection.
sub read_body ($conn, $bytes) {
    my $select = IO::Select->new($conn->sock);
    $conn->expect;
    while (length $conn->{got}{body} < $bytes && !$conn->finished) {
        last if !$select->can_read(5);
        $conn->absorb;
    }
    return length $conn->{got}{body};
}

sub read_rest ($conn) {
    $conn->absorb until $conn->finished;
    return $conn->settle;
}

for my $case (
    ['with idempotency_hold off', '/passed-on', ''],
    ['with idempotency_hold off', '/passed-on', '&chunked=1'],
    ['of text/event-stream', '/held', '&chunked=1&type=text/event-stream'],
    ['of text/event-stream', '/held',
        '&chunked=1&type=text/event-stream;+charset=utf-8'],
) {
    my ($what, $uri, $more) = @$case;
    claim "a response $what is passed on while it comes ($more)" => sub {
        my $conn = start_write($uri, do => "size=600&pieces=2&gap=0.9$more");
        cmp_ok(read_body($conn, 300), '>=', 300, 'a piece arrives');
        # The proof that the rest is still to come.
        is_refused(write_to($uri), 'in_progress');
        my $first = read_rest($conn);
        ok($first->{complete}, 'the rest arrives');
        is(length $first->{body}, 600, 'all of it');
        is_replay(write_to($uri), $first);
        is(executions(), 1, 'executions');
    };
}

claim 'a held response arrives when all of it is there' => sub {
    my $conn = start_write('/held', do => 'size=600&pieces=2&gap=1');
    ok(wait_until(sub { executions() == 1 }, 5, 'the run'), 'it runs');
    ok(!IO::Select->new($conn->sock)->can_read(0.3), 'nothing arrives before');
    my $first = $conn->response;
    ok($first->{complete}, 'all of it arrives');
    is(length $first->{body}, 600, 'with its body');
    is_replay(write_to('/held'), $first);
    is(executions(), 1, 'executions');
};

# ---- what the application says --------------------------------------------

sub says ($word) { return "h=X-Accel-Idempotency:$word" }

for my $case (
    # what it says, to which status, where, what becomes of it
    ['release',        201, '/x',     'runs'],
    ['release',        502, '/x',     'runs'],
    ['RELEASE',        201, '/x',     'runs'],
    ['ttl=60',         201, '/x',     'replayed'],
    ['ttl=0',          201, '/x',     'runs'],
    ['ttl=60',         500, '/x',     'runs'],
    ['nonsense',       201, '/x',     'replayed'],
    ['nonsense',       500, '/x',     'runs'],
    ['ttl=soon',       201, '/x',     'replayed'],
    ['ttl=-1',         201, '/x',     'replayed'],
    ['ttl=',           201, '/x',     'replayed'],
    ['ttl=99999999999999999999999', 201, '/x', 'replayed'],
    ['',               201, '/x',     'replayed'],
    ['release',        201, '/deaf',  'replayed'],
    ['discard',        201, '/deaf',  'replayed'],
    ['ttl=0',          201, '/deaf',  'replayed'],
    ['release',        201, '/passed-on', 'runs'],
) {
    my ($word, $status, $uri, $then) = @$case;
    claim "a $status with '$word' in $uri: $then; the word is removed" => sub {
        my $first = ends($uri, do => "status=$status&" . says($word),
            first => $status, then => $then);
        is(header($first, 'X-Accel-Idempotency'), undef, 'it is removed');
    };
}

for my $status (201, 500, 502) {
    claim "a $status the application asks to discard is not kept" => sub {
        my $first = write_to('/x', do => "status=$status&" . says('discard'));
        is($first->{status}, $status, 'the client gets it');
        is(header($first, 'X-Accel-Idempotency'), undef, 'the word is removed');
        my $retry = write_to('/x');
        is_not_kept($retry, $status);
        is(member($retry, 'original_location'), header($first, 'Location'),
            'it names the original Location');
        is(executions(), 1, 'executions');
    };
}

for my $case (
    ['shortens', '/x', 'ttl=1'], ['does not lengthen', '/brief', 'ttl=3600'],
    ['shortens what is discarded', '/x', 'discard,+ttl=1'],
) {
    my ($what, $uri, $word) = @$case;
    claim "the application's ttl $what" => sub {
        write_to($uri, do => says($word));
        write_to($uri);
        is(executions(), 1, 'the retry is not run');
        ok(wait_until(sub {
            my $retry = write_to($uri);
            $retry->{status} == 201 && !header($retry, 'Idempotent-Replayed');
        }, 5, 'the ttl to be over'), 'the record lapses');
        is(executions(), 2, 'executions');
    };
}

for my $case (
    ['without a key',           '/x', key => undef],
    ['of an unprotected method', '/x', method => 'GET', body => ''],
    ['without a key where it is not heeded', '/deaf', key => undef],
) {
    my ($what, $uri, @how) = @$case;
    claim "the word is removed from answers to requests $what" => sub {
        my $first = write_to($uri, do => says('release'), @how);
        like($first->{status}, qr/^20[01]$/, 'the client gets the answer');
        is(header($first, 'X-Accel-Idempotency'), undef, 'without the word');
    };
}

claim 'where nothing is protected the word is an ordinary header' => sub {
    my $first = write_to('/unprotected', do => says('release'));
    is(header($first, 'X-Accel-Idempotency'), 'release', 'it is passed on');
};

claim 'the word means nothing in a request' => sub {
    my @word = (headers => ['X-Accel-Idempotency' => 'release']);
    my $first = write_to('/x', @word);
    is($first->{status}, 201, 'the client gets 201');
    is_replay(write_to('/x', @word), $first);
    is(executions(), 1, 'executions');
};

# ---- headers --------------------------------------------------------------

# First answer and replay to a run that sent these headers.
sub twice ($uri, @fields) {
    my $first = write_to($uri, do => join '&', map {"h=$_"} @fields);
    my $retry = write_to($uri);
    is_replay($retry, $first);
    is(executions(), 1, 'executions');
    return ($first, $retry);
}

claim 'Set-Cookie goes to the first client only' => sub {
    my ($first, $retry) = twice('/x', 'Set-Cookie:a=1', 'Set-Cookie:b=2');
    is(header($first, 'Set-Cookie'), 'a=1, b=2', 'the first client gets it');
    is(header($retry, 'Set-Cookie'), undef, 'a retry does not');
};

claim 'idempotency_pass_header keeps Set-Cookie' => sub {
    my ($first, $retry) = twice('/pass', 'Set-Cookie:a=1', 'Set-Cookie:b=2');
    is_deeply($retry->{headers}{'set-cookie'}, ['a=1', 'b=2'],
        'a retry gets it');
};

claim 'idempotency_hide_header leaves more out' => sub {
    my ($first, $retry) = twice('/hide', 'X-SECRET:1', 'X-Other:2',
        'Set-Cookie:a=1', 'X-Open:3');
    is(header($first, 'X-Secret'), 1, 'the first client gets it');
    is(header($first, 'X-Other'), 2, 'the first client gets the other');
    is(header($retry, $_), undef, "$_ is not in the replay")
        for qw(X-Secret X-Other Set-Cookie);
    is(header($retry, 'X-Open'), 3, 'others are');
};

claim 'idempotency_pass_header undoes an inherited idempotency_hide_header' => sub {
    my ($first, $retry) = twice('/hide/not', 'X-Secret:1', 'X-Other:2');
    is(header($retry, 'X-Secret'), undef, 'what is not passed is left out');
    is(header($retry, 'X-Other'), 2, 'what is passed is kept');
};

claim 'repeated headers keep their number and order' => sub {
    my @fields = map { ("Link:<$_>", "Cache-Control:max-age=$_", "X-Many:$_",
        "Vary:$_") } 1 .. 3;
    my ($first, $retry) = twice('/x', @fields);
    my @order = map { [$_->{raw} =~
        /^(?:Link|Cache-Control|X-Many|Vary): .*$/mg] } $first, $retry;
    is(scalar @{ $order[0] }, 12, 'the first client gets all');
    is_deeply($order[1], $order[0], 'a retry gets them in the same order');
};

claim 'hop-by-hop headers are not in the record' => sub {
    my @names = qw(Keep-Alive Proxy-Connection Proxy-Authenticate TE Trailer
        Upgrade);
    my (undef, $retry) = twice('/x', map {"$_:x"} @names);
    is(header($retry, $_), undef, "no $_") for @names;
    is(header($retry, 'Connection'), 'close', 'Connection is the retry\'s own');
};

claim 'Date and Server are those of the replay' => sub {
    my $past = 'Sun,+06+Nov+1994+08:49:37+GMT';
    my ($first, $retry) = twice('/dated', "Date:$past", 'Server:app');
    like(header($first, 'Date'), qr/1994/, 'the first client gets the Date');
    is(header($first, 'Server'), 'app', 'and the Server');
    unlike(header($retry, 'Date'), qr/1994/, 'a retry gets the Date of today');
    is(scalar @{ $retry->{headers}{date} }, 1, 'once');
    like(header($retry, 'Server'), qr/^nginx/, 'and the Server that answers');
};

claim 'idempotency_replay empty answers retries of a 2xx by 204' => sub {
    my $first = write_to('/empty', do => 'h=X-Other:1&lm=1');
    is($first->{status}, 201, 'the first client gets its answer');
    like($first->{body}, qr/execution/, 'with its body');
    my $retry = write_to('/empty');
    is($retry->{status}, 204, 'a retry gets 204');
    is(header($retry, 'Idempotent-Replayed'), 'true', 'which is a replay');
    is($retry->{body}, '', 'without body');
    is(header($retry, $_), undef, "without $_")
        for qw(Location X-Execution X-Other ETag Last-Modified Content-Type);
    is(executions(), 1, 'executions');
};

for my $status (302, 404) {
    claim "idempotency_replay empty keeps the whole of a $status" => sub {
        ends('/empty', do => "status=$status", first => $status,
            then => 'replayed');
    };
}

claim 'idempotency_replay empty keeps that of answers of any size' => sub {
    write_to('/empty', do => 'size=2000000');
    is(write_to('/empty')->{status}, 204, 'a retry gets 204');
    is(executions(), 1, 'executions');
};

# ---- gRPC -----------------------------------------------------------------

my $message = "\0\0\0\0\5hello";

sub call ($status = 0, $do = 'status=200&type=application/grpc&body=reply') {
    return Http2->new($ng->port(2))->request('POST', '/pkg.Service/Pay',
        headers => ['content-type' => 'application/grpc', te => 'trailers',
            'idempotency-key' => claim_key(), 'x-behaviour' => $do,
            'x-grpc-status' => $status, 'x-grpc-message' => "status $status"],
        body => $message);
}

sub grpc_status ($response) {
    return ($response->{trailers}{'grpc-status'}
        // $response->{headers}{'grpc-status'} // [])->[0];
}

claim 'grpc-status 0 is completed and replayed with its trailers' => sub {
    my $first = call();
    is($first->{body}, 'reply', 'the client gets the reply');
    is_deeply($first->{trailers}, { 'grpc-status' => [0],
        'grpc-message' => ['status 0'] }, 'with its trailers');
    my $retry = call(7);
    is_replay($retry, $first);
    is_deeply($retry->{trailers}, $first->{trailers}, 'the trailers are those');
    is(header($retry, 'Content-Type'), 'application/grpc', 'and the type');
    is(executions(), 1, 'executions');
};

for my $status (1, 2, 4) {
    claim "grpc-status $status leaves the outcome unknown" => sub {
        is(grpc_status(call($status)), $status, 'the client gets it');
        my $retry = call();
        is(grpc_status($retry), 9, 'the retry is refused');
        is(executions(), 1, 'executions');
    };
}

for my $status (3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16) {
    claim "grpc-status $status releases the key" => sub {
        is(grpc_status(call($status)), $status, 'the client gets it');
        my $retry = call();
        is(grpc_status($retry), 0, 'the retry is run');
        is($retry->{body}, 'reply', 'and has its reply');
        is(executions(), 2, 'executions');
    };
}

claim 'an answer without any grpc-status leaves the outcome unknown' => sub {
    is(grpc_status(call('')), undef, 'the client gets none');
    is(grpc_status(call()), 9, 'the retry is refused');
    is(executions(), 1, 'executions');
};

claim 'a trailers-only answer has its status in the header' => sub {
    my $only = 'status=200&type=application/grpc&body=&h=grpc-status:';
    is(grpc_status(call('', "${only}5")), 5, 'the client gets it');
    is(grpc_status(call()), 0, 'the retry is run');
    is(executions(), 2, 'executions');
};

claim 'a gRPC service that dies leaves the outcome unknown' => sub {
    is(call(0, 'die=before')->{status}, 502, 'the client gets 502');
    is(grpc_status(call()), 9, 'the retry is refused');
    is(executions(), 1, 'executions');
};

# ---- gRPC-Web -------------------------------------------------------------

sub web ($type, @status) {
    my @headers = map {"&h=grpc-status:$_"} @status;
    return write_to('/held', do => join '', 'status=200&body=reply&type=' . escape($type), @headers);
}

for my $type ('application/grpc-web', 'application/grpc-web+proto', 'application/grpc-web-text',
    'application/grpc-web-text+proto', 'Application/gRPC-Web; charset=utf-8') {
    claim "$type, status 14 in the header releases the key" => sub {
        is(web($type, 14)->{status}, 200, 'the client gets it');
        my $second = web($type, 0);
        is($second->{status}, 200, 'the retry is run');
        is_replay(web($type, 14), $second);
        is(executions(), 2, 'executions');
    };
    claim "$type, status 4 in the header leaves the outcome unknown" => sub {
        web($type, 4);
        is(said(web($type), number => 0), '409 outcome_unknown', 'the retry is refused');
        is(executions(), 1, 'executions');
    };
    claim "$type, without the header the status of HTTP counts" => sub {
        my $first = web($type);
        is_replay(web($type, 14), $first);
        is(executions(), 1, 'executions');
    };
}

claim 'gRPC-Web, a header that is no number leaves the outcome unknown' => sub {
    web('application/grpc-web', 'x');
    is(said(web('application/grpc-web'), number => 0), '409 outcome_unknown', 'the retry is refused');
    is(executions(), 1, 'executions');
};

claim 'a grpc-status of another type means nothing' => sub {
    my $first = web('application/json', 14);
    is_replay(web('application/json'), $first);
    is(executions(), 1, 'executions');
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
