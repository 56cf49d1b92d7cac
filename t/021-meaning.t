# Which bodies mean the same: a retry that does is replayed, one that does not
# is refused, and the application runs once either way.

use v5.36;

use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

# The path belongs to the fingerprint, so each way to read a body has a port
# of its own, and all share their records.
my %PORT = (plain => 1, file => 2, mirror => 3, 'mirror from file' => 4, http2 => 5);
my %READ = (
    plain => '', http2 => '', file => 'client_body_in_file_only clean;',
    mirror => 'mirror /mirror;',
    'mirror from file' => 'mirror /mirror; client_body_buffer_size 1k;',
);

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

# What counts, by location.
my %RULES = (
    '/raw' => 'idempotency_fingerprint raw;',
    '/off' => 'idempotency_fingerprint off;',
    '/raw-key' => 'idempotency_fingerprint raw; idempotency_key json:/none header:Idempotency-Key;',
    '/raw-rpc' => 'idempotency_fingerprint raw; idempotency_jsonrpc on;',

    '/no-time' => 'idempotency_fingerprint_exclude /meta/sent_at;',
    '/no-time/inherits' => '',
    '/no-time/other' => 'idempotency_fingerprint_exclude /meta/trace;',
    '/no-positions' => 'idempotency_fingerprint_exclude /items/*/position;',
    '/no-second' => 'idempotency_fingerprint_exclude /items/1/note;',
    '/no-level' => 'idempotency_fingerprint_exclude /*/x;',
    '/no-three' => 'idempotency_fingerprint_exclude /a /b; idempotency_fingerprint_exclude /c;',
    '/no-escaped' => 'idempotency_fingerprint_exclude /a~1b /c~0d /;',
    '/no-time-raw' => 'idempotency_fingerprint raw; idempotency_fingerprint_exclude /t;',

    '/only' => 'idempotency_fingerprint_include /amount /to/account;',
    '/only/inherits' => '',
    '/only/other' => 'idempotency_fingerprint_include /to;',
    '/only-sum' => 'idempotency_fingerprint_include /amount;'
        . ' idempotency_fingerprint_include /currency;',
    '/only-ids' => 'idempotency_fingerprint_include /items/*/id;',
    '/only-first' => 'idempotency_fingerprint_include /items/0;',

    '/both' => 'idempotency_fingerprint_include /payment;'
        . ' idempotency_fingerprint_exclude /payment/sent_at /amount;',
);

