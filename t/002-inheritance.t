# Each directive's effect in http, overridden in server, overridden again in a
# location, and inherited by a location inside that one.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use IO::Select;
use JSON::PP ();
use Test::More;
use Time::HiRes qw(time);
use lib 't/lib';
use Ledger;
use Nginx;

memory_only('about the configuration');

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

sub levels ($http, $server, $location) {
    return <<CONF;
$http
proxy_buffering off;
server {
    listen 127.0.0.1:%%PORT%%;
    location / { $PASS }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    $server
    location / { $PASS }
    location /own/ {
        $location
        $PASS
        location /own/nested/ { $PASS }
    }
}
CONF
}

# Port and path of the four places.
my @PLACES = ([1, ''], [2, ''], [2, '/own'], [2, '/own/nested']);

my $JSON = JSON::PP->new->canonical;
my $ng;
my $cases = 0;

sub fresh { return 'k' . ++$cases }

# ($place, key => , method => , do => behaviour, body => , headers => )
sub arguments ($place, %opt) {
    my ($port, $path) = @$place;
    my @headers = @{ $opt{headers} // [] };
    push @headers, 'Idempotency-Key' => $opt{key} if defined $opt{key};
    push @headers, 'X-Behaviour' => $opt{do} if defined $opt{do};
    return ($ng->port($port), $opt{method} // 'POST', $path . ($opt{uri} // '/x'),
        headers => \@headers, body => $opt{body} // 'x');
}

sub ask ($place, %opt) { return request(arguments($place, %opt)) }

sub status ($place, %opt) { return ask($place, %opt)->{status} }

# Whether the application ran only once for two requests.
sub protected ($place, %opt) {
    ledger_reset();
    $opt{key} = fresh() if !$opt{headers};
    ask($place, %opt) for 1, 2;
    return ledger_count() == 1;
}

sub second ($place, $first, $second) {
    my $key = fresh();
    ask($place, key => $key, %$first);
    return ask($place, key => $key, %$second);
}

sub those ($test, @names) { return join(' ', grep { $test->($_) } @names) || 'none' }

sub write_file ($path) { open my $file, '>', $path or die "$path: $!\n" }

# Lets $during happen while a request with the key is with the application.
sub while_pending ($place, $during) {
    ledger_reset();
    my $key = fresh();
    my $barrier = $ng->path("barrier-$key");
    my $first = send_request(arguments($place, key => $key, do => "barrier=$barrier"));
    wait_until(sub { ledger_count() == 1 }, 5, 'a pending request');
    my $got = $during->($key);
    write_file($barrier);
    $first->response;
    return $got;
}

# ---- probes: which value is in effect -------------------------------------

sub which_scope ($place) {
    my $key = fresh();
    my $runs = sub ($user, $tenant) {
        ledger_reset();
        ask($place, key => $key, headers => ['X-User' => $user, 'X-Tenant' => $tenant]);
        return ledger_count();
    };
    $runs->('a', 'a');
    return join(' ', $runs->('b', 'a') ? 'user' : (), $runs->('a', 'b') ? 'tenant' : ()) || 'none';
}

sub which_route ($place) {
    return second($place, { uri => '/p' }, { uri => '/q' })->{status} == 422 ? 'off' : 'on';
}

sub which_key ($place) {
    return those(sub ($name) { protected($place, headers => [$name => fresh()]) },
        qw(X-H X-S X-L Idempotency-Key));
}

sub which_length ($place) {
    my @good = grep { status($place, key => 'k' x $_) == 201 } 1 .. 12;
    return "$good[0]-$good[-1]";
}

sub which_format ($place) { return status($place, key => fresh()) == 400 ? 'uuid' : 'any' }

sub which_methods ($place) {
    return those(sub ($method) { protected($place, method => $method) }, qw(POST PUT PATCH DELETE));
}

sub which_strict ($place) {
    return status($place, key => fresh(), method => 'OPTIONS') == 400 ? 'on' : 'off';
}

sub which_required ($place) { return status($place) == 400 ? 'on' : 'off' }

sub which_bypass ($place) {
    return those(sub ($name) {
        my $key = fresh();
        return !protected($place, headers => ['Idempotency-Key' => $key, $name => 1]);
    }, qw(X-H X-S X-L));
}

sub which_dry_run ($place) { return protected($place) ? 'off' : 'on' }

sub which_fingerprint ($place) {
    return second($place, { body => 'a' }, { body => 'b' })->{status} == 422 ? 'raw' : 'off';
}

# A member that may change is left out.
sub which_left_out ($place) {
    my %body = (h => 1, s => 1, l => 1, none => 1);
    return those(sub ($name) {
        my ($one, $two) = map { +{ %body, $name => $_ } } 1, 2;
        my @json = (headers => ['Content-Type' => 'application/json']);
        return second($place, { body => $JSON->encode($one), @json },
            { body => $JSON->encode($two), @json })->{status} == 201;
    }, qw(h s l none));
}

sub which_jsonrpc ($place) {
    my @json = (headers => ['Content-Type' => 'application/json']);
    return second($place, { body => '{"id":1}', @json }, { body => '{"id":2}', @json })->{status} == 201
        ? 'on' : 'off';
}

sub which_ttl ($place) {
    return those(sub ($status) { protected($place, do => "status=$status") }, 201, 303, 404, 503);
}

sub which_unknown_status ($place) {
    return those(sub ($status) {
        my $got = second($place, { do => "status=$status" }, {});
        return $got->{body} =~ /outcome_unknown/;
    }, 500, 502, 503, 504);
}

sub which_unknown_outcome ($place) {
    return second($place, { do => 'die=before' }, {})->{status} == 201 ? 'release' : 'hold';
}

# Seconds a duplicate was kept, as the nearest of the values in use.
sub which_wait ($place) {
    my $time = while_pending($place, sub ($key) { ask($place, key => $key)->{time} });
    return $time < 0.2 ? 0 : $time < 0.65 ? '400ms' : '900ms';
}

sub which_retry_after ($place) {
    return while_pending($place, sub ($key) {
        ask($place, key => $key)->{headers}{'retry-after'}[0];
    });
}

# The store is full by then.
sub which_store_failure ($place) {
    my $status;
    for (1 .. 1000) {
        $status = status([2, ''], key => fresh(), do => 'size=2000');
        last if $status == 503;
    }
    ledger_reset();
    $status .= ' ' . status($place, key => fresh());
    return $status eq '503 201' && ledger_count() == 1 ? 'pass'
        : $status eq '503 503' && ledger_count() == 0 ? 'reject' : $status;
}

sub which_replay ($place) {
    return second($place, {}, {})->{status} == 204 ? 'empty' : 'response';
}

sub which_replay_header ($place) {
    my $headers = second($place, {}, {})->{headers};
    return those(sub ($name) { ($headers->{$name}[0] // '') eq 'true' },
        qw(x-h x-s x-l idempotent-replayed));
}

sub which_hidden ($place) {
    my $headers = second($place, { do => 'h=X-H:1&h=X-S:1&h=X-L:1&h=Set-Cookie:a=b' }, {})->{headers};
    return those(sub ($name) { !$headers->{$name} }, qw(x-h x-s x-l set-cookie));
}

sub which_max_response ($place) {
    return those(sub ($size) {
        second($place, { do => "size=$size" }, {})->{status} == 201;
    }, 50, 500, 5000);
}

# The application pauses in its answer: the client sees the start before that
# or not.
sub which_hold ($place) {
    my $conn = send_request(arguments($place, key => fresh(), do => 'size=10&pieces=2&gap=0.6'));
    my $started = time;
    IO::Select->new($conn->sock)->can_read(10);
    $conn->close;
    return time - $started >= 0.5 ? 'on' : 'off';
}

sub which_app_control ($place) {
    return second($place, { do => 'h=X-Accel-Idempotency:discard' }, {})->{status} == 409
        ? 'on' : 'off';
}

sub which_error ($place) { return status($place, key => '"') . ' ' . status($place) }

sub which_docs ($place) {
    my ($url) = (ask($place, key => '"')->{headers}{link}[0] // '') =~ /^<(.*)>; rel="describedby"$/;
    return $url;
}

# ---- the table ------------------------------------------------------------

my @flags = map { ("idempotency_$_->[0]", ['on', 'off', 'on'], $_->[1]) }
    [scope_route => \&which_route], [strict_methods => \&which_strict],
    [required => \&which_required], [dry_run => \&which_dry_run];

my @table = (
    # directive, its values in http, server and location, probe
    idempotency => ['on', 'off', 'on'],
        sub ($place) { protected($place) ? 'on' : 'off' },
    idempotency_scope => ['none', '$http_x_user', '$http_x_tenant'], \&which_scope,
    idempotency_key => ['header:X-H', 'header:X-S', '$http_x_l'], \&which_key,
    idempotency_key_length => ['1-10', '5-8', '2-4'], \&which_length,
    idempotency_key_format => ['uuid', 'any', 'uuid'], \&which_format,
    idempotency_methods => ['PUT', 'POST PATCH', 'DELETE'], \&which_methods,
    idempotency_bypass => ['$http_x_h', '$http_x_s', '$http_x_l'], \&which_bypass,
    idempotency_fingerprint => ['off', 'raw', 'off'], \&which_fingerprint,
    idempotency_fingerprint_include => ['/h /none', '/s; idempotency_fingerprint_include /h', '/l'],
        \&which_left_out,
    idempotency_fingerprint_exclude => ['/h /none', '/s; idempotency_fingerprint_exclude /h', '/l'],
        \&which_left_out,
    idempotency_jsonrpc => ['on', 'off', 'on'], \&which_jsonrpc,
    idempotency_ttl => ['any 1h', '4xx 1h; idempotency_ttl 2xx 0', '5xx 1h'], \&which_ttl,
    idempotency_unknown_status => ['503', '500 502', 'off'], \&which_unknown_status,
    idempotency_unknown_outcome => ['release', 'hold', 'release'], \&which_unknown_outcome,
    idempotency_wait => ['400ms', '0', '900ms'], \&which_wait,
    idempotency_retry_after => ['7s', '8s', '9s'], \&which_retry_after,
    idempotency_store_failure => ['pass', 'reject', 'pass'], \&which_store_failure,
    idempotency_replay => ['empty', 'response', 'empty'], \&which_replay,
    idempotency_replay_header => ['X-H', 'off', 'X-L'], \&which_replay_header,
    idempotency_hide_header => ['X-H', 'X-S', 'X-L'], \&which_hidden,
    idempotency_pass_header => ['Set-Cookie', 'X-S', 'Set-Cookie X-S'], \&which_hidden,
    idempotency_max_response => ['100', '1000', '10'], \&which_max_response,
    idempotency_hold => ['off', 'on', 'off'], \&which_hold,
    idempotency_app_control => ['off', 'on', 'off'], \&which_app_control,
    idempotency_error => ['key_invalid 451', 'key_invalid 431', 'key_missing 410'], \&which_error,
    idempotency_error_body => [map {"any text/plain $_"} qw(h s l)],
        sub ($place) { ask($place, key => '"')->{body} },
    idempotency_docs => ['http://h/', 'http://s/', 'http://l/'], \&which_docs,
    @flags,
);

# Where the effects are not just the values.
my %effects = (
    idempotency_scope => ['none', 'user', 'tenant'],
    idempotency_key => ['X-H', 'X-S', 'X-L'],
    idempotency_bypass => ['X-H', 'X-S', 'X-L'],
    idempotency_fingerprint_include => ['s l', 'l none', 'h s none'],
    idempotency_fingerprint_exclude => ['h none', 'h s', 'l'],
    idempotency_ttl => ['201 303 404 503', '303 404', '201 303 503'],
    idempotency_unknown_status => ['503', '500 502', 'none'],
    idempotency_retry_after => [7, 8, 9],
    idempotency_replay_header => ['x-h', 'none', 'x-l'],
    idempotency_hide_header => ['x-h set-cookie', 'x-s set-cookie', 'x-l set-cookie'],
    idempotency_pass_header => ['none', 'set-cookie', 'none'],
    idempotency_max_response => ['50', '50 500', 'none'],
    idempotency_error_body => ['h', 's', 'l'],
    idempotency_error => ['451 400', '431 400', '400 410'],
);

my %besides = (
    idempotency_store_failure => 'idempotency_store default memory:32k;',
    idempotency_error => 'idempotency_required on;',
);

while (my ($name, $values, $probe) = splice @table, 0, 3) {
    my @lines = map {"$name $_;"} @$values;
    $lines[0] .= ' idempotency on;' if $name ne 'idempotency';
    $lines[0] .= ' idempotency_scope none;' if $name ne 'idempotency_scope';
    $lines[0] .= $besides{$name} // '';
    $ng = Nginx->start(http => levels(@lines));
    my $wanted = $effects{$name} // $values;
    is_deeply([map { $probe->($_) } @PLACES], [@$wanted, $wanted->[2]], $name);
    $ng->stop(signal => 'TERM');
    $ng->check_logs(name => "$name: nothing alarming");
}

# ---- lease ----------------------------------------------------------------

# Seen only when the owner dies: a duplicate is told of a lease that lapsed.
$ng = Nginx->start(http => levels('idempotency on; idempotency_scope none; idempotency_lease 200ms;',
    'idempotency_lease 60s;', 'idempotency_lease 300ms;'));
{
    my @keys = map {fresh()} @PLACES;
    my $barrier = $ng->path('barrier');
    ledger_reset();
    my @conns = map { send_request(arguments($PLACES[$_], key => $keys[$_], do => "barrier=$barrier")) }
        0 .. $#PLACES;
    ok(wait_until(sub { ledger_count() == @PLACES }), 'a request is pending in each place');
    my ($worker) = $ng->worker_pids;
    kill KILL => $worker;
    wait_until(sub { grep { $_ != $worker } $ng->worker_pids }, 10, 'another worker');

    my $told = sub ($n) {
        return ask($PLACES[$n], key => $keys[$n])->{body} =~ /"code":"(\w+)"/ ? $1 : 'nothing';
    };
    for my $n (0, 2, 3) {
        wait_until(sub { $told->($n) eq 'outcome_unknown' }, 10, 'the end of a lease');
    }
    is_deeply([map { $told->($_) } 0 .. 3],
        ['outcome_unknown', 'in_progress', 'outcome_unknown', 'outcome_unknown'], 'idempotency_lease');
    write_file($barrier);
    $_->close for @conns;
    is(ledger_count(), 4, 'nothing ran again');
    $ng->stop(signal => 'TERM');
    $ng->check_logs(allow => qr/exited on signal 9/);
}

done_testing();
