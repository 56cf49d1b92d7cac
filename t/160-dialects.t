# The dialects in conf/, each by the exchange that its API documents.

use v5.36;

use Cwd qw(abs_path);
use File::Temp ();
use JSON::PP ();
use POSIX qw(strftime);
use Test::More;
use Ledger;
use Keyed;
use Nginx;

my $CONF = abs_path('conf');
my %untested = map { $_ => 1 } grep { !/maps/ } glob 'conf/*.conf';
my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

# ---- helpers --------------------------------------------------------------

# Runs $check->($nginx) against the dialect, used as it says itself.
sub dialect ($name, $check, %opt) {
    delete $untested{"conf/$name.conf"};
    my $maps = Nginx::slurp("conf/$name.conf") =~ /maps\.conf/ ? "include $CONF/maps.conf;" : '';
    my $scope = $opt{scope} // '$http_authorization';
    my $pass = $opt{pass} // $PASS;
    subtest $name => sub {
        ledger_reset();
        my $ng = Nginx->start(http => <<"CONF");
$maps
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        include            $CONF/$name.conf;
        idempotency        on;
        idempotency_scope  $scope;
        $pass
    }
}
CONF
        $check->($ng);
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

my @ANN = (Authorization => 'Bearer ann');
my @JSON = ('Content-Type' => 'application/json');

# As post(), with a key in any header. $more: headers.
sub by_ann ($ng, $key, %opt) {
    return request(ann_args($ng, $key, %opt));
}

