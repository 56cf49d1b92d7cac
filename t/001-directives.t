# What nginx -t says to each directive's good and bad values, one by one.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Test::More;
use lib 't/lib';
use Nginx;

memory_only('runs no request');

my $PASS = 'proxy_pass http://127.0.0.1:1;';

sub in_location ($text) {
    return "server {\nlisten 127.0.0.1:%%PORT%%;\nlocation / {\n$text\n}\n}";
}

sub accepts ($http, $claim) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($ok, $text) = Nginx->conf_test($http);
    ok($ok, $claim) or diag($text);
}

# The message is the whole of what nginx says, and names the line of $culprit.
sub refuses ($http, $culprit, $message, $claim) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($ok, $text) = Nginx->conf_test($http);
    my ($emerg, $line) = $text =~ /\[emerg\] (?:\d+#\d+: )?(.*?)(?: in \S+nginx\.conf:(\d+))?$/m;
    is_deeply([$ok, $emerg, $line], [0, $message, line_of($http, $culprit)], $claim)
        or diag($text);
}

# As refuses(), of a configuration that works, but surely not as it was meant.
sub warns ($http, $culprit, $message, $claim) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($ok, $text) = Nginx->conf_test($http);
    my @warnings = map {s/^\d+#\d+: //r} $text =~ /\[warn\] (.*)$/mg;
    my ($line) = map {s/ in \S+nginx\.conf:(\d+)$// ? $1 : ()} @warnings;
    is_deeply([$ok, \@warnings, $line],
        [1, [$message // ()], defined $culprit ? line_of($http, $culprit) : undef], $claim)
        or diag($text);
}

sub line_of ($http, $text) {
    my $all = Nginx->prepare(http => $http)->conf;
    return 1 + (substr($all, 0, rindex $all, $text) =~ tr/\n//);
}

# ---- bad values -----------------------------------------------------------

my $time = 'write a number with a unit, e.g. "500ms", "30s" or "5m"';
my $length = 'in "idempotency_key_length" directive, write "MIN-MAX" with'
    . ' 1 <= MIN <= MAX <= 4096, e.g. "1-255"';
my $ttl_time = 'in "idempotency_ttl" directive, write e.g. "24h", "60s", "0" or "forever"';
my $ttl_code = 'in "idempotency_ttl" directive, write a code from 200 to 599,'
    . ' a class such as "4xx", or "any"';
my $unknown = 'in "idempotency_unknown_status" directive, write codes from'
    . ' 200 to 599, or "off"';
my $errors = 'the codes are key_missing, key_invalid, key_not_supported,'
    . ' scope_missing, first_sent_invalid, key_expired, in_progress, outcome_unknown,'
    . ' response_not_kept, key_reused and store_unavailable';
my $body_parts = '"idempotency_error_body" directive needs error codes or "any", a type and a'
    . ' body, write e.g. "any application/json \'{"error":"$idempotency_error"}\'"';
my $header = 'of "idempotency_key" directive, write e.g. "header:Idempotency-Key"';
my $source = 'in "idempotency_key" directive, write "header:NAME", "json:/POINTER" or a string'
    . ' with variables';
my $json = 'of "idempotency_key" directive, write e.g. "json:/idempotency_key"; "*" is not allowed';
my $pointer = 'directive, write e.g. "/meta/sent_at" or "/items/*/id"';
my $url = 'in "idempotency_docs" directive, write e.g.'
    . ' "https://example.com/docs/idempotency"';
my $replay = 'in "idempotency_replay_header" directive, write a name, or "off"';
my $constant = 'in "idempotency_scope" directive is the same for every caller,'
    . ' write a variable that identifies the caller, or "none"';
my $size = 'in "idempotency_max_response" directive, write e.g. "64k" or "1m"';
my $methods = 'in "idempotency_methods" directive, write e.g. "POST PATCH"';

my @bad = (
    ['idempotency_scope "";', qq("" $constant)],
    ['idempotency_scope everybody;', qq("everybody" $constant)],
    ['idempotency_scope $remote_user x;', qq("x" $constant)],
    ['idempotency_scope $remote_user none;',
        '"none" cannot be combined with other values in "idempotency_scope" directive'],
    ['idempotency_scope none $remote_user;',
        '"none" cannot be combined with other values in "idempotency_scope" directive'],
    ['idempotency_scope $;', 'invalid variable name'],
    (map { my $name = $_;
        map { ["idempotency_$name $_->[0];", qq("\$$_->[1]" in "idempotency_$name" directive is different)
            . ' in a retry, so no retry would be recognized: write a value that the client sends again'] }
            ['$request_id', 'request_id'], ['$http_x$request_id', 'request_id'],
            ['$http_x "a${connection}b"', 'connection'], ['$remote_addr:$remote_port', 'remote_port'],
            ['$msec', 'msec'], ['$idempotency_token', 'idempotency_token'] }
        qw(scope key)),

    (map { ["idempotency_key $_->[0];", qq(invalid source "$_->[1]" $source)] }
        ['Idempotency-Key', 'Idempotency-Key'], ['""', ''], ['JSON:/k', 'JSON:/k'], ['/k', '/k'],
        ['header:A k', 'k']),
    (map { [qq(idempotency_key "$_";), qq(invalid JSON pointer in source "$_" $json)] }
        'json:', 'json:k', 'json:k/l', 'json:/k~', 'json:/k~2', 'json:/~/k', 'json:/*', 'json:/k/*/l',
        'json: /k', 'json:#/k'),
    ['idempotency_key header:A json:/k json:k;', qq(invalid JSON pointer in source "json:k" $json)],
    ['idempotency_key header:;', qq(invalid header name in source "header:" $header)],
    ['idempotency_key "header:a b";', qq(invalid header name in source "header:a b" $header)],
    ['idempotency_key header:X-Ok header:a:b;',
        qq(invalid header name in source "header:a:b" $header)],

    (map { ["idempotency_key_length $_;", qq(invalid value "$_" $length)] }
        qw(255 0-10 10-5 1-4097 a-b -5 5- - 1-2-3 1-99999999999999999999)),

    ['idempotency_first_sent today;', '"today" in "idempotency_first_sent" directive is the same'
            . ' for every request, write a variable, e.g. "$http_repeatability_first_sent", or "off"'],
    ['idempotency_first_sent "";', '"" in "idempotency_first_sent" directive is the same'
            . ' for every request, write a variable, e.g. "$http_repeatability_first_sent", or "off"'],

    ['idempotency_methods post;', qq(invalid method "post" $methods)],
    ['idempotency_methods POST "";', qq(invalid method "" $methods)],
    ['idempotency_methods POST,PUT;', qq(invalid method "POST,PUT" $methods)],
    ['idempotency_methods CONNECT;',
        '"CONNECT" in "idempotency_methods" directive: what goes through a tunnel cannot be replayed'],

    (map { ["idempotency_$_ yes;",
            qq(invalid value "yes" in "idempotency_$_" directive, it must be "on" or "off")] }
        qw(strict_methods required dry_run jsonrpc hold app_control)),

    (map { my $name = "idempotency_fingerprint_$_";
        (map { [qq($name "$_";), qq(invalid JSON pointer "$_" in "$name" $pointer)] }
            '', 'a', 'a/b', '#/a', ' /a', '*', '/a~', '/~', '/a~2', '/~~0', '/a/b~/c'),
        ["$name /ok bad;", qq(invalid JSON pointer "bad" in "$name" $pointer)],
        [$name . join('', map {" /p$_"} 1 .. 65) . ';',
            qq(too many pointers in "$name" directives, write at most 64)],
        [$name . join('', map {" /p$_"} 1 .. 64) . ";\n$name /one-more;",
            qq(too many pointers in "$name" directives, write at most 64)] }
        qw(include exclude)),

    (map { my ($name, $choices) = @$_;
        ["idempotency_$name maybe;",
            qq(invalid value "maybe" in "idempotency_$name" directive, it must be $choices)] }
        [key_format => '"any" or "uuid"'],
        [fingerprint => '"auto" or "raw" or "off"'],
        [unknown_outcome => '"hold" or "release"'],
        [store_failure => '"reject" or "pass"'],
        [replay => '"response" or "empty"']),

    (map { my $name = $_;
        map { ["idempotency_$name $_;",
            qq(invalid time "$_" in "idempotency_$name" directive, $time)] }
            qw(soon -1s 5x 99999999999999999999s) }
        qw(lease wait retry_after)),
    ['idempotency_lease 0;', '"idempotency_lease" must be at least "100ms"'],
    ['idempotency_lease 99ms;', '"idempotency_lease" must be at least "100ms"'],

    (map { ["idempotency_max_response $_;", qq(invalid size "$_" $size)] }
        qw(lots -1 1x 99999999999999999999)),

    (map { ["idempotency_ttl $_;", qq(invalid time "$_" $ttl_time)] }
        qw(2xx banana -1s 99999999999999999999s)),
    ['idempotency_ttl 24h 2xx;', qq(invalid time "2xx" $ttl_time)],
    (map { my ($last) = /(\d+)$/;
        ["idempotency_ttl $_;", qq("$last" in "idempotency_ttl" directive can be a status or a)
            . qq( number of seconds: write e.g. "$last 24h" or "${last}s")] }
        '200 201', '500', '4xx 100', 'any 599'),
    ['idempotency_ttl forever 4xx 1m;', qq(invalid status "forever" $ttl_code)],
    (map { ["idempotency_ttl $_ 1h;", qq(invalid status "$_" $ttl_code)] }
        qw(6xx 1xx 2XX 199 600 100 99 all 20 2000)),
    ["idempotency_ttl 2xx 1h;\nidempotency_ttl 2xx 2h;",
        'duplicate status "2xx" in "idempotency_ttl" directives'],
    ["idempotency_ttl 1h;\nidempotency_ttl 3xx 2h;",
        'duplicate status "3xx" in "idempotency_ttl" directives'],
    ["idempotency_ttl 409 1h;\nidempotency_ttl 4xx 2h;\nidempotency_ttl 409 0;",
        'duplicate status "409" in "idempotency_ttl" directives'],

    (map { ["idempotency_unknown_status $_;", qq(invalid status "$_" $unknown)] }
        qw(199 600 5xx none)),
    ['idempotency_unknown_status 502 off;', qq(invalid status "off" $unknown)],

    ['idempotency_replay_header "";', qq(invalid header name "" $replay)],
    ['idempotency_replay_header "a b";', qq(invalid header name "a b" $replay)],

    ['idempotency_error gone 410;', 'unknown error code "gone" in'
        . qq( "idempotency_error" directive, $errors)],
    (map { ["idempotency_error in_progress $_;", qq(invalid status "$_" in)
            . ' "idempotency_error" directive, write a code from 400 to 599'] }
        qw(200 399 600 4xx)),

    ['idempotency_error_body any "{}";', $body_parts],
    ['idempotency_error_body gone text/plain gone;', 'unknown error code "gone" in'
        . qq( "idempotency_error_body" directive, $errors, or "any" for all)],
    ['idempotency_error_body any key_reused text/plain x;',
        '"any" cannot be combined with other codes in "idempotency_error_body" directive'],
    (map { [qq(idempotency_error_body any "$_" x;), qq(invalid type "$_" in)
            . ' "idempotency_error_body" directive, write e.g. "application/json"'] }
        '', 'json', 'a b/c', '/json', 'text/', '$http_accept'),
    (map { [qq(idempotency_error_body any application/json '$_';),
            'the body of type "application/json" in "idempotency_error_body" directive is not'
            . ' JSON'] }
        '', 'sorry', '{"a":"b}', '{"a":$status', '{a:1}'),
    ['idempotency_error_body any text/plain $;', 'invalid variable name'],
    ['idempotency_error_body any text/plain "${status";',
        'the closing bracket in "status" variable is missing'],

    ['idempotency_docs "";', qq(invalid URL "" $url)],
    (map { ["idempotency_docs $_;", qq(invalid URL "$_" $url)] }
        qw(docs /docs example.com/docs ftp://a/b https:// http:/a https:///a)),
    ['idempotency_docs "https://a/b c";', qq(invalid URL "https://a/b c" $url)],
    ['idempotency_docs "https://a/<b>";', qq(invalid URL "https://a/<b>" $url)],
    [q(idempotency_docs 'https://a/"b"';), qq(invalid URL "https://a/"b"" $url)],

    (map { ["idempotency_$_->[0]_header X-A X-B;\nidempotency_$_->[1]_header X-C x-b;",
            'header "x-b" is in "idempotency_hide_header" and in "idempotency_pass_header":'
            . ' remove it from one of them'] }
        ['hide', 'pass'], ['pass', 'hide']),

    ['idempotency_bypass $;', 'invalid variable name'],
    ['idempotency_bypass $http_a $;', 'invalid variable name'],
);

for my $case (@bad) {
    my ($lines, $message) = @$case;
    my ($culprit) = $lines =~ /([^\n]*)\z/;
    refuses(in_location("$lines\n$PASS"), $culprit, $message, $lines =~ tr/\n/ /r);
}

for my $name (qw(hide pass)) {
    my $line = qq(idempotency_${name}_header X-Ok "a b";);
    my ($ok, $text) = Nginx->conf_test(in_location("$line\n$PASS"));
    ok(!$ok, $line);
    like($text, qr/invalid header name "a b" in "idempotency_${name}_header" directive.*write/,
        "idempotency_${name}_header says what to write");
}

# ---- duplicates, places, counts ------------------------------------------

my %once = (
    idempotency => ['on', 'off'], idempotency_scope => ['none', '$remote_user'],
    idempotency_key => ['header:A', '$arg_k'], idempotency_key_length => ['1-2', '1-2'],
    idempotency_first_sent => ['$arg_a', 'off'],
    idempotency_key_format => ['any', 'uuid'], idempotency_methods => ['POST', 'PUT'],
    idempotency_fingerprint => ['raw', 'auto'], idempotency_unknown_status => ['off', '502'],
    idempotency_unknown_outcome => ['hold', 'release'], idempotency_lease => ['1s', '2s'],
    idempotency_wait => ['1s', '0'], idempotency_retry_after => ['1s', '0'],
    idempotency_store_failure => ['pass', 'pass'], idempotency_replay => ['empty', 'response'],
    idempotency_replay_header => ['off', 'A'], idempotency_max_response => ['1k', '2k'],
    idempotency_docs => ['http://a', 'http://b'],
    (map { ("idempotency_$_" => ['on', 'off']) }
        qw(strict_methods required dry_run jsonrpc hold app_control)),
);

for my $name (sort keys %once) {
    my ($one, $two) = @{ $once{$name} };
    refuses(in_location("$name $one;\n$name $two;"), "$name $two;",
        qq("$name" directive is duplicate), "$name twice on one level");
}

refuses(in_location("idempotency_error in_progress 425;\nidempotency_error in_progress 423;"),
    'idempotency_error in_progress 423', '"idempotency_error" directive is duplicate',
    'idempotency_error twice for one code');

refuses(in_location("idempotency_error_body any text/plain x;\nidempotency_error_body any text/plain y;"),
    'idempotency_error_body any text/plain y', '"idempotency_error_body" directive is duplicate',
    'idempotency_error_body twice for one code');

for my $name ((sort keys %once), qw(idempotency_ttl idempotency_bypass idempotency_error idempotency_error_body
    idempotency_fingerprint_include idempotency_fingerprint_exclude idempotency_hide_header idempotency_pass_header)) {
    refuses(in_location("$name;"), "$name;",
        qq(invalid number of arguments in "$name" directive), "$name without a value");
}

refuses(in_location('idempotency on off;'), 'idempotency on off',
    'invalid number of arguments in "idempotency" directive', 'idempotency takes one value');

# ---- stores ---------------------------------------------------------------

my $store_name = 'use letters, digits, "_", "-" and ".", but not "on" or "off"';
my $memory = 'write e.g. "memory:64m", at least "memory:32k"';

for my $case (
    ['idempotency_store on memory:1m;', qq(invalid idempotency store name "on", $store_name)],
    ['idempotency_store off memory:1m;', qq(invalid idempotency store name "off", $store_name)],
    ['idempotency_store a/b memory:1m;', qq(invalid idempotency store name "a/b", $store_name)],
    ['idempotency_store "" memory:1m;', qq(invalid idempotency store name "", $store_name)],
    ['idempotency_store a memory:;', qq(invalid size "" of idempotency store "a", $memory)],
    ['idempotency_store a memory:lots;', qq(invalid size "lots" of idempotency store "a", $memory)],
    ['idempotency_store a memory:31k;', qq(invalid size "31k" of idempotency store "a", $memory)],
    ['idempotency_store a memory:1m prefix=x;', 'unknown parameter "prefix=x" of'
        . ' idempotency store "a", a memory store has only "file=PATH" and "sync=off|always|TIME"'],
    ["idempotency_store a memory:1m;\nidempotency_store a memory:2m;",
        'idempotency store "a" is already defined'],
    ["idempotency_store default memory:1m;\nidempotency_store default memory:2m;",
        'idempotency store "default" is already defined'],
    (map { ["idempotency_store a redis://127.0.0.1 $_->[0];", 'idempotency store "a":'
            . qq( "$_->[1]" must be a time with a unit, e.g. "$_->[2]")] }
        ['timeout=250', 'timeout', '250ms'], ['timeout=1s5', 'timeout', '250ms'],
        ['connect_timeout=1', 'connect_timeout', '1s'], ['timeout=0ms', 'timeout', '250ms']),
    (map { ["idempotency_store a redis://127.0.0.1 local=$_;", 'idempotency store "a":'
            . qq( "local=$_" must be a size of at least "32k", e.g. "local=16m")] } qw(31k 0 lots -1)),
    ['idempotency_store a redis://127.0.0.1 local_ttl=10s;', 'idempotency store "a":'
        . ' "local_ttl" needs a local copy, add e.g. "local=16m"'],
    (map { ["idempotency_store a redis://127.0.0.1 local=16m local_ttl=$_;", 'idempotency store "a":'
            . ' "local_ttl" must be a time with a unit, e.g. "10s"'] } qw(10 0 0s soon)),
    ['idempotency_store a memory:1m local=16m;', 'unknown parameter "local=16m" of'
        . ' idempotency store "a", a memory store has only "file=PATH" and "sync=off|always|TIME"'],
    ['idempotency_store a;', 'invalid number of arguments in "idempotency_store" directive'],
) {
    my ($lines, $message) = @$case;
    my ($culprit) = $lines =~ /([^\n]*)\z/;
    refuses($lines, $culprit, $message, $lines =~ tr/\n/ /r);
}

# A name of a variable that ends early: nginx takes the rest for text.
my $early = '"%s" in "%s" directive is the variable "%s" and the text "%s": write "%s" for a header,'
    . ' use "map" for a cookie or an argument of that name, or write "%s" if this is meant';

for my $case (
    ['scope', '$http_x-api-key', '$http_x', '-api-key', '$http_x_api_key', '${http_x}-api-key'],
    ['scope', '$remote_user $http_x-user', '$http_x', '-user', '$http_x_user', '${http_x}-user'],
    ['scope', 'a${remote_user}b$cookie_connect.sid', '$cookie_connect', '.sid',
        '$cookie_connect_sid', '${cookie_connect}.sid'],
    ['key', '$http_x-request-id', '$http_x', '-request-id', '$http_x_request_id',
        '${http_x}-request-id'],
    ['key', '"$arg_a:$arg_b-_c d"', '$arg_b', '-_c', '$arg_b__c', '${arg_b}-_c'],
    ['bypass', '$http_x-bypass', '$http_x', '-bypass', '$http_x_bypass', '${http_x}-bypass'],
    ['bypass', '$http_y $http_x-bypass', '$http_x', '-bypass', '$http_x_bypass', '${http_x}-bypass'],
    ['first_sent', '$http_first-sent', '$http_first', '-sent', '$http_first_sent',
        '${http_first}-sent'],
) {
    my ($what, $text, $variable, $rest, @ways) = @$case;
    my $line = "idempotency_$what $text;";
    refuses(in_location("idempotency on;\n$line\n$PASS"), $line,
        sprintf($early, "$variable$rest", "idempotency_$what", $variable, $rest, @ways), $line);
}

# ---- warnings -------------------------------------------------------------

# What is on here, and whether anything answers.
my $on = 'idempotency on; idempotency_scope none;';
my $idle = '"idempotency" has no effect in location "%s": nothing there sends the request to an'
    . ' application; write it in the location that has "proxy_pass", "fastcgi_pass" or another'
    . ' content handler, e.g. the one that "try_files" leads to';

for my $body ('', 'try_files $uri /index.php;', 'try_files $uri @app;', 'return 204;',
    'root /tmp;', 'rewrite ^ /app last;', 'if ($args) { return 403; }',
    'location /in/ { return 204; }') {
    warns(in_location("$on\n$body"), $on, sprintf($idle, '/'),
        "on where nothing answers: " . ($body || 'nothing at all'));
}

warns("server { location ~ ^/a\n{ $on\nreturn 204; }\nlocation /b { $PASS } }", $on,
    sprintf($idle, '^/a'), 'on in a regex location that only returns');
warns("server { location \@named\n{ $on\nreturn 204; } }", $on, sprintf($idle, '@named'),
    'on in a named location that only returns');

for my $body ($PASS, "location /in/ { $PASS }", "location /in/ { location /in/2 { $PASS } }",
    "if (\$args) { $PASS }", "location /in/ { idempotency off; return 204; }\n$PASS") {
    warns(in_location("$on\n$body"), undef, undef, 'no warning: ' . $body);
}
warns("server { $on location / { return 204; } }", undef, undef,
    'no warning where a location only inherits it');
warns(in_location('idempotency off;'), undef, undef, 'nor where it is off');

for my $mode (qw(raw off)) {
    for my $what (qw(include exclude)) {
        my $line = "idempotency_fingerprint_$what /a;";
        my $message = qq("idempotency_fingerprint_$what" has no effect with)
            . qq( "idempotency_fingerprint $mode": use "auto", or remove it);
        warns(in_location("$on\nidempotency_fingerprint $mode;\n$line\n$PASS"), $line, $message,
            "$what with $mode");
        warns("idempotency_fingerprint $mode;\n" . in_location("$on\n$line\n$PASS"), $line,
            $message, "$what with $mode from above");
        warns("idempotency_fingerprint $mode;\n$line\n" . in_location("$on\n$PASS"), $line,
            $message, "$what with $mode, both in http");
        warns("$line\n" . in_location("$on\nidempotency_fingerprint $mode;\n$PASS"), undef, undef,
            "no warning: $what from above where a location is $mode");
    }
}

warns(in_location("$on\nidempotency_methods POTS POST;\n$PASS"), 'idempotency_methods POTS',
    '"POTS" in "idempotency_methods" directive is not a registered method of HTTP: check how it is'
    . ' spelled', 'an unknown method');

for my $time (qw(24 48 7200)) {
    my $message = qq("$time" in "idempotency_ttl" directive is a number of seconds: write)
        . qq( "${time}h" for hours, or "${time}s");
    warns(in_location("$on\nidempotency_ttl $_;\n$PASS"), "idempotency_ttl $_", $message,
        "a time without a unit: $_") for $time, "4xx $time";
}
warns(in_location("$on\nidempotency_ttl $_;\n$PASS"), undef, undef, "no warning: $_")
    for qw(24h 24s 0 1d12h forever);

my $open = '"idempotency_admin" in location "/" has no access rule: whoever reaches it can read and'
    . ' settle records; add e.g. "allow 127.0.0.1; deny all;" or "auth_basic"';
warns(in_location("idempotency_admin; $_"), undef, $open, "an open idempotency_admin: $_")
    for '', 'auth_request off;', 'satisfy any;', 'limit_except GET { deny all; }';
warns(in_location("idempotency_admin; $_"), undef, undef, "no warning: idempotency_admin with $_")
    for 'allow 127.0.0.1; deny all;', 'allow ::1;', 'deny unix:;', 'auth_request /auth;',
        'auth_basic x; auth_basic_user_file /etc/passwd;', 'internal;';
warns("server { $_ location / { idempotency_admin; } }", undef, undef,
    "no warning: idempotency_admin below $_") for 'deny all;', 'auth_basic x;';

my $large = '"idempotency_max_response" of location "%s" is %d bytes, but idempotency store "s" has'
    . ' only %d bytes in all: make the first smaller or the second larger';
warns("idempotency_store s memory:1m;\n"
    . in_location("idempotency s; idempotency_scope none; idempotency_max_response 2m; $PASS"),
    undef, sprintf($large, '/', 2 << 20, 1 << 20), 'a response larger than the store');
warns("idempotency_store s memory:512k;\nserver { idempotency s; idempotency_scope none;"
    . " location /a { $PASS } location /b { $PASS } }",
    undef, sprintf($large, '/a', 1 << 20, 512 << 10), 'a small store, told once');
warns("idempotency_store s memory:1m;\n"
    . in_location("idempotency s; idempotency_scope none; idempotency_max_response 1m; $PASS"),
    undef, undef, 'no warning: a response as large as the store');

# ---- good values ----------------------------------------------------------

my @good = map {"idempotency_$_;"} (
    'scope $http_authorization', 'scope $remote_user $cookie_session', 'scope "u:$remote_user"',
    'scope_route off', 'key header:Idempotency-Key', 'key header:x-request-id $arg_key',
    'key "$arg_a:$arg_b"', 'key_length 1-1', 'key_length 36-36', 'key_length 1-4096',
    'key_format any', 'key_format uuid', 'methods GET POST', 'methods VERSION-CONTROL',
    'strict_methods on', 'required on', 'bypass $http_x', 'bypass $http_x $arg_y', 'dry_run on',
    'scope "$http_a-$http_b"', 'scope "${http_a}-b"', 'scope "$http_a-1" "$http_a."', 'bypass "a-b$arg_c"',
    'fingerprint auto', 'fingerprint raw', 'fingerprint off', 'key json:/k',
    'key header:A json:/a/0/b~0c~1d $arg_k json:/', 'fingerprint_include /a', 'fingerprint_include /',
    'fingerprint_include /a /b/0/c; idempotency_fingerprint_include /*/d',
    'fingerprint_exclude /a~0b/c~1d /*/* "/with space" //',
    'fingerprint_include /a; idempotency_fingerprint_exclude /a/b /a',
    'fingerprint_exclude' . join('', map {" /p$_"} 1 .. 64), 'jsonrpc on', 'jsonrpc off',
    'ttl 24h', 'ttl forever', 'ttl 0', 'ttl 90', 'ttl 1d12h', 'ttl any 1s', 'ttl 200 201 4xx 1h',
    'ttl 24h; idempotency_ttl 4xx 60s; idempotency_ttl 409 0', 'ttl any 1h; idempotency_ttl 2h',
    'unknown_status off', 'unknown_status 502 503 504', 'unknown_status 200',
    'unknown_outcome hold', 'unknown_outcome release', 'lease 100ms', 'lease 5m', 'wait 0',
    'wait 500ms', 'wait 10', 'retry_after 0', 'retry_after 1m', 'store_failure reject',
    'store_failure pass', 'replay response', 'replay empty', 'replay_header off',
    'replay_header X-Replayed', 'hide_header A', 'hide_header A B; idempotency_hide_header C',
    'pass_header Set-Cookie', 'pass_header A B; idempotency_pass_header C', 'max_response 0',
    'max_response 64k', 'max_response 10m', 'hold off', 'app_control off',
    'error in_progress 425; idempotency_error key_reused 409', 'error store_unavailable 599',
    'first_sent off', 'first_sent $http_date', 'error key_expired 410',
    'docs https://example.com/docs?a=b#c', 'error_body any text/plain ""',
    'error_body key_reused key_invalid application/json \'{"$status":$status,"$host":[$status$host]}\'',
    'error_body any application/problem+json \'{"a":"${status}b$1"}\'',
);

# One configuration for all: each line stands in a server of its own.
for my $level ('server', 'location') {
    my @servers;
    for my $line (@good) {
        my $text = 'idempotency on; ' . ($line =~ /_scope / ? $line : "$line idempotency_scope none;");
        push @servers, $level eq 'server' ? "server { $text location / { $PASS } }"
            : "server { location / { $text $PASS } }";
    }
    accepts(join("\n", @servers), "good values in $level");
}

accepts(join("\n", map({"$_ $once{$_}[0];"} sort keys %once), 'idempotency_ttl 1h;',
    'idempotency_bypass $http_x;', 'idempotency_error in_progress 425;',
    'idempotency_fingerprint_include /a;', 'idempotency_fingerprint_exclude /a/b;',
    'idempotency_hide_header A;', 'idempotency_pass_header B;', in_location($PASS)),
    'good values in http');

done_testing();
