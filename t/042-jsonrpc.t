# JSON-RPC: a retry is the same call whatever its id, and its replay answers
# under the retry's own id.

use v5.36;

use Test::More;
use Http2;
use Keyed;
use Ledger qw(:DEFAULT escape);
use Nginx;

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

my $ng = Nginx->start(http => join '', <<'CONF', map { <<"CONF" } '%%PORT%%', '%%PORT2%% http2');
client_max_body_size 20m;
idempotency on;
idempotency_scope none;
proxy_http_version 1.1;
CONF
server {
    listen 127.0.0.1:$_;
    location /held/ { idempotency_jsonrpc on; $PASS }
    location /streamed/ { idempotency_jsonrpc on; idempotency_hold off; proxy_buffering off; $PASS }
    location /mirrored/ { idempotency_jsonrpc on; mirror /mirror; client_body_buffer_size 1k; $PASS }
    location /off/ { $PASS }
    location /agnostic/ { idempotency_jsonrpc on; idempotency_fingerprint off; $PASS }
    location /errors-kept/ { idempotency_jsonrpc on; idempotency_ttl any 1h; $PASS }
    location /small/ { idempotency_jsonrpc on; idempotency_max_response 10; $PASS }
    location /excluding/ {
        idempotency_jsonrpc on;
        idempotency_fingerprint_exclude /params/_meta;
        $PASS
    }
    location /mcp/ {
        idempotency_jsonrpc on;
        idempotency_key json:/params/arguments/idempotencyKey;
        $PASS
    }
    location /gzip/ {
        idempotency_jsonrpc on;
        gzip on; gzip_types application/json; gzip_min_length 1;
        $PASS
    }
    location /streamed-gzip/ {
        idempotency_jsonrpc on; idempotency_hold off; proxy_buffering off;
        gzip on; gzip_types application/json; gzip_min_length 1;
        $PASS
    }
    location = /mirror { internal; idempotency off; proxy_method GET; $PASS }
}
CONF

# ---- helpers --------------------------------------------------------------

my $keys = 0;
my $key;

sub fresh { return $key = 'k' . ++$keys }

# A request with this id as it is spelled; undef: a notification.
sub call ($id, $method = 'pay', $params = '{"amount":1}') {
    my $own = defined $id ? qq("id":$id,) : '';
    return qq({"jsonrpc":"2.0",$own"method":"$method","params":$params});
}

sub result ($id) { return qq({"jsonrpc":"2.0","id":$id,"result":{"paid":1,"id":"inner"}}\n) }

sub failure ($id) { return qq({"jsonrpc":"2.0","id":$id,"error":{"code":-32000,"message":"no"}}) }

