# Keys inside JSON bodies.

use v5.36;

use Digest::SHA qw(sha1_hex);
use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my $KEY = 'idempotency_key json:/k;';
my $AGNOSTIC = 'idempotency_fingerprint off;';

my %LOCATION = (
    key => $KEY,
    required => "$KEY idempotency_required on;",
    short => "$KEY idempotency_key_length 3-5;",
    long => "$KEY idempotency_key_length 1-4096;",
    uuid => "$KEY idempotency_key_format uuid; $AGNOSTIC",
    strict => "$KEY idempotency_strict_methods on;",
    scoped => "$KEY idempotency_scope \$http_x_user;",
    bypass => "$KEY idempotency_bypass \$http_x_bypass;",
    dry => "$KEY idempotency_dry_run on;",
    'header-first' => "idempotency_key header:Idempotency-Key json:/k; $AGNOSTIC",
    'body-first' => "idempotency_key json:/k header:Idempotency-Key; $AGNOSTIC",
    'variable-first' => "idempotency_key \$arg_k json:/k; $AGNOSTIC",
    'two' => "idempotency_key json:/new/k json:/k; $AGNOSTIC",
    aws => 'idempotency_key json:/ClientRequestToken;',
    'raw-small' => "$KEY idempotency_fingerprint raw; client_body_buffer_size 1k;",
    square => 'idempotency_key json:/idempotency_key;',
    mcp => 'idempotency_key json:/params/arguments/idempotencyKey;',
    slash => 'idempotency_key json:/a~1b/c~0d/~01/;',
    index => 'idempotency_key json:/list/1/k;',
    raw => "$KEY idempotency_fingerprint raw;",
    mirror => "$KEY mirror /mirror;",
    file => "$KEY client_body_in_file_only clean;",
    small => "$KEY mirror /mirror; client_body_buffer_size 1k;",
    unbuffered => "$KEY proxy_request_buffering off; proxy_http_version 1.1;",
);

my $locations = join '', map {"location /$_/ { $LOCATION{$_} $PASS }\n"} sort keys %LOCATION;

my $ng = Nginx->start(http => join '', <<'CONF', map { <<"CONF" } '%%PORT%%', '%%PORT2%% http2');
client_max_body_size 20m;
idempotency on;
idempotency_scope none;
add_header X-Key "<$idempotency_key>" always;
add_header X-Status $idempotency_status always;
proxy_set_header X-Token $idempotency_key;
CONF
server {
    listen 127.0.0.1:$_;
    $locations
    location = /mirror { internal; idempotency off; proxy_method GET; $PASS }
}
CONF

# ---- helpers --------------------------------------------------------------

my $claims = 0;

# A path of its own belongs to each claim, as keys belong to their path.
sub at ($location) { return "/$location/" . ++$claims }