sub ann_args ($ng, $key, %opt) {
    my ($port, @arguments) = post_args($ng->port, undef, %opt,
        headers => [@ANN, @{ $opt{headers} // [] }, defined $key ? @$key : ()]);
    return ($port, @arguments);
}

sub started_by_ann ($ng, $key, %opt) {
    my $gate = Keyed::Gate->new;
    my $before = ledger_count();
    my $conn = send_request(ann_args($ng, $key, %opt, do => $gate->closed));
    wait_until(sub { ledger_count() > $before }, 10, 'a run');
    return ($gate, $conn);
}

sub in_json ($response) { return eval { JSON::PP::decode_json($response->{body}) } }

sub executions_are ($count) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(ledger_count(), $count, "$count executions");
}

sub date ($ago) { return strftime('%a, %d %b %Y %H:%M:%S GMT', gmtime(time - $ago)) }

# ---- ietf -----------------------------------------------------------------

dialect ietf => sub ($ng) {
    my $key = ['Idempotency-Key' => '"8e03978e-40d5-43dd-bc93-6894a57f9324"'];

    my $missing = by_ann($ng, undef);
    is(said($missing), '400 key_missing', 'no key');
    is(header($missing, 'Content-Type'), 'application/problem+json', 'as a problem');

    my ($gate, $conn) = started_by_ann($ng, $key);
    is(said(by_ann($ng, $key)), '409 in_progress', 'in progress');
    is(said(by_ann($ng, $key, body => 'other')), '422 key_reused', 'another payload');
    $gate->open;
    is(said($conn->response), '201 #1', 'the first');
    is(said(by_ann($ng, $key)), '201 #1 replayed', 'the retry');

    for ([422, 'replayed'], [500, 'replayed'], [429, 'runs'], [503, 'runs']) {
        my ($status, $then) = @$_;
        my $key = ['Idempotency-Key' => qq("error-$status")];
        is(by_ann($ng, $key, do => "status=$status")->{status}, $status, "an error $status");
        my $retry = by_ann($ng, $key);
        is(header($retry, 'Idempotent-Replayed') ? 'replayed' : 'runs', $then, $then);
    }
    is(said(by_ann($ng, undef, method => 'DELETE'), number => 0), '201', 'DELETE needs no key');
};

# ---- stripe ---------------------------------------------------------------

dialect stripe => sub ($ng) {
    my @key = ('Idempotency-Key' => 'KG5LxwFBepaKHyUD');
    my %charge = (uri => '/v1/charges', body => 'amount=2000&currency=usd',
        headers => ['Content-Type' => 'application/x-www-form-urlencoded']);

    my $first = by_ann($ng, \@key, %charge, do => 'h=Request-Id:req_1');
    is(said($first), '201 #1', 'a charge');
    is(header($first, 'Idempotency-Key'), 'KG5LxwFBepaKHyUD', 'the key is echoed');
    is(header($first, 'Original-Request'), 'req_1', 'it is its own original');

    my $retry = by_ann($ng, \@key, %charge);
    is(said($retry), '201 #1 replayed', 'the retry');
    is(header($retry, 'Idempotency-Key'), 'KG5LxwFBepaKHyUD', 'the key is echoed');
    is(header($retry, 'Original-Request'), 'req_1', 'the original is named');

    for (['other parameters', %charge, body => 'amount=1&currency=usd'],
        ['another path', %charge, uri => '/v1/refunds'])
    {
        my ($title, %other) = @$_;
        my $reused = by_ann($ng, \@key, %other);
        is($reused->{status}, 400, "$title: 400");
        is(in_json($reused)->{error}{type}, 'idempotency_error', 'an idempotency_error');
        is(header($reused, 'Stripe-Should-Retry'), 'false', 'not to be retried');
    }

    my ($gate, $conn) = started_by_ann($ng, ['Idempotency-Key' => 'slow'], %charge);
    my $in_use = by_ann($ng, ['Idempotency-Key' => 'slow'], %charge);
    is($in_use->{status}, 409, 'in use: 409');
    is(in_json($in_use)->{error}{code}, 'idempotency_key_in_use', 'and says so');
    is(header($in_use, 'Stripe-Should-Retry'), 'true', 'to be retried');
    $gate->open;
    is(said($conn->response), '201 #2', 'the first');

    for ([402, 'replayed'], [500, 'replayed'], [400, 'runs'], [429, 'runs']) {
        my ($status, $then) = @$_;
        my @key = ('Idempotency-Key' => "error-$status");
        is(by_ann($ng, \@key, %charge, do => "status=$status")->{status}, $status,
            "an error $status");
        my $retry = by_ann($ng, \@key, %charge);
        is(header($retry, 'Idempotent-Replayed') ? 'replayed' : 'runs', $then, $then);
    }

    is(said(by_ann($ng, ['Idempotency-Key' => 'x' x 255], %charge), number => 0), '201',
        '255 characters');
    my $long = by_ann($ng, ['Idempotency-Key' => 'x' x 256], %charge);
    is($long->{status}, 400, '256 characters: 400');
    is(in_json($long)->{error}{type}, 'invalid_request_error', 'an invalid request');
    is(header(by_ann($ng, undef, %charge), 'Idempotency-Key'), undef, 'no key, no echo');
};

# ---- acp ------------------------------------------------------------------

dialect acp => sub ($ng) {
    my @key = ('Idempotency-Key' => '8f6a3a5e-1f0e-4c4b-9b57-9d3c2b7e1a10', 'Request-Id' => 'r1');
    my %create = (uri => '/checkout_sessions', headers => [@JSON],
        body => '{"items":[{"id":"item_123","quantity":1}],"note":null}');
    my $code = sub ($response) { return join ' ', $response->{status},
            map { $_ // '-' } @{ in_json($response) }{qw(type code)} };

    is($code->(by_ann($ng, undef, %create)), '400 invalid_request idempotency_key_required',
        'no key');

    my ($gate, $conn) = started_by_ann($ng, \@key, %create);
    my $in_flight = by_ann($ng, \@key, %create);
    is($code->($in_flight), '409 invalid_request idempotency_in_flight', 'in flight');
    is(header($in_flight, 'Retry-After'), 1, 'with Retry-After');
    $gate->open;
    my $first = $conn->response;
    is(said($first), '201 #1', 'the first');
    is(header($first, 'Idempotency-Key'), $key[1], 'the key is echoed');
    is(header($first, 'Request-Id'), 'r1', 'and the id of the request');

    my $same = by_ann($ng, \@key, %create,
        body => '{"note": null, "items": [{"quantity": 1.0, "id": "item_123"}]}');
    is(said($same), '201 #1 replayed', 'the same value in other words');
    is(header($same, 'Idempotency-Key'), $key[1], 'the key is echoed');

    for ('{"items":[{"id":"item_123","quantity":1}]}', '{"items":[],"note":null}') {
        my $conflict = by_ann($ng, \@key, %create, body => $_);
        is($code->($conflict), '422 invalid_request idempotency_conflict', 'a conflict');
        is(header($conflict, 'Idempotency-Key'), $key[1], 'the key is echoed');
    }
    is(said(by_ann($ng, \@key, %create, uri => '/checkout_sessions/1'), number => 0), '201',
        'a key belongs to its path');

    for (500, 502, 503, 504) {
        my @key = ('Idempotency-Key' => "error-$_");
        is(by_ann($ng, \@key, %create, do => "status=$_")->{status}, $_, "a $_");
        is(said(by_ann($ng, \@key, %create), number => 0), '201', 'runs afresh');
    }
    my @declined = ('Idempotency-Key' => 'declined');
    is(by_ann($ng, \@declined, %create, do => 'status=402')->{status}, 402, 'a 402');
    is(said(by_ann($ng, \@declined, %create), number => 0), '402 replayed', 'is kept');

    my @lost = ('Idempotency-Key' => 'lost');
    is(by_ann($ng, \@lost, %create, do => 'die=before')->{status}, 502, 'no answer');
    is($code->(by_ann($ng, \@lost, %create)), '409 invalid_request outcome_unknown',
        'is not run again');
};

# ---- workspace-204 --------------------------------------------------------

dialect 'workspace-204' => sub ($ng) {
    my @key = ('X-Idempotency-Key' => 'k');
    is(said(by_ann($ng, \@key)), '201 #1', 'the first');
    my $again = by_ann($ng, \@key);
    is(said($again), '204', 'the duplicate');
    is($again->{body}, '', 'is empty');

    for (302, 404, 422, 500) {
        my @key = ('X-Idempotency-Key' => "error-$_");
        is(by_ann($ng, \@key, do => "status=$_")->{status}, $_, "a $_");
        is(said(by_ann($ng, \@key), number => 0), '201', 'leaves the key free');
        is(said(by_ann($ng, \@key)), '204', 'the duplicate');
    }
    is(said(by_ann($ng, ['Idempotency-Key' => 'k']), number => 0), '201', 'another header');
    executions_are(10);
};

# ---- agents ---------------------------------------------------------------

dialect agents => sub ($ng) {
    my $call = sub ($id, $arguments, $meta = '') {
        return (uri => '/mcp', headers => [@JSON], body => qq({"jsonrpc":"2.0","id":$id,)
            . qq("method":"tools/call","params":{"name":"pay",$meta"arguments":{$arguments}}}));
    };
    my $result = 'body=' . Ledger::escape('{"jsonrpc":"2.0","id":1,"result":{"content":[]}}')
        . '&status=200';

    my %first = $call->(1, '"amount":5,"idempotencyKey":"a"');
    is(by_ann($ng, undef, %first, do => $result)->{status}, 200, 'a call');
    my $replay = by_ann($ng, undef, $call->(2, '"amount":5,"idempotencyKey":"a"'));
    is(header($replay, 'Idempotency-Replay'), 'true', 'called again: marked');
    is(in_json($replay)->{id}, 2, 'with the id of the call');

    my $reused = by_ann($ng, undef, $call->(3, '"amount":6,"idempotencyKey":"a"'));
    is($reused->{status}, 409, 'other arguments: 409');
    is(in_json($reused)->{error}{data}{code}, 'key_reused', 'a JSON-RPC error');

    my ($gate, $conn) = started_by_ann($ng, undef, $call->(4, '"idempotency_key":"b"'));
    my $busy = by_ann($ng, undef, $call->(5, '"idempotency_key":"b"'));
    is($busy->{status}, 409, 'while it runs: 409');
    is(in_json($busy)->{error}{data}{code}, 'in_progress', 'a JSON-RPC error');
    $gate->open;
    $conn->response;

    my $error = 'body=' . Ledger::escape('{"jsonrpc":"2.0","id":6,"error":{"code":1,"message":"no"}}')
        . '&status=200';
    my %third = $call->(6, '', '"_meta":{"idempotencyKey":"c"},');
    by_ann($ng, undef, %third, do => $error);
    is(header(by_ann($ng, undef, %third, do => $result), 'Idempotency-Replay'), undef,
        'an error releases the key');
    executions_are(4);
};

# ---- opaque ---------------------------------------------------------------

dialect opaque => sub ($ng) {
    my @key = ('Idempotency-Key' => 'order 7, "blue"; ' . 'x' x 111);
    my $first = by_ann($ng, \@key, do => 'h=Request-Id:r1');
    is(said($first), '201 #1', 'a key of 128 characters');
    my $again = by_ann($ng, \@key, body => 'another');
    is(said($again), '201 #1', 'only the key decides');
    is($again->{body}, $first->{body}, 'the same body');
    my %changes = map { lc $_ => 1 } 'Date';
    is_deeply([map { [$_, $again->{headers}{$_}] } grep { !$changes{$_} } sort keys %{ $again->{headers} }],
        [map { [$_, $first->{headers}{$_}] } grep { !$changes{$_} } sort keys %{ $first->{headers} }],
        'and no header tells');
    is(by_ann($ng, ['Idempotency-Key' => 'x' x 129])->{status}, 400, '129 characters');
    executions_are(1);
};

# ---- repeatability --------------------------------------------------------

dialect repeatability => sub ($ng) {
    my $now = date(0);
    my $id = 0;
    my $key = sub ($first_sent = $now, $request_id = sprintf '%08x-0000-4000-8000-000000000000', ++$id) {
        return ['Repeatability-Request-ID' => $request_id,
            defined $first_sent ? ('Repeatability-First-Sent' => $first_sent) : ()];
    };
    my $got = sub ($response) {
        my $body = in_json($response);
        return join ' ', $response->{status}, header($response, 'Repeatability-Result') // '-',
            ref $body && $body->{error} ? $body->{error}{code} : ();
    };

    my $one = $key->();
    is($got->(by_ann($ng, $one)), '201 accepted', 'the first');
    my $retry = by_ann($ng, $one);
    is($got->($retry), '201 accepted', 'the repeat');
    is(header($retry, 'X-Execution'), 1, 'has the first response');
    is($got->(by_ann($ng, $one, body => 'other')), '400 rejected key_reused', 'another request');

    my ($gate, $conn) = started_by_ann($ng, my $slow = $key->());
    is($got->(by_ann($ng, $slow)), '409 accepted in_progress', 'in progress');
    $gate->open;
    is($got->($conn->response), '201 accepted', 'the first');

    is($got->(by_ann($ng, $key->(date(86400 * 2)))), '412 rejected key_expired',
        'outside of the tracked time');
    is($got->(by_ann($ng, $key->('now'))), '400 rejected first_sent_invalid', 'no date');
    is($got->(by_ann($ng, $key->(undef))), '400 rejected first_sent_invalid', 'no time');
    is($got->(by_ann($ng, $key->($now, 'one'))), '400 rejected key_invalid', 'no UUID');

    for ([404, '404 accepted'], [500, '201 accepted'], [502, '409 rejected outcome_unknown'],
        [504, '409 rejected outcome_unknown']) {
        my ($status, $then) = @$_;
        my $key = $key->();
        is($got->(by_ann($ng, $key, do => "status=$status")), "$status accepted", "a $status");
        is($got->(by_ann($ng, $key)), $then, "then $then");
    }
    my $lost = $key->();
    is(by_ann($ng, $lost, do => 'die=before')->{status}, 502, 'nobody knows whether it was executed');
    is($got->(by_ann($ng, $lost)), '409 rejected outcome_unknown', 'so it does not run again');
    is($got->(by_ann($ng, undef)), '201 -', 'an ordinary request');
    executions_are(9);
};

is_deeply([sort keys %untested], [], 'no dialect is left out');

done_testing;