# What the application answers, if it is asked.
sub answer ($body, %opt) {
    return join '&', 'body=' . escape($body), 'status=' . ($opt{status} // 200),
        'type=' . escape($opt{type} // 'application/json'), $opt{more} // ();
}

sub ask ($uri, $body, %opt) {
    my @headers = ('Content-Type' => $opt{type} // 'application/json', @{ $opt{headers} // [] });
    return post($ng->port, $key, %opt, uri => $uri, body => $body, headers => \@headers);
}

# All that a replay has in common with the response it repeats.
sub rest_of ($got) {
    my %headers = %{ $got->{headers} };
    delete @headers{qw(date content-length idempotent-replayed)};
    return [@$got{qw(status reason complete)}, \%headers];
}

# The first call gets $answer, the retry $wanted of it.
sub replays ($claim, $uri, $first, $retry, $answer, $wanted, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    fresh();
    my %answer = map { $_ => delete $opt{$_} } grep { exists $opt{$_} } qw(status more);
    $answer{type} = delete $opt{answer_type} if exists $opt{answer_type};
    my $one = ask($uri, $first, %opt, do => answer($answer, %answer));
    my $two = ask($uri, $retry, %opt);
    is($one->{body}, $answer, "$claim: the first answer is not touched");
    is_deeply([said($two, number => 0), $two->{body}], ["$one->{status} replayed", $wanted], "$claim: the replay");
    is_deeply(rest_of($two), rest_of($one), "$claim: all else is the same");
    my $length = $two->{headers}{'content-length'};
    is($length->[0], length $wanted, "$claim: its length") if $one->{headers}{'content-length'};
    is(ledger_count(key => $key), 1, "$claim: one execution");
}

sub tells ($claim, $wanted, $executed, @requests) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    fresh();
    my @got = map { said(ask(@$_), number => 0) } @requests;
    is_deeply([@got, ledger_count(key => $key)], [@$wanted, $executed], $claim);
}

# ---- ids ------------------------------------------------------------------

my @IDS = (
    [1, 2, 'a number'], [1, '123456789012345678901234567890', 'a longer number'],
    ['"first"', '"x"', 'a shorter string'], [7, '"seven"', 'a string for a number'],
    ['"seven"', 7, 'a number for a string'], [1, 'null', 'null'], ['null', 1, 'a number for null'],
    [1, '"\u00e9\"\\\\\n"', 'escapes as they are spelled'], [1, "\"\xc3\xa9\"", 'UTF-8'],
    [1, '1.0', 'another spelling'], [1, '-1.5e3', 'a fraction'], [1, '""', 'an empty string'],
    [1, '"' . 'x' x 5000 . '"', 'a long string'], [1, 1, 'the same'],
);

for my $where ('/held/x', '/streamed/x') {
    replays("$where, $_->[2]", $where, call($_->[0]), call($_->[1]), result($_->[0]), result($_->[1]))
        for @IDS;
}

for my $id ('{"a":1}', '[1]', 'true', 'false') {
    replays("an id that is none: $id", '/held/x', call(1), call($id), result(1), result(1));
}

for my $where ('/held/x', '/streamed/x', '/mirrored/x') {
    my $odd = qq( {\n"result" : { "id" : 9, "a":[{"id":9}], "s":"\\"id\\":9" },\r\n\t"id"\t:\t%s ,)
        . qq("error":null,"\\u006a":1.0,"jsonrpc":"2.0"} \n);
    replays("$where, an odd spelling", $where, call(9), call('"r"'), sprintf($odd, 9),
        sprintf($odd, '"r"'));
    replays("$where, the name is escaped", $where, call(9), call(10),
        '{"jsonrpc":"2.0","\u0069d":9,"result":1}', '{"jsonrpc":"2.0","\u0069d":10,"result":1}');
    replays("$where, the first has another id", $where, call(1), call(3), result(2), result(3));
    replays("$where, a result of null", $where, call(1), call(2),
        '{"jsonrpc":"2.0","id":1,"result":null}', '{"jsonrpc":"2.0","id":2,"result":null}');
    replays("$where, a chunked answer", $where, call(1), call(22), result(1), result(22),
        more => 'chunked=1&pieces=7');
    replays("$where, an answer up to the end of the connection", $where, call(1), call(22),
        result(1), result(22), more => 'nolength=1');
    replays("$where, a chunked request", $where, call(1), call(22), result(1), result(22), chunked => 1);
    replays("$where, a large request", $where, call(1, 'pay', '"' . 'x' x 100_000 . '"'),
        call(22, 'pay', '"' . 'x' x 100_000 . '"'), result(1), result(22));
}

# The application sends back what it got.
for my $where ('/held/x', '/streamed/x', '/mirrored/x') {
    fresh();
    my @large = map {'{"jsonrpc":"2.0","result":"' . 'y' x 300_000 . qq(","id":$_})} 1, '"another"';
    my @got = map { ask($where, $_, do => 'echo=1') } @large;
    is(said($got[1], number => 0), '201 replayed', "$where, a large answer");
    ok($got[$_]{body} eq $large[$_], "$where, a large answer: id $_") for 0, 1;
    is(ledger_count(key => $key), 1, "$where, a large answer: one execution");
}

# ---- what the same call is ------------------------------------------------

tells('another method is another call', [201, '422 key_reused'], 1,
    ['/held/x', call(1, 'pay')], ['/held/x', call(1, 'refund')]);
tells('other arguments are another call', [201, '422 key_reused'], 1,
    ['/held/x', call(1)], ['/held/x', call(1, 'pay', '{"amount":2}')]);
tells('only the outermost id is left out', [201, '422 key_reused'], 1,
    ['/held/x', call(1, 'pay', '{"id":1}')], ['/held/x', call(1, 'pay', '{"id":2}')]);
tells('another order of members is the same call', [201, '201 replayed'], 1,
    ['/held/x', '{"jsonrpc":"2.0","id":1,"method":"m"}'],
    ['/held/x', '{"method":"m","id":2,"jsonrpc":"2.0"}']);
tells('excluded members beside the id', [201, '201 replayed', '422 key_reused'], 1,
    map { ['/excluding/x', $_] } call(1, 'm', '{"a":1,"_meta":{"progressToken":1}}'),
    call(2, 'm', '{"a":1,"_meta":{"progressToken":2}}'), call(2, 'm', '{"a":2}'));
tells('an id twice counts as bytes', [201, '201 replayed', '422 key_reused'], 1, map { ['/held/x', $_] }
    ('{"id":1,"id":2,"method":"m"}') x 2, '{"id":1,"id":3,"method":"m"}');
tells('of another type it counts as bytes', [201, '422 key_reused'], 1,
    map { ['/held/x', call($_), type => 'text/plain'] } 1, 2);
replays('no fingerprint of bodies', '/agnostic/x', call(1), call(2, 'other'), result(1), result(2));
replays('a request that is broken', '/held/x', '{"id":1,', '{"id":1,', result(1), result(1));

# ---- notifications --------------------------------------------------------

replays('a notification', '/held/x', call(undef), call(undef), '', '', status => 202);
replays('a notification that gets an answer', '/held/x', call(undef), call(undef), result('null'),
    result('null'));
tells('another notification', [201, '422 key_reused'], 1,
    ['/held/x', call(undef, 'a')], ['/held/x', call(undef, 'b')]);

# ---- answers that are left alone ------------------------------------------

for my $where ('/held/x', '/streamed/x') {
    for my $case (
        ['without an id', '{"jsonrpc":"2.0","result":1}'],
        ['that is no JSON', '"id":1, and so on'],
        ['that is cut off', '{"jsonrpc":"2.0","id":1,"result":1'],
        ['that is empty', ''],
        ['that is an array', '[' . result(1) . ']'],
        ['that is not JSON-RPC 2.0', '{"id":1,"result":1}'],
        ['that is neither result nor error', '{"jsonrpc":"2.0","id":1,"method":"m"}'],
        ['with an id twice', '{"jsonrpc":"2.0","id":1,"id":1,"result":1}'],
    ) {
        my ($what, $body) = @$case;
        replays("$where, an answer $what", $where, call(1), call(2), $body, $body);
    }
    replays("$where, HTML", $where, call(1), call(2), '<p id=1>', '<p id=1>', answer_type => 'text/html');
}

# ---- answers that are encoded ----------------------------------------------

# Their id cannot be replaced, so a retry with an id of its own cannot get them.
for my $where ('/held/x', '/streamed/x') {
    for my $encoding ('gzip', 'br') {
        my @encoded = (more => "h=Content-Encoding:$encoding");
        tells("$where, an answer encoded by $encoding", [200, '409 response_not_kept'], 1,
            [$where, call(1), do => answer(result(1), @encoded)], [$where, call(2)]);
        tells("$where, a stream encoded by $encoding", [200, '409 response_not_kept'], 1,
            [$where, call(1), do => answer('data: ' . result(1) . "\n", type => 'text/event-stream', @encoded)],
            [$where, call(2)]);
        tells("$where, an error encoded by $encoding is not read", [200, '409 response_not_kept'], 1,
            [$where, call(1), do => answer(failure(1), @encoded)], [$where, call(2)]);
    }
    replays("$where, identity is no encoding", $where, call(1), call(2), result(1), result(2),
        more => 'h=Content-Encoding:identity');
    replays("$where, an encoded answer to a notification", $where, call(undef), call(undef), 'x', 'x',
        more => 'h=Content-Encoding:gzip');
    my $batch = '[' . call(1) . ']';
    replays("$where, an encoded answer to a batch", $where, $batch, $batch, 'x', 'x',
        more => 'h=Content-Encoding:gzip');
    replays("$where, an encoded answer of no body", $where, call(1), call(2), '', '', status => 204,
        more => 'h=Content-Encoding:gzip');
}

# What nginx encodes on its way to the client is kept as it came.
{
    my @gzip = (headers => ['Accept-Encoding' => 'gzip']);
    tells('where nginx compresses a stream: an error is released', [200, 200, '200 replayed'], 2,
        ['/streamed-gzip/x', call(1), @gzip, do => answer(failure(1))],
        map { ['/streamed-gzip/x', call($_), @gzip, do => answer(result(2))] } 2, 3);
    is(ask('/streamed-gzip/x', call(4))->{body}, result(4), 'where nginx compresses a stream: the replay');
}

# nginx itself compresses what was replayed, with the id in it.
{
    fresh();
    my @plain = map { ask('/gzip/x', call($_), do => answer(result(1))) } 1, 2;
    is($plain[1]{body}, result(2), 'where nginx compresses: the replay');
    my $got = ask('/gzip/x', call(3), headers => ['Accept-Encoding' => 'gzip']);
    SKIP: {
        skip 'no module to uncompress', 2 if !eval { require Compress::Zlib };
        is($got->{headers}{'content-encoding'}[0], 'gzip', 'where nginx compresses: it does');
        is(Compress::Zlib::memGunzip($got->{body}), result(3), 'where nginx compresses: the id in it');
    }
}

# ---- batches --------------------------------------------------------------

{
    my $batch = '[' . join(',', map { call($_) } 1, 2) . ']';
    my $answer = '[' . join(',', map { result($_) } 1, 2) . ']';
    replays('a batch', '/held/x', $batch, $batch, $answer, $answer);
    replays('a batch that gets one answer', '/held/x', $batch, $batch, result(1), result(1));
    tells('a batch with other ids', [201, '422 key_reused'], 1,
        ['/held/x', $batch], ['/held/x', $batch =~ s/"id":1/"id":3/r]);
    tells('a batch counts as bytes', [201, '422 key_reused', '201 replayed'], 1,
        ['/held/x', $batch], ['/held/x', " $batch"], ['/held/x', $batch, type => 'text/plain']);
    my $errors = '[' . failure(1) . ']';
    replays('errors in a batch are kept', '/held/x', $batch, $batch, $errors, $errors);
}

# ---- one message of a stream ----------------------------------------------

my @SSE = (answer_type => 'text/event-stream');

for my $case (
    ['a message', "event: message\ndata: %s\n\n"],
    ['a message of CRLF lines', "event: message\r\ndata: %s\r\n\r\n"],
    ['a message with comments, a number and a retry', ": hello\nid: 1\nretry: 10\n\nid: 2\ndata:%s\n\n: \"id\":1\n"],
) {
    my ($what, $text) = @$case;
    my ($one, $two) = map { my $line = result($_); chomp $line; sprintf $text, $line } 1, '"retry"';
    for my $where ('/held/x', '/streamed/x') {
        replays("$where, in a stream: $what", $where, call(1), call('"retry"'), $one, $two, @SSE);
        replays("$where, in a chunked stream: $what", $where, call(1), call('"retry"'), $one, $two, @SSE,
            more => 'chunked=1&pieces=5');
    }
    replays("in a stream with a charset: $what", '/held/x', call(1), call('"retry"'), $one, $two,
        answer_type => 'text/event-stream; charset=utf-8');
    replays("off, in a stream: $what", '/off/x', call(1), call(1), $one, $one, @SSE);
}

{
    my $line = result(1) =~ s/\n//r;
    for my $case (
        ['a message without its end', "data: $line\n"],
        ['a message that is none', "data: id 1\n\n"],
        ['no message', ": id 1\n\n"],
    ) {
        my ($what, $text) = @$case;
        replays("a stream of $what", '/held/x', call(1), call(2), $text, $text, @SSE);
    }
    my $text = "data: $line\n\n";
    replays('a message that is no stream', '/held/x', call(1), call(2), $text, $text);
}

# ---- errors ---------------------------------------------------------------

sub released ($claim, $uri, $do, @more) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $again = answer(result(2));
    fresh();
    my @got = (ask($uri, call(1), do => $do, @more), ask($uri, call(2), do => $again, @more),
        ask($uri, call(3), @more));
    is_deeply([map({ said($_, number => 0) } @got), $got[1]{body}, $got[2]{body}, ledger_count(key => $key)],
        [200, 200, '200 replayed', result(2), result(3), 2], "released: $claim");
}

for my $where ('/held/x', '/streamed/x', '/mirrored/x', '/errors-kept/x', '/agnostic/x') {
    released("$where, an error", $where, answer(failure(1)));
}
for my $where ('/held/x', '/streamed/x') {
    my $error = failure(1);
    released("$where, an error without an id", $where,
        answer('{"jsonrpc":"2.0","error":{"code":1,"message":""}}'));
    released("$where, an error with null for an id", $where, answer(failure('null')));
    released("$where, an error in a stream", $where,
        answer("event: message\ndata: $error\n\n", type => 'text/event-stream'));
    released("$where, an error in pieces", $where, answer($error, more => 'chunked=1&pieces=5'));
}

tells('released: another call may follow an error', [200, 201], 2,
    ['/held/x', call(1), do => answer(failure(1))], ['/held/x', call(1, 'other')]);
tells('released: an error by status, too', [500, 201], 2,
    ['/errors-kept/x', call(1), do => answer(failure(1), status => 500)], ['/errors-kept/x', call(2)]);

replays('the application has the last word on an error', '/held/x', call(1), call(2), failure(1),
    failure(2), more => 'h=X-Accel-Idempotency:ttl=60');
replays('an error of null is none', '/held/x', call(1), call(2),
    '{"jsonrpc":"2.0","id":1,"result":1,"error":null}', '{"jsonrpc":"2.0","id":2,"result":1,"error":null}');
replays('an error inside a result is none', '/held/x', call(1), call(2),
    '{"jsonrpc":"2.0","id":1,"result":{"isError":true,"error":1}}',
    '{"jsonrpc":"2.0","id":2,"result":{"isError":true,"error":1}}');
replays('an error that is not JSON-RPC is none', '/held/x', call(1), call(2), '{"error":1}', '{"error":1}');
tells('an answer that is too large to be looked at is not kept', [200, '409 response_not_kept'], 1,
    ['/small/x', call(1), do => answer(result(1))], ['/small/x', call(2)]);

{
    fresh();
    my @got = (ask('/held/x', call(1), do => answer(failure(1), more => 'truncate=1')),
        ask('/held/x', call(2)));
    is_deeply([map({ said($_, number => 0) } @got), ledger_count(key => $key)], [502, '409 outcome_unknown', 1],
        'half an error is no word');
}

# ---- what has no canonical form --------------------------------------------

my @ODD = (
    ['half of a surrogate pair', '{"note":"cut \\ud83d"}'], ['a name twice', '{"a":1,"a":2}'],
    ['a byte that is not UTF-8', "{\"a\":\"\xff\"}"], ['an exponent of 19 digits', '1e1234567890123456789'],
    ['600 levels', '[' x 600 . ']' x 600],
);

for my $odd (@ODD) {
    my ($what, $value) = @$odd;
    my $answer = sub ($id) { qq({"jsonrpc":"2.0","id":$id,"result":$value}) };
    my $failure = qq({"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no","data":$value}});
    for my $where ('/held/x', '/streamed/x') {
        replays("$where, $what in a result", $where, call(1), call('"b"'), $answer->(1), $answer->('"b"'));
        replays("$where, $what in a stream", $where, call(1), call('"b"'),
            map({ 'data: ' . $answer->($_) . "\n\n" } 1, '"b"'), @SSE);
        released("$where, an error with $what", $where, answer($failure));
        released("$where, an error in a stream with $what", $where,
            answer("data: $failure\n\n", type => 'text/event-stream'));
    }
    replays("$what in a request", '/held/x', call(1, 'pay', $value), call('"b"', 'pay', $value),
        result(1), result('"b"'));
    replays("$what in a call of MCP", '/held/x',
        map({ call($_, 'tools/call', qq({"_meta":{"progressToken":$_},"arguments":$value})) } 1, '"b"'),
        result(1), result('"b"'));
    tells("$what: another call", [201, '422 key_reused'], 1,
        ['/held/x', call(1, 'pay', $value)], ['/held/x', call(2, 'refund', $value)]);
    tells("$what: other arguments", [201, '422 key_reused'], 1,
        ['/held/x', call(1, 'pay', $value)], ['/held/x', call(2, 'pay', "[$value]")]);
    tells("$what: where it is not MCP, _meta counts", [201, '422 key_reused'], 1,
        map { ['/held/x', call(1, 'pay', qq({"_meta":$_,"a":$value}))] } 1, 2);
    fresh();
    ask('/held/x', call(1, 'pay', $value));
    my $refused = ask('/held/x', call('"own"', 'refund', $value));
    like($refused->{body}, qr/^\{"jsonrpc":"2\.0","id":"own","error"/, "$what: a refusal is JSON-RPC, with the id");
}
replays('a byte order mark before a result', '/held/x', call(1), call(2),
    map { "\xef\xbb\xbf" . result($_) } 1, 2);
tells('bytes without an id are not a call without it', [201, '422 key_reused'], 1,
    ['/held/x', call(1, 'pay', '"\ud83d"')], ['/held/x', call('', 'pay', '"\ud83d"')]);

# An answer that contradicts itself may have been executed.
for my $case (
    ['a result and an error', '"result":1,"error":{"code":1}'],
    ['an error and a result of null', '"error":{"code":1},"result":null'],
    ['two errors', '"error":{"code":1},"error":{"code":1}'],
    ['two results', '"result":1,"result":2'],
    ['two results, one escaped, and an error', '"result":1,"error":{"code":1},"\u0072esult":2'],
) {
    my ($what, $members) = @$case;
    my $text = sub ($id) { qq({"jsonrpc":"2.0","id":$id,$members}) };
    for my $where ('/held/x', '/streamed/x') {
        replays("$where, executed: $what", $where, call(1), call(2), map { $text->($_) } 1, 2);
        replays("$where, executed, in a stream: $what", $where, call(1), call(2),
            map({ 'data: ' . $text->($_) . "\n\n" } 1, 2), @SSE);
    }
}
released('an error inside a member that is no result', '/held/x',
    answer('{"jsonrpc":"2.0","id":1,"x":{"result":1},"error":{"code":1,"result":1}}'));

# ---- without it -----------------------------------------------------------

tells('off: another id is another request', [200, '422 key_reused', '200 replayed'], 1,
    ['/off/x', call(1), do => answer(result(1))], ['/off/x', call(2)], ['/off/x', call('1.0')]);
replays('off: nothing is rewritten', '/off/x', call(1), call('1.0'), result(1), result(1));
replays('off: errors are kept', '/off/x', call(1), call(1), failure(1), failure(1));

# ---- all together ---------------------------------------------------------

# An agent's tool call as MCP sends it: no header, a new id on each attempt.
{
    my $tool = sub ($id, $amount) {
        call($id, 'tools/call', qq({"name":"pay","arguments":{"amount":$amount,"idempotencyKey":"t-1"}}));
    };
    my $sse = sub ($id) { "event: message\ndata: " . result($id) . "\n" };
    my @json = ('Content-Type' => 'application/json');
    my $before = ledger_count(uri => '/mcp/x');
    my @got = map { request($ng->port, 'POST', '/mcp/x', body => $_, headers => [@json,
        'X-Behaviour' => answer($sse->(1), type => 'text/event-stream')]) }
        $tool->(1, 5), $tool->('"b"', 5), $tool->(3, 6);
    is_deeply([map { said($_, number => 0) } @got], [200, '200 replayed', '422 key_reused'], 'MCP: run, replayed, refused');
    is($got[1]{body}, $sse->('"b"'), 'MCP: the retry gets its own id');
    is(ledger_count(uri => '/mcp/x') - $before, 1, 'MCP: one execution');
}

{
    fresh();
    my $h2 = Http2->new($ng->port(2));
    my @got = map { $h2->request('POST', '/held/h2', body => call($_), headers => [
        'idempotency-key' => $key, 'content-type' => 'application/json',
        'x-behaviour' => answer(result(1))]) } 1, '"second"';
    is_deeply([map({ said($_, number => 0) } @got), map { $_->{body} } @got], [200, '200 replayed', result(1),
        result('"second"')], 'HTTP/2: the retry gets its own id');
    is($got[1]{headers}{'content-length'}[0], length result('"second"'), 'HTTP/2: its length');
    is(ledger_count(key => $key), 1, 'HTTP/2: one execution');
    $h2->close;
}

# Retries of one record at a time do not write into what others get.
{
    fresh();
    ask('/held/many', call(0), do => answer(result(0)));
    my @got = parallel(20, sub ($n) {
        ($ng->port, 'POST', '/held/many', body => call("7$n" x 5), headers => [
            'Idempotency-Key' => $key, 'Content-Type' => 'application/json']);
    });
    is_deeply([map { $_->{body} } @got], [map { result("7$_" x 5) } 0 .. 19],
        'many retries at once: each its own id');
    is(ledger_count(key => $key), 1, 'many retries at once: one execution');
}

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;

done_testing();
