# Refusals while a request is under way, by a full store, and to gRPC clients.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/lib";

use Test::More;
use Http1;
use Http2;
use Ledger;
use Nginx;
use Keyed;

my $ng = Nginx->start(http => <<'CONF');
idempotency_store tiny memory:128k;
idempotency_store tiny_too memory:128k;

server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;

    idempotency on;
    idempotency_scope none;
    idempotency_scope_route host method path;
    add_header X-Status "$idempotency_status" always;
    add_header X-Error "$idempotency_error" always;

    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /required {
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /strict {
        idempotency_strict_methods on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /owned {
        idempotency_scope $http_authorization;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /small {
        idempotency_max_response 100;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /full {
        idempotency tiny;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /full-retry {
        idempotency tiny;
        idempotency_retry_after 2500ms;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /full-pass {
        idempotency tiny;
        idempotency_store_failure pass;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /room {
        idempotency tiny_too;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /retry/0 {
        idempotency_retry_after 0;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /retry/200ms {
        idempotency_retry_after 200ms;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /retry/1500ms {
        idempotency_retry_after 1500ms;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /retry/1m {
        idempotency_retry_after 1m;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }

    location /other-status {
        idempotency_error in_progress 425;
        idempotency_error key_reused 409;
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /shaped/uri {
        error_page 400 409 422 /page;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /worded {
        idempotency_error_body any application/json '{"error":"$idempotency_error"}';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /page { internal; return 200 "page for $idempotency_error"; }
}
CONF
retry_against($ng);

my @ONCE_EACH = ('key_missing', 'key_invalid', 'key_not_supported',
    'scope_missing', 'in_progress', 'outcome_unknown', 'response_not_kept',
    'key_reused', 'store_unavailable');

my %STATUS = (
    key_missing => 400, key_invalid => 400, key_not_supported => 400,
    scope_missing => 400, in_progress => 409, outcome_unknown => 409,
    response_not_kept => 409, key_reused => 422, store_unavailable => 503,
);
my %VARIABLE = (in_progress => 'IN_PROGRESS', store_unavailable => 'STORE_ERROR');
my %GRPC = (
    key_missing => 3, key_invalid => 3, key_not_supported => 3,
    scope_missing => 3, in_progress => 10, outcome_unknown => 9,
    response_not_kept => 9, key_reused => 9, store_unavailable => 14,
);

# What is refused by each code, after what has gone before.
my %REFUSED = (
    key_missing       => ['/required', key => undef],
    key_invalid       => ['/x', key => '"unclosed'],
    key_not_supported => ['/strict', method => 'GET'],
    scope_missing     => ['/owned'],
    in_progress       => ['/x'],
    outcome_unknown   => ['/x'],
    response_not_kept => ['/small'],
    key_reused        => ['/x', body => 'another'],
    store_unavailable => ['/full'],
);

my ($running, $barrier);

# Left to run until let_go().
sub run_on ($uri) {
    $barrier = $ng->path('barrier-' . claim_key());
    $running = start_write($uri, do => "barrier=$barrier");
    wait_until(sub { executions() == 1 }, 5, 'the run');
}

sub let_go {
    open my $file, '>', $barrier or die "$barrier: $!\n";
    my $first = $running->response;
    undef $running;
    return $first;
}

my %BEFORE = (
    in_progress       => sub { run_on('/x') },
    outcome_unknown   => sub { write_to('/x', do => 'die=before') },
    response_not_kept => sub { write_to('/small', do => 'size=200') },
    key_reused        => sub { write_to('/x') },
    store_unavailable => sub { fill('/full') },
);

my %full;

# Nothing leaves a full store, so that once is enough.
sub fill ($uri) {
    for (my $n = 1; $n < 5000 && !$full{$uri}; $n++) {
        my $answer = write_to($uri, key => "filler-$n");
        $full{$uri} = $answer->{status} != 201;
    }
}

sub prepare ($code) { $BEFORE{$code}->() if $BEFORE{$code} }

sub clear_up { let_go() if $running }

sub is_problem ($response, $code, $status = $STATUS{$code}) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is_refused($response, $code, $status);
    is(header($response, 'Content-Type'), 'application/problem+json',
        'it is a problem document');
    is(member($response, 'status'), $status, 'which has the status');
    like(member($response, $_) // '', qr/\S/, "and a $_") for qw(type title detail);
}

# ---- each of them ---------------------------------------------------------

for my $code ('in_progress', 'store_unavailable') {
    claim "$code is a problem document with status $STATUS{$code}" => sub {
        prepare($code);
        my $before = ledger_count();
        my $answer = write_to(@{ $REFUSED{$code} });
        is_problem($answer, $code);
        is(header($answer, 'X-Status'), $VARIABLE{$code}, 'the status variable');
        is(header($answer, 'X-Error'), $code, 'the error variable');
        is(header($answer, 'Retry-After'), 1, 'Retry-After');
        is(header($answer, 'Idempotent-Replayed'), undef, 'it is no replay');
        is(header($answer, 'Link'), undef, 'no Link');
        is(ledger_count(), $before, 'nothing is executed');
        clear_up();
    };
}

for my $code (@ONCE_EACH) {
    claim "$code is told to a gRPC client by status $GRPC{$code}" => sub {
        prepare($code);
        my $before = ledger_count();
        my ($uri, %how) = @{ $REFUSED{$code} };
        my $key = exists $how{key} ? $how{key} : claim_key();
        my $answer = Http2->new($ng->port(2))->request(
            $how{method} // 'POST', $uri, body => $how{body} // $Keyed::BODY,
            headers => ['content-type' => 'application/grpc', te => 'trailers',
                defined $key ? ('idempotency-key' => $key) : ()]);
        is($answer->{status}, 200, 'the HTTP status is 200');
        is(header($answer, 'Content-Type'), 'application/grpc', 'the type');
        is(header($answer, 'grpc-status'), $GRPC{$code}, 'the gRPC status');
        like(header($answer, 'grpc-message') // '', qr/\S/, 'a message');
        is(header($answer, 'idempotency-error'), $code, 'the code');
        ok($answer->{complete}, 'the answer is whole');
        is($answer->{body}, '', 'without a message of its own');
        is_deeply($answer->{trailers}, {}, 'and without other trailers');
        is(ledger_count(), $before, 'nothing is executed');
        clear_up();
    };
}

claim 'a refusal to a HEAD has no body, and the connection goes on' => sub {
    my $conn = Http1->new($ng->port);
    my @keep = (Connection => 'keep-alive');
    $conn->send('HEAD', '/strict',
        headers => [@keep, 'Idempotency-Key' => claim_key()]);
    is($conn->response->{status}, 400, 'it is refused');
    $conn->send('GET', '/strict', headers => \@keep);
    is($conn->response->{status}, 200, 'the next request is served');
};

claim 'gRPC with a message format is gRPC too' => sub {
    my $answer = Http2->new($ng->port(2))->request('POST', '/required',
        headers => ['content-type' => 'application/grpc+proto'], body => 'x');
    is(header($answer, 'grpc-status'), 3, 'the gRPC status');
};

# ---- settings -------------------------------------------------------------

for my $case (['0', 1], ['200ms', 1], ['1500ms', 2], ['1m', 60]) {
    my ($time, $seconds) = @$case;
    claim "idempotency_retry_after $time is told as $seconds" => sub {
        my $uri = "/retry/$time";
        run_on($uri);
        my $answer = write_to($uri);
        is_problem($answer, 'in_progress');
        is(header($answer, 'Retry-After'), $seconds, 'Retry-After');
        let_go();
    };
}

claim 'idempotency_retry_after is told by a full store too' => sub {
    fill('/full');
    my $answer = write_to('/full-retry');
    is_problem($answer, 'store_unavailable');
    is(header($answer, 'Retry-After'), 3, 'Retry-After');
};

claim 'idempotency_error gives a code another status' => sub {
    run_on('/other-status');
    my $answer = write_to('/other-status');
    is_problem($answer, 'in_progress', 425);
    is(header($answer, 'Retry-After'), 1, 'Retry-After');
    is_problem(write_to('/other-status', body => 'another'), 'key_reused', 409);
    is_problem(write_to('/other-status', key => undef), 'key_missing');
    let_go();
};

# ---- error_page -----------------------------------------------------------

claim 'a reshaped in_progress still says when to retry' => sub {
    run_on('/shaped/uri');
    my $answer = write_to('/shaped/uri');
    is($answer->{status}, 409, 'the status');
    is($answer->{body}, 'page for in_progress', 'the page');
    is(header($answer, 'Retry-After'), 1, 'Retry-After');
    let_go();
};

claim 'a gRPC client is told by status whatever error_page says' => sub {
    write_to('/shaped/uri');
    my $answer = Http2->new($ng->port(2))->request('POST', '/shaped/uri',
        headers => ['content-type' => 'application/grpc',
            'idempotency-key' => claim_key()], body => 'another');
    is($answer->{status}, 200, 'the HTTP status is 200');
    is(header($answer, 'grpc-status'), 9, 'the gRPC status');
};

# ---- idempotency_error_body -----------------------------------------------

claim 'in_progress in other words still says when to retry' => sub {
    run_on('/worded');
    my $answer = write_to('/worded');
    is($answer->{status}, 409, 'the status');
    is($answer->{body}, '{"error":"in_progress"}', 'the body');
    is(header($answer, 'Retry-After'), 1, 'Retry-After');
    let_go();
};

claim 'a gRPC client is told by status whatever idempotency_error_body says' => sub {
    write_to('/worded');
    my $answer = Http2->new($ng->port(2))->request('POST', '/worded',
        headers => ['content-type' => 'application/grpc',
            'idempotency-key' => claim_key()], body => 'another');
    is($answer->{status}, 200, 'the HTTP status is 200');
    is(header($answer, 'grpc-status'), 9, 'the gRPC status');
    is($answer->{body}, '', 'no body');
};

# ---- no trace -------------------------------------------------------------

claim 'a refused duplicate does not disturb the run' => sub {
    run_on('/x');
    is_refused(write_to('/x'), 'in_progress') for 1 .. 2;
    is_refused(write_to('/x', body => 'another'), 'key_reused', 422);
    my $first = let_go();
    is($first->{status}, 201, 'the run ends well');
    is_replay(write_to('/x'), $first);
    is(executions(), 1, 'executions');
};

# ---- a full store ---------------------------------------------------------

claim 'a full store refuses new keys and forgets none it has' => sub {
    my $uri = '/room';
    my (@kept, $refused);
    for my $n (1 .. 5000) {
        my $answer = write_to($uri, key => "room-$n");
        $refused = $answer, last if $answer->{status} != 201;
        push @kept, $answer;
    }
    cmp_ok(scalar @kept, '>', 10, 'it took some');
    is_problem($refused, 'store_unavailable');
    my $key = 'room-' . (@kept + 1);
    is(ledger_count(key => $key), 0, 'what it refused was not executed');

    my @answers = map { write_to($uri, key => "room-$_") } 1 .. @kept;
    is(scalar(grep { header($_, 'X-Status') !~ /^(?:REPLAY|NOT_KEPT)$/ } @answers),
        0, 'what it took is known');
    is_problem($answers[0], 'response_not_kept');
    like($answers[0]{body}, qr/"original_status":201\b/, 'the oldest made room');
    is(ledger_count(uri => $uri), scalar @kept, 'each was executed once');
};

claim 'a full store is passed by where the operator chose so' => sub {
    fill('/full');
    for my $n (1, 2) {
        my $answer = write_to('/full-pass');
        is_rerun($answer);
        is(header($answer, 'X-Status'), 'STORE_ERROR', 'the status variable');
        is(executions(), $n, 'it is run unprotected');
    }
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