sub rules ($reading) {
    my %nested;
    push @{ $nested{ s{/[^/]+$}{}r } }, $_ for sort keys %RULES;
    my $location;
    $location = sub ($path) {
        my $inner = join '', map { $location->($_) } @{ $nested{$path} // [] };
        return "location $path/ { $RULES{$path} $reading $PASS $inner }\n";
    };
    return join '', map { $location->($_) } @{ $nested{''} };
}

sub server ($name) {
    my $h2 = $name eq 'http2' ? ' http2' : '';
    my $rules = rules($READ{$name});
    return <<CONF;
server {
    listen 127.0.0.1:%%PORT$PORT{$name}%%$h2;
    location / { $READ{$name} $PASS }
    $rules
    location = /mirror {
        internal;
        idempotency off;
        proxy_method GET;
        $PASS
    }
}
CONF
}

my $ng = Nginx->start(http => <<'CONF' . join '', map { server($_) } sort keys %PORT);
client_max_body_size 20m;
idempotency_scope none;
idempotency_scope_route off;
idempotency on;
CONF

# ---- requests -------------------------------------------------------------

my $keys = 0;

# A request is a hash: type, body, uri, by (a server), headers, chunked.
sub json ($body, %more) { return { type => 'application/json', body => $body, %more } }

sub form ($body, %more) {
    return { type => 'application/x-www-form-urlencoded', body => $body, %more };
}

sub text ($body, %more) { return { type => 'text/plain', body => $body, %more } }

sub multipart ($boundary, $parts, %more) {
    my $body = join '', map {"--$boundary\r\n$_\r\n"} @$parts;
    return { type => "multipart/form-data; boundary=$boundary", body => "$body--$boundary--\r\n",
        %more };
}

sub field ($name, $value) { return qq(Content-Disposition: form-data; name="$name"\r\n\r\n$value) }

sub json_at ($uri, @bodies) { return map { json($_, uri => "$uri/x") } @bodies }

sub send_it ($key, $what) {
    my $server = $what->{by} // 'plain';
    my @headers = ('Idempotency-Key' => $key, @{ $what->{headers} // [] });
    push @headers, 'Content-Type' => $what->{type} if defined $what->{type};
    my $port = $ng->port($PORT{$server});
    my $uri = $what->{uri} // '/x';
    return request($port, 'POST', $uri, headers => \@headers, body => $what->{body},
        chunked => $what->{chunked}, timeout => 30) if $server ne 'http2';

    my $h2 = Http2->new($port);
    my $got = $h2->request('POST', $uri, headers => \@headers, body => $what->{body});
    $h2->close;
    return $got;
}

# ---- checks ---------------------------------------------------------------

sub meet ($wanted, $claim, @requests) {
    local $Test::Builder::Level = $Test::Builder::Level + 2;
    my $key = 'k' . ++$keys;
    my @got = ((map { said(send_it($key, $_), number => 0) } @requests), ledger_count(key => $key));
    return is_deeply(\@got, [201, ($wanted) x $#requests, 1], $claim);
}

sub same ($claim, @requests) { meet('201 replayed', "same: $claim", @requests) }

# Each differs from each.
sub differ ($claim, @requests) {
    for my $n (1 .. $#requests) {
        meet('422 key_reused', "different: $claim" . ($n > 1 ? ", $n" : ''),
            @requests[$n - 1 .. $#requests]);
    }
}

# As bytes it meets the same bytes of a type that has no meaning, and another
# spelling is another body.
sub bytes ($claim, $one, $respelled = undef) {
    same("$claim: the same bytes", $one, $one, text($one->{body}));
    differ("$claim: other bytes", $one, { %$one, body => $respelled // " $one->{body}" });
}

# ---- JSON -----------------------------------------------------------------

same('members in any order', map { json($_) } '{"a":1,"b":[2],"c":{"d":3,"e":4}}',
    '{"c":{"e":4,"d":3},"b":[2],"a":1}');
same('whitespace', map { json($_) } '{"a":[1,2]}', qq( {\n\t"a" : [ 1 ,\r\n 2 ] } \n));
same('escapes', map { json($_) } '{"caf\u00e9":"A/\ud83d\ude00\t"}',
    qq({"caf\xc3\xa9":"\\u0041\\/\xf0\x9f\x98\x80\\u0009"}));
same('spellings of one', map { json($_) } qw([1] [1.0] [1e0] [1E+0] [10e-1] [0.1e1] [100.00e-2]));
same('spellings of zero', map { json($_) } qw([0] [-0] [0.0] [0e5] [-0.00E-7]));
same('spellings of a hundred', map { json($_) } qw([100] [1e2] [100.0] [0.01e4]));
same('spellings beyond 64 bits', map { json($_) }
    '[123456789012345678901234567890]', '[12345678901234567890123456789e1]');
same('spellings beyond a double', map { json($_) } '[1e400]', '[1' . '0' x 400 . ']');
same('a document that is no object', map { json($_) } '"A"', ' "\u0041" ');

differ('numbers next to each other', map { json("[$_]") }
    qw(9007199254740992 9007199254740993 9007199254740993.5));
differ('numbers beyond 64 bits', map { json("[$_]") }
    qw(18446744073709551616 18446744073709551617 1e400 1e401 -1e400));
differ('decimal fractions', map { json("[$_]") } qw(0.1 0.10000000000000001 0.1000000000000000055));
differ('signs', map { json("[$_]") } qw(1 -1 1e-1 1e1));
differ('arrays in another order', map { json($_) } '[1,2]', '[2,1]', '[[1],2]', '[1,[2]]');
differ('nested arrays in another order', map { json($_) } '{"a":[[1,2],[3]]}', '{"a":[[3],[1,2]]}',
    '{"a":[[2,1],[3]]}');
differ('null, absent, false, empty', map { json($_) } '{"a":null}', '{}', '{"a":false}',
    '{"a":""}', '{"a":[]}', '{"a":{}}', '{"a":0}');
differ('a number and a string', map { json($_) } '{"a":1}', '{"a":"1"}', '{"1":"a"}');
differ('true and its name', map { json($_) } '[true]', '["true"]', '["t"]', '[false]');
differ('letters by case', map { json($_) } '{"a":"b"}', '{"A":"b"}', '{"a":"B"}');
differ('code points that look alike', json("[\"\xc3\xa9\"]"), json("[\"e\xcc\x81\"]"));
differ('values that moved between members', map { json($_) } '{"a":1,"b":2}', '{"a":2,"b":1}',
    '{"ab":12}', '{"a":"1,\"b\":2"}');
differ('a level more', map { json($_) } '{"a":{"b":1}}', '{"a":{},"b":1}', '{"a":[{"b":1}]}');
differ('an amount', map { json($_) } '{"to":"x","amount":100}', '{"amount":1000,"to":"x"}');

bytes('a member twice', json('{"a":1,"a":2}'));
bytes('a member twice, escaped', json('{"a":1,"\u0061":1}'));
bytes('a member twice, deep inside', json('[{"b":[{"a":1,"b":2,"a":1}]}]'));
bytes('cut off', json('{"a":1'));
bytes('a trailing comma', json('{"a":1,}'));
bytes('something behind it', json('{"a":1} x'));
bytes('two documents', json('{"a":1}{"a":1}'));
bytes('no document at all', json(''));
bytes('only whitespace', json(' '));
bytes('a comment', json('{"a":1 /* one */}'));
bytes('single quotes', json("{'a':1}"));
bytes('a leading zero', json('[01]'));
bytes('no digit after the point', json('[1.]'));
bytes('NaN', json('[NaN]'));
bytes('a byte order mark', json("\xef\xbb\xbf{\"a\":1}"), "\xef\xbb\xbf{ \"a\":1}");
bytes('UTF-16', json("\xff\xfe{\0}\0"));
bytes('half of a surrogate pair', json('["\ud800"]'));
bytes('the other half first', json('["\udc00\ud800"]'));
bytes('UTF-8 that is cut off', json("[\"\xc3\"]"));
bytes('UTF-8 too long', json("[\"\xc0\xaf\"]"));
bytes('a NUL', json("{\"a\":1}\0"));
bytes('a control character in a string', json("[\"\x01\"]"));
bytes('an exponent beyond all bounds', json('[1e99999999999999999999]'));
bytes('nesting over 512', json('[' x 513 . ']' x 513), '[' x 513 . ' ' . ']' x 513);
same('nesting of 512', json('[' x 512 . ']' x 512), json('[' x 512 . ' ' . ']' x 512));
bytes('nesting over all bounds', json('[' x 200_000));

# ---- which type -----------------------------------------------------------

my @spelled = ('{"a":1,"b":2}', '{ "b":2, "a":1 }');

for my $type ('application/json', 'application/json; charset=utf-8', 'application/json;charset="utf-8"',
    'APPLICATION/Json', 'application/problem+json', 'application/vnd.api+json; version=1',
    'Application/VND.Shop.Order+JSON', 'text/x+json') {
    same("JSON by the type $type", map { json($_, type => $type) } @spelled);
}
same('all types of JSON are one kind', json($spelled[0]),
    json($spelled[1], type => 'application/vnd.api+json'),
    json($spelled[0], type => 'Application/JSON ; charset=UTF-8'));
same('JSON that is encoded as identity', json($spelled[0]),
    json($spelled[1], headers => ['Content-Encoding' => 'identity']),
    json($spelled[1], headers => ['Content-Encoding' => 'Identity']));

for my $type ('text/plain', 'application/octet-stream', 'application/jsonp', 'application/json5',
    'application/x-json', 'application/json-patch', 'json', 'text/json-seq', undef) {
    bytes('JSON by the type ' . ($type // '(none)'), json($spelled[0], type => $type));
}
for my $encoding ('gzip', 'br', 'x-unknown', 'identity, gzip') {
    my @headers = (headers => ['Content-Encoding' => $encoding]);
    bytes("JSON encoded as $encoding", json($spelled[0], @headers));
    bytes("a form encoded as $encoding", form('a=1&b=2', @headers), 'b=2&a=1');
}
same('raw: the same bytes', json($spelled[0], uri => '/raw/x'), text($spelled[0], uri => '/raw/x'));
differ('raw: other spellings', map { json($_, uri => '/raw/x') } @spelled);
differ('raw: a form in another order', map { form($_, uri => '/raw/x') } 'a=1&b=2', 'b=2&a=1');
differ('raw: another boundary', map { multipart($_, [field('a', 1)], uri => '/raw/x') } 'x', 'y');
same('off: whatever it is', json($spelled[0], uri => '/off/x'), json('[', uri => '/off/x'),
    form('a=1', uri => '/off/x'), multipart('x', [field('a', 1)], uri => '/off/x'));

# ---- forms ----------------------------------------------------------------

same('pairs in any order', map { form($_) } 'a=1&b=2&c=3', 'c=3&a=1&b=2');
same('escapes of letters', map { form($_) } 'name=A%20b', 'n%61me=%41+b', 'name=A+%62');
same('escapes by case', map { form($_) } 'a=%c3%A9', 'a=%C3%a9', "a=\xc3\xa9");
same('an empty value', map { form($_) } 'a&b=1', 'a=&b=1', '&a=&&b=1&');
same('repeated names in their order', map { form($_) } 'a=1&b=x&a=2', 'a=1&a=2&b=x', 'b=x&a=1&a=2');
same('a form by the type with a charset', form('a=1&b=2'),
    form('b=2&a=1', type => 'Application/X-WWW-Form-URLencoded; charset=utf-8'));

differ('repeated names in another order', map { form($_) } 'a=1&a=2', 'a=2&a=1', 'a=1', 'a=1&a=1');
same('lists in their order', map { form($_) } 'a[]=1&b[x]=2&a[]=3', 'b[x]=2&a[]=1&a[]=3',
    'a%5B%5D=1&a[]=3&b%5Bx%5D=2');

# Names that applications put together: what they make of them is in the order.
my @TOGETHER = (
    ['PHP: a list with and without an index', [['a[0]', 'x'], ['a[]', 'y']]],
    ['Rails: a list of objects', [['items[][name]', 'A'], ['items[][price]', 1], ['items[][name]', 'B']]],
    ['PHP: a dot and an underscore', [['a.b', 1], ['a_b', 2]]],
    ['PHP: a space and an underscore', [['a b', 1], ['a_b', 2]]],
    ['upper and lower case', [['Amount', 1], ['amount', 2]]],
    ['a value and a list', [['a', 1], ['a[]', 2]]],
);

for my $case (@TOGETHER) {
    my ($what, $pairs) = @$case;
    my ($first, @rest) = @$pairs;
    for my $other ([@rest, $first], [@rest[0 .. $#rest - 1], $first, $rest[-1]]) {
        next if "@{ $other->[0] }" eq "@$first";
        differ("$what: another order", map { form(join '&', map { $_->[0] =~ tr/ /+/r . "=$_->[1]" } @$_) }
            $pairs, $other);
        differ("$what: another order of parts", map { multipart('x', [map { field(@$_) } @$_]) } $pairs, $other);
    }
}

differ('values that moved', map { form($_) } 'a=1&b=2', 'a=2&b=1', 'a=1%26b=2',
    'a%3D1=&b=2');
differ('a plus', map { form($_) } 'a=1%2B1', 'a=1+1', 'a=11');
differ('case', map { form($_) } 'a=b', 'A=b', 'a=B');
differ('a pair more', map { form($_) } 'a=1', 'a=1&b', 'a=1&b=0');

bytes('a form with a broken escape', form('b=%zz&a=1'), 'a=1&b=%zz');
bytes('a form with half an escape', form('b=1&a=%4'), 'a=%4&b=1');
bytes('a form with a semicolon', form('b=1;c&a=2'), 'a=2&b=1;c');

# ---- multipart ------------------------------------------------------------

my $file = qq(Content-Disposition: form-data; name="f"; filename="a.pdf"\r\n)
    . "Content-Type: application/pdf\r\n\r\n%PDF";
my @parts = (field('amount', 100), $file);

same('another boundary', multipart('x', \@parts), multipart('----WebKitFormBoundaryA1b2', \@parts));
same('a boundary in quotes', multipart('x', \@parts),
    { %{ multipart('a b', \@parts) }, type => 'Multipart/Form-Data; charset=utf-8; BOUNDARY="a b"' });
same('header fields of a part in another order', multipart('x', \@parts),
    multipart('y', [$parts[0], "Content-Type: application/pdf\r\n"
        . qq(Content-Disposition: form-data; name="f"; filename="a.pdf"\r\n\r\n%PDF)]));
same('names of header fields in another case', multipart('x', \@parts),
    multipart('x', [map {s/^Content-D/content-d/r =~ s/Content-Type/CONTENT-TYPE/r} @parts]));
same('content that looks like a boundary', multipart('x', [field('a', "1\r\n--y\r\n\r\n-\r\n--")]),
    multipart('z', [field('a', "1\r\n--y\r\n\r\n-\r\n--")]));

differ('a file by another name', multipart('x', \@parts),
    multipart('y', [$parts[0], $file =~ s/a\.pdf/b.pdf/r]),
    multipart('z', [$parts[0], $file =~ s/; filename="a\.pdf"//r]));
differ('another content', map { multipart($_->[0], [field('amount', $_->[1])]) }
    [x => 100], [y => 1000], [z => "100\r\n"], [u => '']);
differ('another field name', map { multipart($_, [field($_, 1)]) } 'a', 'b', 'A');
differ('another content type of a part', multipart('x', [$file]),
    multipart('y', [$file =~ s/pdf\r/zip/r]), multipart('z', [$file =~ s/Content-Type.*\r\n//r]));
differ('parts in another order', multipart('x', \@parts), multipart('y', [reverse @parts]),
    multipart('z', [$parts[0]]), multipart('u', [@parts, $parts[1]]));
differ('a part inside another\'s content', multipart('x', [field('a', 1), field('b', 2)]),
    multipart('y', [field('a', "1\r\n--x\r\n" . field('b', 2))]));

for my $broken (
    ['without its end', sub { $_[0] =~ s/--\w+--\r\n$//r }],
    ['with something before it', sub {"preamble\r\n$_[0]"}],
    ['with something after it', sub {"$_[0]epilogue"}],
    ['with bare line feeds', sub { $_[0] =~ s/\r\n/\n/gr }],
    ['with a part that has no name', sub { $_[0] =~ s/Content-Disposition.*\r\n//r }],
    ['with another boundary than its type says', sub { $_[0] =~ s/--(\w+)/--n$1/gr }],
    ['without parts', sub {''}],
) {
    my ($what, $break) = @$broken;
    my ($x, $y) = map { multipart($_, \@parts) } 'x', 'y';
    $_->{body} = $break->($_->{body}) for $x, $y;
    same("multipart $what: the same bytes", $x, $x, text($x->{body}));
    differ("multipart $what: another boundary", $x, $y) if $x->{body} ne $y->{body};
}
bytes('multipart without a boundary', { %{ multipart('x', \@parts) }, type => 'multipart/form-data' },
    multipart('y', \@parts)->{body});
bytes('multipart of another kind', { %{ multipart('x', \@parts) }, type => 'multipart/mixed; boundary=x' },
    multipart('y', \@parts)->{body});

# ---- no kind is another ---------------------------------------------------

{
    my $one = multipart('x', [field('a', 1)]);
    differ('the same bytes of other types: a form', form('a=1'), text('a=1'));
    differ('the same bytes of other types: JSON', json('1'), text('1'), form('1'));
    differ('the same bytes of other types: JSON that is a form', json('"a"'), form('"a"'), text('"a"'));
    differ('the same bytes of other types: multipart', $one, text($one->{body}));
    differ('the same pairs of other types', form('a=1'), json('{"a":"1"}'), $one);
    differ('bytes that spell the form of JSON', json('{"a":1}'), text("{\x81a1;}"));
}

# ---- every way to send and to read ---------------------------------------

my @WAYS = ({ by => 'plain' }, { by => 'plain', chunked => 1 }, { by => 'file' },
    { by => 'mirror' }, { by => 'mirror', chunked => 1 }, { by => 'mirror from file' },
    { by => 'http2' });

sub ways ($claim, $one, $two, $other) {
    for my $way (@WAYS) {
        my $name = "$claim by $way->{by}" . ($way->{chunked} ? ', chunked' : '');
        same($name, $one, { %$two, %$way }, $one);
        same("$name first", { %$one, %$way }, $two);
        differ($name, $one, { %$other, %$way });
    }
}

ways('JSON', map { json($_) } @spelled, '{"a":1,"b":3}');
ways('JSON of 20 kB', map { json($_) } '{"a":"' . 'x' x 20_000 . '","b":1}',
    '{"b":1.0,"a":"' . 'x' x 20_000 . '"}', '{"b":1.0,"a":"' . 'x' x 20_001 . '"}');
ways('a form', map { form($_) } 'a=1&b=2', 'b=2&a=%31', 'b=2&a=2');
ways('multipart', multipart('x', \@parts), multipart('y', \@parts),
    multipart('y', [field('amount', 101), $file]));
ways('JSON that is broken', json('{"a":1'), json('{"a":1'), json('{"a":2'));
ways('multipart that is broken', map { { type => 'multipart/form-data; boundary=x', body => $_ } }
    "--x\r\n1", "--x\r\n1", "--x\r\n2");

# Whoever reads the body first, and whatever else is looked for in it.
for my $uri ('/raw/x', '/raw-key/x', '/raw-rpc/x') {
    for my $server ('plain', 'mirror', 'mirror from file') {
        my ($one, $two) = map { json($_, uri => $uri, by => $server) } '{"a":1}', '{"a":2}';
        differ("bytes at $uri by $server", $one, $two);
        same("bytes at $uri by $server", $one, { %$one, by => 'plain' });
    }
}

# ---- large bodies ---------------------------------------------------------

{
    my $count = 60_000;
    my @rows = map {"{\"id\":$_,\"note\":\"some words about it \x{2d}\",\"price\":$_.50}"} 1 .. $count;
    my $one = '{"rows":[' . join(',', @rows) . '],"total":1}';
    my $two = "{ \"total\": 1.0, \"rows\": [\n" . join(",\n",
        map {"{\"price\":$_.5,\"note\":\"some words about it \\u002d\",\"id\":$_}"} 1 .. $count) . ']}';
    cmp_ok(length $one, '>', 3_000_000, 'JSON of megabytes');
    for my $server ('plain', 'mirror from file', 'http2') {
        same("JSON of megabytes by $server", json($one), json($two, by => $server));
        differ("JSON of megabytes by $server", json($one),
            json($two =~ s/"id":60000\}/"id":60001}/r, by => $server));
    }
    bytes('JSON of megabytes that is broken', json(substr $one, 0, -1));
}

{
    # Everything a boundary begins with is in it, over and over.
    my $content = join '', map {"$_\r\n--x-y\r\n--\r-" . 'z' x 50} 1 .. 50_000;
    my $other = substr($content, 0, -1) . 'Z';
    my @two = map { $file . $_ } $content, $other;
    cmp_ok(length $content, '>', 3_000_000, 'multipart of megabytes');
    for my $server ('plain', 'mirror from file', 'http2') {
        my ($one, $two, $changed) = (multipart('x-yz', [$parts[0], $two[0]]),
            multipart('other', [$parts[0], $two[0]], by => $server),
            multipart('other', [$parts[0], $two[1]], by => $server));
        same("multipart of megabytes by $server", $one, $two);
        differ("multipart of megabytes by $server", $one, $changed);
    }
    my ($x, $y) = map { multipart($_, [$parts[0], $two[0]]) } 'x-yz', 'other';
    substr($_->{body}, -4) = '' for $x, $y;
    same('multipart of megabytes that is broken: the same bytes', $x, $x, text($x->{body}));
    differ('multipart of megabytes that is broken', $x, $y);
}

# ---- what is left out -----------------------------------------------------

same('exclude: another value', json_at('/no-time', '{"a":1,"meta":{"sent_at":1,"by":"x"}}',
    '{"a":1,"meta":{"sent_at":2,"by":"x"}}', '{"a":1,"meta":{"by":"x","sent_at":null}}',
    '{"a":1,"meta":{"by":"x","sent_at":{"deep":[1]}}}', '{"a":1,"meta":{"by":"x"}}'));
differ('exclude: what is beside it', json_at('/no-time', '{"a":1,"meta":{"sent_at":1,"by":"x"}}',
    '{"a":1,"meta":{"sent_at":1,"by":"y"}}', '{"a":2,"meta":{"sent_at":1,"by":"x"}}',
    '{"a":1,"sent_at":1,"meta":{"by":"x"}}', '{"a":1,"meta":{"sent_at":1,"by":"x","more":1}}'));
differ('exclude: the way to it', json_at('/no-time', '{"a":1,"meta":{"sent_at":1}}',
    '{"a":1,"meta":null}', '{"a":1}', '{"a":1,"meta":[]}'));
same('exclude: inherited', json_at('/no-time/inherits', '{"meta":{"sent_at":1}}',
    '{"meta":{"sent_at":2}}'));
same('exclude: replaced in a nested location', json_at('/no-time/other',
    '{"meta":{"trace":1}}', '{"meta":{"trace":2}}'));
differ('exclude: replaced in a nested location', json_at('/no-time/other',
    '{"meta":{"sent_at":1}}', '{"meta":{"sent_at":2}}'));
same('exclude: in each element', json_at('/no-positions', '{"items":[{"id":1,"position":1},{"id":2}]}',
    '{"items":[{"id":1},{"position":9,"id":2}]}'));
same('exclude: in each member', json_at('/no-positions', '{"items":{"p":{"id":1,"position":1}}}',
    '{"items":{"p":{"id":1,"position":2}}}'));
differ('exclude: elements in another order', json_at('/no-positions',
    '{"items":[{"id":1,"position":1},{"id":2}]}', '{"items":[{"id":2},{"id":1,"position":1}]}',
    '{"items":[{"id":1,"position":1}]}'));
differ('exclude: a wildcard is one level', json_at('/no-level', '{"a":{"b":{"x":1}}}',
    '{"a":{"b":{"x":2}}}'));
differ('exclude: a wildcard is one level, not none', json_at('/no-level', '{"x":1}', '{"x":2}'));
same('exclude: a wildcard in first place', json_at('/no-level', '{"a":{"x":1},"b":{"x":1}}',
    '{"a":{"x":2},"b":{}}'));
same('exclude: by index', json_at('/no-second', '{"items":[{"note":1},{"note":1}]}',
    '{"items":[{"note":1},{"note":2}]}'));
differ('exclude: by index, another element', json_at('/no-second', '{"items":[{"note":1},{"note":1}]}',
    '{"items":[{"note":2},{"note":1}]}'));
same('exclude: several pointers and lines', json_at('/no-three', '{"a":1,"b":1,"c":1,"d":1}',
    '{"a":2,"b":1,"c":1,"d":1}', '{"a":1,"b":2,"c":1,"d":1}', '{"a":1,"b":1,"c":2,"d":1}', '{"d":1}'));
differ('exclude: none of several', json_at('/no-three', '{"a":1,"d":1}', '{"a":1,"d":2}'));
same('exclude: names with / and ~, and an empty one', json_at('/no-escaped',
    '{"a/b":1,"c~d":1,"":1,"e":1}', '{"e":1}'));
differ('exclude: names are no paths', json_at('/no-escaped', '{"a":{"b":1}}', '{"a":{"b":2}}'));
same('exclude: names that the body escapes', json_at('/no-time',
    '{"meta":{"sent_\u0061t":1}}', '{"m\u0065ta":{"sent_at":2}}'));
differ('exclude: not in what counts as bytes', json_at('/no-three', '{"a":1,"d":1,"d":1}',
    '{"a":2,"d":1,"d":1}'));
differ('exclude: not in a form', map { form($_, uri => '/no-three/x') } 'a=1&d=1', 'a=2&d=1');
differ('exclude: not with raw', json_at('/no-time-raw', '{"t":1}', '{"t":2}'));
bytes('exclude: what is broken', json('{"a":1,"d":'), '{"a":2,"d":');

# ---- what alone counts ----------------------------------------------------

same('include: other members', json_at('/only', '{"amount":1,"to":{"account":"x","name":"y"}}',
    '{"to":{"account":"x"},"amount":1.0,"more":[1]}'));
differ('include: another value', json_at('/only', '{"amount":1,"to":{"account":"x"}}',
    '{"amount":2,"to":{"account":"x"}}', '{"amount":1,"to":{"account":"y"}}'));
differ('include: absent, null and present', json_at('/only', '{"amount":1}',
    '{"amount":1,"to":{"account":null}}', '{"amount":1,"to":{"account":""}}', '{}',
    '{"amount":null}'));
same('include: absent is absent', json_at('/only', '{}', '{"to":{}}', '{"to":{"name":"x"}}',
    '{"x":{"amount":1}}'));
same('include: inherited', json_at('/only/inherits', '{"amount":1,"x":1}', '{"amount":1,"x":2}'));
differ('include: inherited', json_at('/only/inherits', '{"amount":1}', '{"amount":2}'));
same('include: replaced in a nested location', json_at('/only/other', '{"amount":1,"to":1}',
    '{"amount":2,"to":1}'));
differ('include: replaced in a nested location', json_at('/only/other', '{"amount":1,"to":1}',
    '{"amount":1,"to":{"name":1}}'));
differ('include: lines of one level add up', json_at('/only-sum', '{"amount":1,"currency":"EUR"}',
    '{"amount":2,"currency":"EUR"}', '{"amount":1,"currency":"USD"}', '{"amount":1}'));
same('include: lines of one level, all else', json_at('/only-sum', '{"amount":1,"currency":"EUR"}',
    '{"amount":1,"currency":"EUR","x":1}'));
same('include: in each element', json_at('/only-ids', '{"items":[{"id":1,"n":1},{"id":2}]}',
    '{"items":[{"id":1},{"id":2,"n":3}],"x":1}'));
differ('include: in each element', json_at('/only-ids', '{"items":[{"id":1},{"id":2}]}',
    '{"items":[{"id":2},{"id":1}]}', '{"items":[{"id":1}]}', '{"items":[{"id":1},{"id":null}]}'));
differ('include: in which element', json_at('/only-ids', '{"items":[{"id":1},{}]}',
    '{"items":[{},{"id":1}]}'));
same('include: by index', json_at('/only-first', '{"items":[{"id":1},2]}', '{"items":[{"id":1}]}'));
differ('include: by index', json_at('/only-first', '{"items":[1,2]}', '{"items":[2,2]}',
    '{"items":[]}', '{"items":[null]}'));
differ('include: an index and a name', json_at('/only-first', '{"items":[1]}', '{"items":{"0":1}}'));
differ('include: not in a form', map { form($_, uri => '/only/x') } 'amount=1&x=1', 'amount=1&x=2');

same('both: excluded from what is included', json_at('/both',
    '{"payment":{"sum":1,"sent_at":1},"amount":1,"x":1}', '{"payment":{"sum":1,"sent_at":2},"x":2}',
    '{"payment":{"sum":1}}'));
differ('both: what is included and not excluded', json_at('/both', '{"payment":{"sum":1,"sent_at":1}}',
    '{"payment":{"sum":2,"sent_at":1}}', '{"payment":{"sum":1,"amount":1}}', '{"payment":{}}', '{}'));

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;

done_testing();