sub ask ($uri, $body, %opt) {
    my $type = exists $opt{type} ? $opt{type} : 'application/json';
    my @headers = (@{ $opt{headers} // [] }, defined $type ? ('Content-Type' => $type) : ());
    return request($ng->port, $opt{method} // 'POST', $uri, headers => \@headers, body => $body,
        chunked => $opt{chunked});
}

sub key_of ($got) { return ($got->{headers}{'x-key'}[0] // '') =~ /^<(.*)>$/ ? $1 : undef }

# Requests as [body, more], what they are told, and how often it ran.
sub tells ($claim, $location, $wanted, $executed, @requests) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $uri = at($location);
    my @got = map { said(ask($uri, @$_), number => 0) } @requests;
    return is_deeply([@got, ledger_count(uri => $uri)], [@$wanted, $executed], $claim);
}

sub is_key ($claim, $location, $body, $key, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $uri = at($location);
    my @got = map { ask($uri, $body, %opt) } 1, 2;
    is_deeply([map({ (said($_, number => 0), key_of($_)) } @got), ledger_count(uri => $uri)],
        [201, $key, '201 replayed', $key, 1], $claim);
}

sub no_key ($claim, $location, $body, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $uri = at($location);
    my @got = map { ask($uri, $body, %opt) } 1, 2;
    my @lines = grep {/ \Q$uri\E /} ledger_lines();
    is_deeply([map({ (said($_, number => 0), $_->{headers}{'x-status'}[0], key_of($_)) } @got), scalar @lines],
        [(201, '-', '') x 2, 2], "no key: $claim");
    like($lines[0], qr/ body=${\sha1_hex($body)} length=${\length $body}$/,
        "no key: $claim: the body goes on unchanged");
    is(said(ask('/required/' . ++$claims, $body, %opt), number => 0), '400 key_missing',
        "no key: $claim: where one is required");
}

sub bad_key ($claim, $location, $body, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $uri = at($location);
    is_deeply([said(ask($uri, $body, %opt), number => 0), ledger_count(uri => $uri)], ['400 key_invalid', 0],
        "bad key: $claim");
}

# ---- where it is ----------------------------------------------------------

is_key('a member', 'key', '{"a":1,"k":"key-1"}', 'key-1');
is_key('the only member', 'key', '{"k":"1"}', '1');
is_key('Square', 'square', '{"amount":1,"idempotency_key":"abc"}', 'abc');
is_key('an MCP tool call', 'mcp', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
    . '{"name":"pay","arguments":{"amount":1,"idempotencyKey":"8e03978e-40d5"}}}', '8e03978e-40d5');
is_key('names with / and ~ and an empty one', 'slash', '{"a/b":{"c~d":{"~1":{"":"found"}}}}', 'found');
is_key('an element of an array', 'index', '{"list":[{"k":"no"},{"k":"yes"}]}', 'yes');
is_key('a member whose name the body escapes', 'key', '{"\u006b":"x"}', 'x');
is_key('escapes in the value', 'key', '{"k":"\u0041\/\"\\\\b"}', 'A/"\\b');
is_key('spaces', 'key', '{"k":" a b "}', ' a b ');
is_key('all characters that may be in it', 'key',
    '{"k":"' . join('', map {chr} 0x20, 0x21, 0x23 .. 0x5b, 0x5d .. 0x7e) . '\\\\\""}',
    join('', map {chr} 0x20, 0x21, 0x23 .. 0x5b, 0x5d .. 0x7e) . '\\"');
is_key('255 characters', 'key', '{"k":"' . 'x' x 255 . '"}', 'x' x 255);
is_key('255 characters, all escaped', 'key', '{"k":"' . '\u0078' x 255 . '"}', 'x' x 255);
is_key('4096 characters', 'long', '{"k":"' . 'x' x 4096 . '"}', 'x' x 4096);
is_key('the shortest allowed', 'short', '{"k":"123"}', '123');
is_key('another method', 'key', '{"k":"x"}', 'x', method => $_) for qw(PUT PATCH DELETE);
is_key("the type $_", 'key', '{"k":"x"}', 'x', type => $_)
    for 'application/json; charset=utf-8', 'Application/vnd.api+JSON', 'text/json',
    'Text/JSON; charset=utf-8', 'application/x-amz-json-1.0', 'application/x-amz-json-1.1',
    # Parameters that are none do not hide that it is JSON.
    'application/json; charset', 'application/json, text/plain', 'application/json charset=utf-8';
is_key("two types, $_->[0] first", 'key', '{"k":"x"}', 'x', type => $_->[1], headers => ['Content-Type' => $_->[0]])
    for ['text/plain', 'application/json'], ['application/json', 'text/plain'],
    ['multipart/form-data; boundary=b', 'application/json'];
is_key("AWS: $_", 'aws', '{"ClientRequestToken":"t-1"}', 't-1', type => $_)
    for 'application/x-amz-json-1.0', 'application/x-amz-json-1.1';
is_key('raw fingerprints', 'raw', '{"k":"x"}', 'x');
is_key('quotes are part of it', 'key', '{"k":"\"x\""}', '"x"');

tells('a retry that is spelled in another way', 'key', [201, '201 replayed'], 1,
    ['{"k":"x","a":1}'], ['{ "a":1.0, "k":"\u0078" }']);
tells('another amount', 'key', [201, '422 key_reused'], 1, ['{"k":"x","a":1}'], ['{"k":"x","a":2}']);
tells('another key', 'key', [201, 201], 2, ['{"k":"x","a":1}'], ['{"k":"y","a":1}']);
tells('keys are compared byte by byte', 'key', [201, 201, 201], 3, map { [qq({"k":"$_"})] } qw(x X x\u0020));
tells('raw fingerprints: another spelling', 'raw', [201, '422 key_reused'], 1,
    ['{"k":"x"}'], ['{ "k":"x"}']);
tells('one name elsewhere', 'key', [201, 201], 2, ['{"a":{"k":"x"}}'], ['{"a":{"k":"x"}}']);

# ---- what is no key -------------------------------------------------------

no_key('no such member', 'key', '{"a":1}');
no_key('an empty object', 'key', '{}');
no_key('an array', 'key', '["k"]');
no_key('a string', 'key', '"k"');
no_key('a scalar on the way', 'mcp', '{"params":{"arguments":"idempotencyKey"}}');
no_key('an array on the way', 'mcp', '{"params":["arguments"]}');
no_key('an element that is not there', 'index', '{"list":[{"k":"x"}]}');
no_key('another case', 'key', '{"K":"x"}');
no_key('no body', 'key', '');
no_key("the type $_", 'key', '{"k":"x"}', type => $_)
    for 'text/plain', 'application/x-www-form-urlencoded', 'application/jsonp';
no_key('no type', 'key', '{"k":"x"}', type => undef);
no_key('a form', 'key', 'k=x', type => 'application/x-www-form-urlencoded');
no_key('multipart', 'key', "--x\r\nContent-Disposition: form-data; name=\"k\"\r\n\r\nx\r\n--x--\r\n",
    type => 'multipart/form-data; boundary=x');
no_key('an empty body that is said to be encoded', 'key', '', headers => ['Content-Encoding' => 'gzip']);

# ---- what the strict reader refuses ---------------------------------------

# A key is not a canonical form: whatever else is in the body, it is found.
my $deep = 100_000;
my @TOLERATED = (
    ['half of a surrogate pair', '{"k":"key-1","note":"thanks \ud83d"}'],
    ['half of a surrogate pair before it', '{"note":"\udc00 thanks","k":"key-1"}'],
    ['half of a surrogate pair in a name', '{"\ud83d":1,"k":"key-1"}'],
    ['a name twice, elsewhere', '{"a":1,"k":"key-1","a":2}'],
    ['a name twice, in another object', '{"a":{"k":1,"k":2},"k":"key-1"}'],
    ['a byte order mark', "\xef\xbb\xbf{\"k\":\"key-1\"}"],
    ['a byte that is not UTF-8', "{\"k\":\"key-1\",\"a\":\"\xff\"}"],
    ['a byte that is not UTF-8, in a name', "{\"\xff\":1,\"k\":\"key-1\"}"],
    ['an exponent of 19 digits', '{"a":1e1234567890123456789,"k":"key-1"}'],
    ['a number of 5000 digits', '{"a":' . '9' x 5000 . ',"k":"key-1"}'],
    ['600 levels', '{"k":"key-1","a":' . '[' x 600 . ']' x 600 . '}'],
    ["$deep levels before it", '{"a":' . '[' x $deep . ']' x $deep . ',"k":"key-1"}'],
    ["$deep levels behind it", '{"k":"key-1","a":' . '{"a":' x $deep . '1' . '}' x $deep . '}'],
    ['its end is missing', '{"k":"key-1"'],
    ['cut off behind it', '{"k":"key-1","a":"b'],
    ['a syntax error behind it', '{"k":"key-1",a:1}'],
    ['something behind the text', '{"k":"key-1"}}'],
);

for my $case (@TOLERATED) {
    is_key($case->[0], 'key', $case->[1], 'key-1');
}
for my $location ('raw', 'raw-small', 'file', 'small', 'mirror', 'required') {
    is_key("$location: $_->[0]", $location, $_->[1], 'key-1') for $TOLERATED[0], $TOLERATED[11];
}
is_key('MCP, half of a surrogate pair', 'mcp', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
    . '{"name":"pay","arguments":{"note":"cut \ud83d","idempotencyKey":"k-1"}}}', 'k-1');
tells('half of a surrogate pair: another body', 'key', [201, '422 key_reused'], 1,
    ['{"k":"x","a":"\ud83d"}'], ['{"k":"x","a":"\ud83e"}']);

# Where it is not certain what the key is, nothing runs.
for my $case (
    ['it stands there twice', '{"k":"x","k":"x"}'],
    ['it stands there twice, once escaped', '{"k":"x","\u006b":"x"}'],
    ['it stands there twice, far apart', '{"k":"x","a":"' . 'y' x 100_000 . '","k":"x"}'],
    ['white space', " \r\n"],
    ['a byte order mark alone', "\xef\xbb\xbf"],
    ['a syntax error before it', '{a:1,"k":"x"}'],
    ['a number that is none before it', '{"a":01,"k":"x"}'],
    ['a control character before it', "{\"a\":\"\n\",\"k\":\"x\"}"],
    ['brackets that do not match before it', '{"a":[1},"k":"x"}'],
    ['the text has no end, and no key', '{"a":1'],
    ['cut off in the key', '{"k":"x'],
    ['UTF-16', "\xff\xfe{\0\"\0k\0\"\0:\0\"\0x\0\"\0}\0"],
    ["$deep levels without an end", '{"a":' . '[' x $deep],
    ['a form', 'k=x'],
    ['half of a surrogate pair in the key', '{"k":"\ud83d"}'],
) {
    bad_key("uncertain: $case->[0]", $_, $case->[1]) for 'key', 'raw', 'file', 'required';
}
bad_key('uncertain: a name on the way twice', 'mcp',
    '{"params":{"arguments":{"idempotencyKey":"x"}},"params":{}}');
bad_key('uncertain: a name on the way twice, the key in the second', 'mcp',
    '{"params":{},"params":{"arguments":{"idempotencyKey":"x"}}}');
bad_key("uncertain: Content-Encoding $_", 'key', '{"k":"x"}', headers => ['Content-Encoding' => $_])
    for 'gzip', 'br', 'identity, gzip', 'deflate';
bad_key("uncertain: two Content-Encoding, $_->[0] first", 'key', '{"k":"x"}',
    headers => [map { ('Content-Encoding' => $_) } @$_]) for ['identity', 'gzip'], ['gzip', 'identity'];
is_key('Content-Encoding: identity', 'key', '{"k":"x"}', 'x', headers => ['Content-Encoding' => 'identity']);

{
    my $uri = at('key');
    my $got = ask($uri, '{"k":"x"}', headers => ['Content-Encoding' => 'gzip']);
    like($got->{body}, qr/Content-Encoding/, 'the refusal says that the body is encoded');
    $got = ask($uri, '{"a":[1},"k":"x"}');
    like($got->{body}, qr/not valid JSON/, 'the refusal says that the body cannot be read');
    $got = ask($uri, '{"k":"x","k":"x"}');
    like($got->{body}, qr/twice/, 'the refusal says that the key is there twice');
}

bad_key('null', 'key', '{"k":null}');
bad_key('a number', 'key', '{"k":1}');
bad_key('a boolean', 'key', '{"k":true}');
bad_key('an object', 'key', '{"k":{"k":"x"}}');
bad_key('an array', 'key', '{"k":["x"]}');
bad_key('empty', 'key', '{"k":""}');
bad_key('256 characters', 'key', '{"k":"' . 'x' x 256 . '"}');
bad_key('a megabyte', 'key', '{"k":"' . 'x' x 1_000_000 . '"}');
bad_key('too short', 'short', '{"k":"12"}');
bad_key('too long', 'short', '{"k":"123456"}');
bad_key('a line feed', 'key', '{"k":"a\nb"}');
bad_key('a NUL', 'key', '{"k":"a\u0000b"}');
bad_key('a control character', 'key', '{"k":"\u001f"}');
bad_key('DEL', 'key', '{"k":"\u007f"}');
bad_key('a letter beyond ASCII', 'key', "{\"k\":\"\xc3\xa9\"}");
bad_key('a letter beyond ASCII, escaped', 'key', '{"k":"\u00e9"}');
bad_key('required, a number', 'required', '{"k":1}');

tells('required: with a key', 'required', [201, '201 replayed'], 1, (['{"k":"x"}']) x 2);

my $uuid = '2cc6a7f2-9d9e-4f2a-8f0f-6f1f8a1f0b7c';
is_key('uuid: lower-cased', 'uuid', qq({"k":"\U$uuid"}), $uuid);
tells('uuid: upper and lower case meet', 'uuid', [201, '201 replayed'], 1,
    [qq({"k":"$uuid"})], [qq({"k":"\U$uuid"})]);
bad_key('uuid: another string', 'uuid', '{"k":"x"}');
bad_key('uuid: too long', 'uuid', qq({"k":"${uuid}0"}));

# ---- which source ---------------------------------------------------------

sub keyed ($body, $key = undef) {
    return [$body, headers => [defined $key ? ('Idempotency-Key' => $key) : ()]];
}

# The body does not count here: whether requests meet is up to the key.
tells('header first: the header decides', 'header-first', [201, '201 replayed', 201], 2,
    keyed('{"k":"a"}', 'h'), keyed('{"k":"b"}', 'h'), keyed('{"k":"a"}', 'i'));
tells('header first: without it the body', 'header-first', [201, '201 replayed', 201], 2,
    keyed('{"k":"a"}'), keyed('{"k":"a","x":1}'), keyed('{"k":"b"}'));
tells('header first: one key, wherever it is', 'header-first', [201, '201 replayed', '201 replayed'], 1,
    keyed('{"k":"a"}'), keyed('{}', 'a'), keyed('{}', '"a";p=1'));
tells('header first: a bad header is not made up for', 'header-first', ['400 key_invalid', 201], 1,
    keyed('{"k":"a"}', ''), keyed('{"k":"a"}'));
tells('header first: what the body has then does not matter', 'header-first', [201, '201 replayed'], 1,
    keyed('{"k":1}', 'h'), keyed('{"k', 'h'));
tells('header first: neither', 'header-first', [201, 201], 2, (keyed('{}')) x 2);

tells('body first: the body decides', 'body-first', [201, '201 replayed', 201], 2,
    keyed('{"k":"a"}', 'h'), keyed('{"k":"a"}', 'i'), keyed('{"k":"b"}', 'h'));
tells('body first: without it the header', 'body-first', [201, '201 replayed', '201 replayed', 201], 2,
    keyed('{}', 'h'), keyed('{"x":1}', 'h'), keyed('', 'h'), keyed('{}', 'i'));
tells('body first: a body that cannot be read is not made up for', 'body-first', ['400 key_invalid'], 0,
    keyed('{"k', 'h'));
tells('body first: nor is an encoded one', 'body-first', ['400 key_invalid'], 0,
    ['{"k":"a"}', headers => ['Idempotency-Key' => 'h', 'Content-Encoding' => 'gzip']]);
tells('header first: an encoded body does not matter', 'header-first', [201, '201 replayed'], 1,
    (['{"k":"a"}', headers => ['Idempotency-Key' => 'h', 'Content-Encoding' => 'gzip']]) x 2);
tells('body first: a bad member is not made up for', 'body-first', ['400 key_invalid', 201], 1,
    keyed('{"k":1}', 'h'), keyed('{}', 'h'));
tells('body first: a bad header does not matter then', 'body-first', [201, '201 replayed'], 1,
    keyed('{"k":"a"}', ''), keyed('{"k":"a"}'));
tells('body first: a bad header where the body has none', 'body-first', ['400 key_invalid'], 0,
    keyed('{}', ''));
tells('body first: a header sent twice where the body has none', 'body-first', ['400 key_invalid'], 0,
    ['{}', headers => ['Idempotency-Key' => 'a', 'Idempotency-Key' => 'a']]);
tells('body first: neither', 'body-first', [201, 201], 2, (keyed('{}')) x 2);
is_key('body first: the header is the key of another type', 'body-first', 'k=x', 'h', type => 'text/plain',
    headers => ['Idempotency-Key' => 'h']);

tells('two pointers: the first decides', 'two', [201, '201 replayed', 201], 2,
    ['{"new":{"k":"a"},"k":"b"}'], ['{"new":{"k":"a"},"k":"c"}'], ['{"new":{"k":"c"},"k":"b"}']);
tells('two pointers: the second where the first finds nothing', 'two', [201, '201 replayed'], 1,
    ['{"new":{},"k":"b"}'], ['{"new":"x","k":"b"}']);
tells('two pointers: the text breaks before the first is found', 'two', ['400 key_invalid'], 0,
    ['{"k":"b","new":{']);
tells('two pointers: the second stands there twice, the first once', 'two', [201], 1,
    ['{"k":"b","new":{"k":"a"},"k":"c"}']);
tells('two pointers: the first is bad', 'two', ['400 key_invalid'], 0, ['{"new":{"k":1},"k":"b"}']);

{
    my $uri = at('variable-first');
    is_deeply([map({ key_of(ask("$uri$_", '{"k":"b"}')) } '?k=v', '?k=', '')], ['v', 'b', 'b'],
        'a variable first: empty is not present');
}

# ---- around the key -------------------------------------------------------

# Keys in bodies of methods that are not protected are nobody's concern.
tells('GET is not looked into', $_, [201, 201], 2,
    (['{"k":"x"}', method => 'GET', headers => ['X-Execute' => 1]]) x 2) for 'key', 'strict';
tells('OPTIONS is not looked into', 'key', [201, 201], 2, (['{"k":"x"}', method => 'OPTIONS']) x 2);

tells('each scope has its own', 'scoped', [201, 201, '201 replayed'], 2,
    map { ['{"k":"x"}', headers => ['X-User' => $_]] } 'a', 'b', 'a');
tells('without a scope it passes', 'scoped', [201, 201], 2, (['{"k":"x"}']) x 2);
tells('bypassed', 'bypass', [201, 201], 2, (['{"k":"x"}', headers => ['X-Bypass' => 1]]) x 2);
tells('bypassed: a bad one too', 'bypass', [201], 1, ['{"k":1}', headers => ['X-Bypass' => 1]]);
tells('dry run: nothing is refused', 'dry', [201, 201, 201], 3,
    ['{"k":"x"}'], ['{"k":"x","a":1}'], ['{"k":1}']);

{
    my $uri = at('key');
    my $body = qq({ "k" : "to\\u006ben",\n"a": 1.00 }\n);
    my $got = ask($uri, $body);
    my ($line) = grep {/ \Q$uri\E /} ledger_lines();
    is(key_of($got), 'token', '$idempotency_key is unescaped');
    like($line, qr/ token=token .* body=${\sha1_hex($body)} length=${\length $body}$/,
        'the application gets the key by variable, and the body as it came');
}

# ---- every way to send and to read ---------------------------------------

my $large = '{"rows":[' . join(',', map {"{\"id\":$_,\"text\":\"row number $_\"}"} 1 .. 80_000)
    . '],"k":"large"}';
cmp_ok(length $large, '>', 2_500_000, 'a large body');

for my $location ('key', 'file', 'mirror', 'small', 'unbuffered') {
    for my $chunked (0, 1) {
        my $how = "$location" . ($chunked ? ', chunked' : '');
        is_key("$how: a small body", $location, '{"k":"small"}', 'small', chunked => $chunked);
        is_key("$how: a large body", $location, $large, 'large', chunked => $chunked);
        no_key("$how, a large body", $location, $large =~ s/"k":/"q":/r, chunked => $chunked);
    }
    my $uri = at($location);
    ask($uri, $large);
    my ($line) = grep {/ \Q$uri\E /} ledger_lines();
    like($line, qr/ body=${\sha1_hex($large)} length=${\length $large}$/,
        "$location: the body goes on unchanged");
    is(said(ask($uri, $large =~ s/number 80000/number 80001/r), number => 0), '422 key_reused',
        "$location: another large body");
}

# Beyond the size up to which a body is parsed its bytes are compared.
my $huge = '{"rows":["' . 'y' x 5_000_000 . '\ud83d"],"k":"huge"}';

for my $location ('key', 'raw', 'file', 'mirror', 'small', 'raw-small') {
    for my $chunked (0, 1) {
        my $how = "$location, 5 MB" . ($chunked ? ', chunked' : '');
        is_key("$how", $location, $huge, 'huge', chunked => $chunked);
        bad_key("$how, without its end", $location, $huge =~ s/,"k".*//r, chunked => $chunked);
        bad_key("$how, the key twice", $location, $huge =~ s/\}$/,"k":1}/r, chunked => $chunked);
    }
    no_key("$location, 5 MB", $location, $huge =~ s/"k":/"q":/r);
}

for my $body ('{"k":"small"}', $large) {
    my $uri = at('key');
    my $h2 = Http2->new($ng->port(2));
    my @got = map { $h2->request('POST', $uri, headers => ['content-type' => 'application/json'],
        body => $body) } 1, 2;
    is_deeply([map({ said($_, number => 0) } @got), ledger_count(uri => $uri)], [201, '201 replayed', 1],
        'HTTP/2, ' . length($body) . ' bytes');
    is(said($h2->request('POST', $uri, headers => ['content-type' => 'application/json'],
        body => '{"k":1}'), number => 0), '400 key_invalid', 'HTTP/2, a bad key');
    $h2->close;
}

# Requests that wait for their bodies do not hinder others, and meet.
{
    my $uri = at('key');
    my @got = parallel(8, sub ($n) {
        ($ng->port, 'POST', $uri, headers => ['Content-Type' => 'application/json'],
            body => $n % 2 ? '{"k":"small"}' : $large);
    });
    is(scalar(grep { $_->{status} !~ /^(?:201|409)$/ } @got), 0, 'many at once: run, replayed or told to wait');
    is(ledger_count(uri => $uri), 2, 'many at once: each key once');
}

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;

done_testing();
