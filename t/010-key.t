# What spells a key, and what happens with one that is misspelt.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use JSON::PP ();
use Test::More;
use lib 't/lib';
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
log_format key escape=none '$request_uri [$idempotency_key] $idempotency_status';
access_log %%DIR%%/access.log key;
idempotency_scope none;
idempotency on;
proxy_set_header X-Token $idempotency_key;

server {
    listen 127.0.0.1:%%PORT%%;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }

    location /length/ {
        idempotency_key_length 3-5;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /long/ {
        idempotency_key_length 1-4096;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /variable/ {
        idempotency_key $http_x_key;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /json/ {
        idempotency_key json:/key;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /uuid/ {
        idempotency_key_format uuid;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF

my $UUID = '8e03978e-40d5-43e8-bc93-6894a57f9324';
my $cases = 0;

# A path of its own for each case: no case meets another's record.
sub fresh ($place) { return "$place/" . ++$cases }

sub ask ($uri, $headers) {
    return request($ng->port, 'POST', $uri, headers => ref $headers ? $headers
        : ['Idempotency-Key' => $headers]);
}

sub code ($response) {
    my ($code) = $response->{body} =~ /"code":"(\w+)"/;
    return join ' ', $response->{status}, $code // ();
}

sub runs ($uri) { return ledger_count(uri => $uri) }

sub replayed ($response) { return $response->{headers}{'idempotent-replayed'}[0] // 'no' }

# What nginx logs of a request comes after its answer.
sub logged ($uri) {
    my $line = qr/^\Q$uri\E \[(.*)\] (\S+)$/m;
    wait_until(sub { $ng->access_log =~ $line }, 5, "a log line of $uri");
    return [$ng->access_log =~ $line];
}

sub same ($place, $one, $two, $claim) {
    my $uri = fresh($place);
    my @got = map { ask($uri, $_) } $one, $two;
    is_deeply([map({ $_->{status} } @got), replayed($got[1]), runs($uri)],
        [201, 201, 'true', 1], $claim);
}

sub different ($place, $one, $two, $claim) {
    my $uri = fresh($place);
    my @got = map { ask($uri, $_) } $one, $two;
    is_deeply([map({ $_->{status} } @got), replayed($got[1]), runs($uri)],
        [201, 201, 'no', 2], $claim);
}

sub valid ($place, $key, $claim) { same($place, $key, $key, $claim) }

sub invalid ($place, $headers, $claim) {
    my $uri = fresh($place);
    my $got = ask($uri, $headers);
    my $type = $got->{headers}{'content-type'}[0];
    is_deeply([code($got), $type, runs($uri)], ['400 key_invalid', 'application/problem+json', 0],
        $claim);
}

# ---- spelling -------------------------------------------------------------

same('', 'abc-1', '"abc-1"', 'quoted and bare spell the same key');
same('', '"abc"', '"abc";a;b=1;c=-1.5;d="x\"y";e=tok/en:*;f=?1;g=:YQ==:; h=2',
    'parameters are ignored');
same('', 'a\b', '"a\\\\b"', 'an escaped backslash is a backslash');
same('', " \t abc \t ", 'abc', 'white space around a key does not belong to it');
same('', '"a b, c"', '"a b, c"', 'a quoted key may hold spaces and commas');
same('', 'a;b', '"a;b"', 'a bare key has no parameters');
same('', join('', grep { !/[",]/ } map {chr} 0x21 .. 0x7e), '"'
    . join('', map { /\\/ ? '\\\\' : $_ } grep { !/[",]/ } map {chr} 0x21 .. 0x7e) . '"',
    'all printable characters');
different('', 'abc', 'ABC', 'keys differ by case');
different('', 'abc', 'abcd', 'keys differ by length');
different('', '"a"', '" a"', 'white space inside the quotes belongs to the key');

invalid('', '', 'an empty header');
invalid('', '""', 'an empty string');
invalid('', '"abc', 'a string without an end');
invalid('', 'abc"', 'a quote at the end of a bare key');
invalid('', 'a b', 'a space in a bare key');
invalid('', 'a,b', 'a comma in a bare key');
invalid('', '"abc" def', 'something behind a string');
invalid('', '"a", "b"', 'two strings');
invalid('', '"a\bc"', 'an escape of another character');
invalid('', '"abc\"', 'an escaped closing quote');
invalid('', '"abc";', 'a parameter without a name');
invalid('', '"abc";A=1', 'a parameter name in capitals');
invalid('', '"abc";a=', 'a parameter without its value');
invalid('', "a\tb", 'a tab in a bare key');
invalid('', "\"a\tb\"", 'a tab in a string');
invalid('', "a\x{1}b", 'a control character');
invalid('', "a\x{7f}", 'DEL');
invalid('', "caf\xc3\xa9", 'a letter beyond ASCII');
invalid('', "\"caf\xc3\xa9\"", 'a letter beyond ASCII in a string');
invalid('', ['Idempotency-Key' => 'a', 'Idempotency-Key' => 'a'], 'the header twice, the same');
invalid('', ['Idempotency-Key' => 'a', 'idempotency-key' => 'b'], 'the header twice, different');
invalid('', ['Idempotency-Key' => 'a', 'Idempotency-Key' => ''], 'the header twice, once empty');

# ---- length and format ----------------------------------------------------

valid('', 'k' x 255, '255 characters are the most by default');
invalid('', 'k' x 256, '256 characters are too many');
valid('', '"' . '\"' x 255 . '"', 'escapes do not count for the length');
valid('', 'k', 'one character is enough by default');
invalid('/length', 'ab', 'shorter than the least length');
valid('/length', 'abc', 'the least length');
valid('/length', '"abcde"', 'the greatest length, quoted');
invalid('/length', 'abcdef', 'longer than the greatest length');
valid('/long', 'k' x 4096, 'a key of 4096 characters where that is allowed');
different('/long', 'k' x 4095 . 'a', 'k' x 4095 . 'b', 'long keys differ by their last character');

same('/uuid', $UUID, qq("\U$UUID\E"), 'UUIDs are compared whatever their case');
invalid('/uuid', 'abc', 'no UUID');
invalid('/uuid', "{$UUID}", 'a UUID in braces');
invalid('/uuid', $UUID =~ tr/-//dr, 'a UUID without dashes');
invalid('/uuid', "${UUID}0", 'a UUID and one more digit');
invalid('/uuid', $UUID =~ s/^8/g/r, 'a UUID with a letter that is no digit');

# ---- which rule a key broke -----------------------------------------------

my $MALFORMED = 'The value of the idempotency key is malformed. Send a string in quotes, or a value'
    . ' without spaces, quotes and commas.';
my $REPEATED = 'The idempotency key was sent more than once. Send it once.';
my $EMPTY = 'The idempotency key is empty. Send a key, or send the request without one.';
my $ASCII = 'The idempotency key must have printable ASCII characters only.';
my $NO_UUID = 'The idempotency key must be a UUID.';

for (
    ['', '', $EMPTY],
    ['', '""', $EMPTY],
    ['', '"abc', $MALFORMED],
    ['', 'a b', $MALFORMED],
    ['', "caf\xc3\xa9", $MALFORMED],
    ['', ['Idempotency-Key' => 'a', 'Idempotency-Key' => 'a'], $REPEATED],
    ['', 'k' x 256, 'The idempotency key is too long. It must have at most 255 characters.'],
    ['/length', 'ab', 'The idempotency key is too short. It must have at least 3 characters.'],
    ['/length', 'abcdef', 'The idempotency key is too long. It must have at most 5 characters.'],
    ['/uuid', 'abc', $NO_UUID],
    ['/variable', ['X-Key' => "caf\xc3\xa9"], $ASCII],
    ['/variable', ['X-Key' => 'k' x 256],
        'The idempotency key is too long. It must have at most 255 characters.'],
) {
    my ($place, $headers, $detail) = @$_;
    my $got = ask(fresh($place), $headers);
    is(JSON::PP::decode_json($got->{body})->{detail}, $detail, $detail);
}

for my $json ('{"key":1}', '{"key":"' . 'k' x 256 . '"}') {
    my $got = request($ng->port, 'POST', fresh('/json'),
        headers => ['Content-Type' => 'application/json'], body => $json);
    is(JSON::PP::decode_json($got->{body})->{detail}, 'The idempotency key in the request body must'
        . ' be a string of at most 255 characters.', 'no string, or too long: ' . substr $json, 0, 10);
}

# ---- $idempotency_key -----------------------------------------------------

{
    my $uri = fresh('');
    ask($uri, '"a\"b \\\\c";p=1');
    is_deeply(logged($uri), ['a"b \c', 'NEW'], '$idempotency_key is unquoted in the log');
    like((ledger_lines())[-1], qr/ token=a"b%20\\c /, 'and on the way to the application');

    $uri = fresh('');
    ask($uri, []);
    is_deeply(logged($uri), ['', '-'], '$idempotency_key is empty without a key');
}

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;
done_testing();
