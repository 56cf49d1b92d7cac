# JSON-RPC as MCP speaks it: streams of several messages, refusals, and what
# a call says about itself.

use v5.36;

use JSON::PP ();
use Test::More;
use Keyed;
use Ledger;
use Nginx;

my $PASS = 'proxy_http_version 1.1; proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

my $ng = Nginx->start(http => <<"CONF");
client_max_body_size 20m;
idempotency on;
idempotency_scope none;
idempotency_jsonrpc on;

server {
    listen 127.0.0.1:%%PORT%%;
    location / { $PASS }
    location /off { idempotency_jsonrpc off; $PASS }
    location /required { idempotency_required on; $PASS }
    location /required/in-body { idempotency_required on; idempotency_key json:/params/k; $PASS }
    location /required/page { idempotency_required on; error_page 400 /page; $PASS }
    location /strict { idempotency_strict_methods on; idempotency_methods PUT; $PASS }
    location /scoped { idempotency_required on; idempotency_scope \$http_x_caller; $PASS }
    location /small { idempotency_max_response 1; $PASS }
    location /status { idempotency_error key_reused 400; idempotency_docs https://example.com/d; $PASS }
    location /required/named { idempotency_required on; error_page 400 = \@named; $PASS }
    location \@named { $PASS }
    location = /page { internal; idempotency off; return 418 page; }
}
CONF
retry_against($ng);

my $JSON = 'application/json';

sub escape ($text) { return $text =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger }

sub call ($id, $params = '{"amount":1}', $method = 'tools/call') {
    my $own = defined $id ? qq("id":$id,) : '';
    return qq({"jsonrpc":"2.0",$own"method":"$method","params":$params});
}

sub answer ($body, $type = $JSON) {
    return 'status=200&type=' . escape($type) . '&body=' . escape($body);
}

sub problem ($response) { return eval { JSON::PP::decode_json($response->{body}) } // {} }

sub ask ($uri, $body, %opt) {
    my $type = delete $opt{type} // $JSON;
    return write_to($uri, body => $body, %opt,
        headers => ['Content-Type' => $type, @{ $opt{headers} // [] }]);
}

# ---- streams --------------------------------------------------------------

sub result ($id) { return qq({"jsonrpc":"2.0","id":$id,"result":{"id":1,"progressToken":1}}) }

my $PROGRESS = '{"jsonrpc":"2.0","method":"notifications/progress",'
    . '"params":{"progressToken":1,"progress":50,"id":1}}';
my $ASKED = '{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}';

sub stream (@messages) {
    return join '', ": start\n\n", map {"event: message\nid: 7\ndata: $_\n\n"} @messages;
}

for my $case (
    ['progress, then the result', sub ($id) { stream($PROGRESS, $PROGRESS, result($id)) }],
    ['a request of the server keeps its id', sub ($id) { stream($ASKED, result($id)) }],
    ['two answers', sub ($id) { stream(result($id), $PROGRESS, result($id)) }],
    ['an answer in several lines',
        sub ($id) { stream($PROGRESS, qq({\ndata: "jsonrpc":"2.0",\ndata:"id":$id\ndata: ,"result":1})) }],
    ['an answer that could not tell the id',
        sub ($id) { stream('{"jsonrpc":"2.0","id":null,"error":{}}', result($id)) }],
) {
    my ($title, $text) = @$case;
    for my $more ('', '&chunked=1&pieces=7') {
        claim "$title $more" => sub {
            my $first = ask('/', call(1), do => answer($text->(1), 'text/event-stream') . $more);
            is($first->{body}, $text->(1), 'the first answer is not touched');
            for my $id ('"a-retry"', 2, 1) {
                my $retry = ask('/', call($id));
                is(header($retry, 'Idempotent-Replayed'), 'true', 'a replay');
                is($retry->{body}, $text->($id), "each answer has the id $id");
            }
            is(executions(), 1, 'executions');
        };
    }
}

claim 'answers to other requests are left alone' => sub {
    my $text = stream(result(1), result(2));
    ask('/', call(1), do => answer($text, 'text/event-stream'));
    is(ask('/', call(3))->{body}, $text, 'as it was');
};

claim 'a stream that ends with an error is released' => sub {
    ask('/', call(1), do => answer(stream($PROGRESS, '{"jsonrpc":"2.0","id":1,"error":{"code":1}}'),
        'text/event-stream'));
    is(ask('/', call(2))->{status}, 201, 'the retry runs');
};

# ---- refusals -------------------------------------------------------------

# $id: as JSON.
sub is_rpc_error ($response, $status, $code, $id) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $body = problem($response);
    is($response->{status}, $status, "refused by $status");
    ok($response->{complete}, 'the response is whole');
    is(header($response, 'Content-Type'), $JSON, 'as JSON');
    is($body->{jsonrpc}, '2.0', 'as JSON-RPC');
    like($response->{body}, qr/"id":\Q$id\E,/, 'with the id');
    is($body->{error}{code}, -32000, 'with a code');
    is($body->{error}{data}{code}, $code, 'the problem is in the data');
    is($body->{error}{data}{status}, $status, 'with the status');
    is($body->{error}{message}, $body->{error}{data}{title}, 'and the title is the message');
}

for my $id ('1', '"a\u0041 \"b"', '-1.5e3', 'null') {
    claim "a key of another call, id $id" => sub {
        ask('/', call(1), do => answer(result(1)));
        is_rpc_error(ask('/', call($id, '{"amount":2}')), 422, 'key_reused', $id);
        is(executions(), 1, 'executions');
    };
}

claim 'a notification has no id' => sub {
    ask('/', call(1), do => answer(result(1)));
    is_rpc_error(ask('/', call(undef, '{"amount":2}')), 422, 'key_reused', 'null');
};

claim 'nor has a batch' => sub {
    ask('/', call(1), do => answer(result(1)));
    is_rpc_error(ask('/', '[' . call(5) . ']'), 422, 'key_reused', 'null');
};

claim 'an outcome that is not known' => sub {
    ask('/', call(1), do => 'die=before');
    is_rpc_error(ask('/', call(2)), 409, 'outcome_unknown', 2);
};

claim 'a response that is not kept' => sub {
    ask('/small', call(1), do => answer(result(1)));
    my $retry = ask('/small', call(2));
    is_rpc_error($retry, 409, 'response_not_kept', 2);
    is(problem($retry)->{error}{data}{original_status}, 200, 'the original status');
};

claim 'one that is running' => sub {
    my $first = start_write('/', body => call(1), headers => ['Content-Type' => $JSON],
        do => 'sleep=1&' . answer(result(1)));
    wait_until(sub { executions() }, 5, 'the first to run');
    my $second = ask('/', call(2));
    is_rpc_error($second, 409, 'in_progress', 2);
    is(header($second, 'Retry-After'), 1, 'with Retry-After');
    is($first->response->{status}, 200, 'the first ends');
};

claim 'status and documentation are as they are set' => sub {
    ask('/status', call(1), do => answer(result(1)));
    my $refused = ask('/status', call(2, '[]'));
    is_rpc_error($refused, 400, 'key_reused', 2);
    is(problem($refused)->{error}{data}{type}, 'https://example.com/d', 'the type');
    like(header($refused, 'Link'), qr/describedby/, 'the link');
};

# Before the body is read.
for my $size (1, 100_000) {
    for my $chunked (0, 1) {
        my @how = (chunked => $chunked);
        my $params = '["' . 'x' x $size . '"]';
        claim "no key, $size bytes, chunked $chunked" => sub {
            is_rpc_error(ask('/required', call(9, $params), key => undef, @how), 400, 'key_missing', 9);
            is_rpc_error(ask('/required/in-body', call(9, $params), key => undef, @how), 400,
                'key_missing', 9);
            is_rpc_error(ask('/', call('"x"', $params), key => 'a b', @how), 400, 'key_invalid', '"x"');
            is_rpc_error(ask('/strict', call(9, $params), @how), 400, 'key_not_supported', 9);
            is_rpc_error(ask('/scoped', call(9, $params), @how), 400, 'scope_missing', 9);
            is(ask('/required', call(9, $params), key => undef, @how, type => 'text/plain')
                ->{body} =~ /jsonrpc/ ? 1 : 0, 0, 'another type gets a problem');
        };
    }
}

claim 'the body of a refused call may come late' => sub {
    my $body = call(9);
    my $conn = start_write('/required', key => undef, body => undef,
        headers => ['Content-Type' => $JSON, 'Content-Length' => length $body]);
    select undef, undef, undef, 0.2;
    $conn->write($body);
    is_rpc_error($conn->response, 400, 'key_missing', 9);
};

claim 'a page of the operator comes first' => sub {
    my $got = ask('/required/page', call(9), key => undef);
    is($got->{body}, 'page', 'the page');
};

claim 'a page that would run the call does not' => sub {
    is_rpc_error(ask('/required/named', call(9), key => undef), 400, 'key_missing', 9);
    is_rpc_error(ask('/required/named', call(9), key => undef, chunked => 1), 400, 'key_missing', 9);
};

claim 'a large call is refused without its id' => sub {
    my $got = ask('/required', call(9, '["' . 'x' x 5_000_000 . '"]'), key => undef);
    is($got->{status}, 400, 'refused');
    is(problem($got)->{code}, 'key_missing', 'by a problem');
};

claim 'what is no JSON-RPC gets a problem' => sub {
    for my $body ('{"id":1}', '{"jsonrpc":"1.0","id":1}', '{"jsonrpc":"2.0","id":', '"2.0"', '') {
        is_refused(ask('/required', $body, key => undef), 'key_missing', 400);
    }
    is_refused(ask('/off', call(1), key => 'a b'), 'key_invalid', 400);
};

# ---- what a call says about itself ----------------------------------------

sub same ($one, $other, $method = 'tools/call', %opt) {
    my $first = ask($opt{uri} // '/', call(1, $one, $method), do => answer(result(1)));
    my $retry = ask($opt{uri} // '/', call(2, $other, $method));
    return $retry->{status} == 422 ? 'reused' : header($retry, 'Idempotent-Replayed');
}

claim 'the _meta of a call is not compared' => sub {
    is(same('{"name":"pay","_meta":{"progressToken":1}}', '{"name":"pay","_meta":{"progressToken":"b"}}'),
        'true', 'another token');
};
claim 'nor whether there is one' => sub {
    is(same('{"name":"pay"}', '{"_meta":{"progressToken":2},"name":"pay"}'), 'true', 'none and one');
};
claim 'the rest is' => sub {
    is(same('{"name":"pay","_meta":1}', '{"name":"buy","_meta":1}'), 'reused', 'another name');
};
claim 'a _meta elsewhere is' => sub {
    is(same('{"arguments":{"_meta":1}}', '{"arguments":{"_meta":2}}'), 'reused', 'in the arguments');
};
claim 'and that of other protocols' => sub {
    is(same('{"_meta":1}', '{"_meta":2}', 'pay'), 'reused', 'another method');
};
claim 'and where JSON-RPC is off' => sub {
    is(same('{"_meta":1}', '{"_meta":2}', 'tools/call', uri => '/off'), 'reused', 'off');
};

ok($ng->stop, 'nginx quits gracefully');
$ng->check_logs;

done_testing();
