# Requests that pass: idempotency_bypass, dry runs, and what $idempotency_status
# tells of each request.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use IO::Select;
use Test::More;
use Time::HiRes qw(time);
use lib 't/lib';
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
log_format told escape=none '$http_x_id $status $idempotency_status [$idempotency_error]';
access_log %%DIR%%/access.log told;
idempotency_store tiny memory:32k;
idempotency_scope none;
idempotency on;
idempotency_max_response 64k;

upstream two_peers {
    server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT max_fails=0;
}

server {
    listen 127.0.0.1:%%PORT%%;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }

    location /off/ {
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /bypass/ {
        idempotency_bypass $http_x_one $http_x_two;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /bypass-required/ {
        idempotency_required on;
        idempotency_bypass $http_x_one;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /tiny/ {
        idempotency tiny;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;

        location /tiny/dry/ {
            idempotency_dry_run on;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
    }
    location /plain/ {
        idempotency off;
        proxy_buffering off;
        proxy_next_upstream error non_idempotent;
        proxy_pass http://two_peers;
    }
    location /dry/ {
        idempotency_dry_run on;
        proxy_buffering off;
        proxy_next_upstream error non_idempotent;
        proxy_pass http://two_peers;

        location /dry/required/ {
            idempotency_required on;
            idempotency_strict_methods on;
            proxy_pass http://two_peers;
        }
        location /dry/scope/ {
            idempotency_required on;
            idempotency_scope $http_x_user;
            proxy_pass http://two_peers;
        }
        location /dry/wait/ {
            idempotency_wait 10s;
            proxy_pass http://two_peers;
        }
        location /dry/one/ {
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
    }
}
CONF

my $id = 0;

# ($uri, key => , do => behaviour, body => , headers => , method => )
sub arguments ($uri, %opt) {
    my @headers = ('X-Id' => ++$id, @{ $opt{headers} // [] });
    push @headers, 'Idempotency-Key' => $opt{key} // 'k' if !exists $opt{key} || defined $opt{key};
    push @headers, 'X-Behaviour' => $opt{do} if defined $opt{do};
    return ($ng->port, $opt{method} // 'POST', $uri, headers => \@headers, body => $opt{body} // 'x');
}

# Status, replayed or not, $idempotency_status and $idempotency_error.
sub ask ($uri, %opt) {
    my $got = request(arguments($uri, %opt));
    return join ' ', $got->{status}, $got->{headers}{'idempotent-replayed'} ? 'replayed' : (),
        logged($id);
}

sub logged ($id) {
    my $line = qr/^$id \d+ (\S+ \[.*\])$/m;
    wait_until(sub { $ng->access_log =~ $line }, 5, "the log line of request $id");
    return $ng->access_log =~ $line ? $1 : 'nothing';
}

sub answers ($claim, $runs, @pairs) {
    ledger_reset();
    my (@got, @wanted);
    while (my ($request, $wanted) = splice @pairs, 0, 2) {
        push @got, ask(@$request);
        push @wanted, $wanted;
    }
    is_deeply(\@got, \@wanted, $claim);
    is(ledger_count(), $runs, "$claim: $runs executions");
}

# A request that stays with the application while $during runs.
sub while_pending ($uri, $during) {
    ledger_reset();
    my $barrier = $ng->path('barrier-' . ($id + 1));
    my $first = send_request(arguments($uri, do => "barrier=$barrier"));
    ok(wait_until(sub { ledger_count() == 1 }), "$uri: one request is pending");
    $during->($first);
    open my $file, '>', $barrier or die "$barrier: $!\n";
    return $first;
}

# ---- $idempotency_status --------------------------------------------------

answers('not protected', 2, ['/off/1'] => '201 - []', ['/off/1', key => '"'] => '201 - []');
answers('no key', 1, ['/1', key => undef] => '201 - []');
answers('another method', 0, ['/1', method => 'GET'] => '200 - []');
answers('new and replayed', 1, ['/2'] => '201 NEW []', ['/2'] => '201 replayed REPLAY []');
answers('a refused outcome is new again', 2,
    ['/3', do => 'status=400'] => '400 NEW []', ['/3'] => '201 NEW []');
answers('reused', 1, ['/4'] => '201 NEW []', ['/4', body => 'y'] => '422 REUSED [key_reused]');
answers('unknown', 1, ['/5', do => 'die=before'] => '502 NEW []',
    ['/5'] => '409 UNKNOWN [outcome_unknown]');
answers('not kept', 1, ['/6', do => 'size=70000'] => '201 NEW []',
    ['/6'] => '409 NOT_KEPT [response_not_kept]');
answers('invalid', 0, ['/7', key => '"'] => '400 INVALID [key_invalid]');

while_pending('/8', sub ($first) {
    is(ask('/8'), '409 IN_PROGRESS [in_progress]', 'in progress');
    is(ask('/8', body => 'y'), '422 REUSED [key_reused]', 'reused while in progress');
    is(ledger_count(), 1, 'in progress: one execution');
})->response;

{
    my $tries = 0;
    my $last;
    do { $last = ask('/tiny/1', key => 'k' . ++$tries, do => 'size=1000') }
        while $last =~ /^201 NEW/ && $tries < 1000;
    is($last, '503 STORE_ERROR [store_unavailable]', "store error: full after $tries");
    ledger_reset();
    is(ask('/tiny/1', key => 'one-more', do => 'size=1000'), '503 STORE_ERROR [store_unavailable]',
        'store error: refused');
    is(ledger_count(), 0, 'store error: not executed');
    is(ask('/tiny/dry/1', key => 'another'), '201 STORE_ERROR [store_unavailable]',
        'a full store refuses nothing in a dry run');
    is(ledger_count(), 1, 'and the request runs');
}

# ---- idempotency_bypass ---------------------------------------------------

sub with ($uri, @headers) { return [$uri, headers => \@headers] }

answers('any value bypasses', 3, with('/bypass/1', 'X-One' => 'a') => '201 BYPASS []',
    with('/bypass/1', 'X-One' => 'a') => '201 BYPASS []',
    with('/bypass/1', 'X-Two' => '00') => '201 BYPASS []');
answers('"0" and the empty string do not', 1,
    with('/bypass/2', 'X-One' => '0', 'X-Two' => '') => '201 NEW []',
    with('/bypass/2', 'X-One' => '', 'X-Two' => '0') => '201 replayed REPLAY []',
    with('/bypass/2') => '201 replayed REPLAY []');
answers('what bypasses leaves no record and meets none', 4,
    with('/bypass/3', 'X-One' => '1') => '201 BYPASS []', with('/bypass/3') => '201 NEW []',
    with('/bypass/3', 'X-One' => '1') => '201 BYPASS []',
    with('/bypass/3') => '201 replayed REPLAY []',
    ['/bypass/3', body => 'y', headers => ['X-Two' => '1']] => '201 BYPASS []');
answers('what bypasses needs no good key', 3,
    ['/bypass-required/1', key => '"', headers => ['X-One' => 1]] => '201 BYPASS []',
    ['/bypass-required/1', key => undef, headers => ['X-One' => 1]] => '201 BYPASS []',
    ['/bypass-required/1', headers => ['X-One' => 0]] => '201 NEW []',
    ['/bypass-required/1', key => undef] => '400 INVALID [key_missing]');

# ---- idempotency_dry_run --------------------------------------------------

my $mark = length $ng->error_log;

sub log_since_mark {
    my $text = substr $ng->error_log, $mark;
    $mark += length $text;
    return scalar(() = $text =~ /dry run/g);
}

answers('dry run: duplicates run', 3, ['/dry/one/1'] => '201 NEW []',
    ['/dry/one/1'] => '201 REPLAY []', ['/dry/one/1'] => '201 REPLAY []');
is(log_since_mark(), 2, 'dry run: each duplicate is logged');

answers('dry run: another request runs', 2, ['/dry/one/2'] => '201 NEW []',
    ['/dry/one/2', body => 'y'] => '201 REUSED [key_reused]');
answers('dry run: unknown outcomes run', 3, ['/dry/one/3', do => 'die=before'] => '502 NEW []',
    ['/dry/one/3'] => '201 UNKNOWN [outcome_unknown]',
    ['/dry/one/3'] => '201 UNKNOWN [outcome_unknown]');
answers('dry run: responses not kept', 2, ['/dry/one/4', do => 'size=70000'] => '201 NEW []',
    ['/dry/one/4'] => '201 NOT_KEPT [response_not_kept]');
is(log_since_mark(), 4, 'dry run: all that is logged');
answers('dry run: a released key is new again', 2,
    ['/dry/one/5', do => 'status=500'] => '500 NEW []', ['/dry/one/5'] => '201 NEW []');
is(log_since_mark(), 0, 'dry run: what is new is not logged');

answers('dry run: invalid keys pass', 5,
    ['/dry/one/6', key => '"'] => '201 INVALID [key_invalid]',
    ['/dry/one/6', key => 'k' x 256] => '201 INVALID [key_invalid]',
    ['/dry/required/1', key => undef] => '201 INVALID [key_missing]',
    ['/dry/required/1', method => 'OPTIONS'] => '201 INVALID [key_not_supported]',
    ['/dry/scope/1'] => '201 INVALID [scope_missing]');
is(log_since_mark(), 5, 'dry run: and are logged');

while_pending('/dry/one/7', sub ($first) {
    is(ask('/dry/one/7'), '201 IN_PROGRESS [in_progress]', 'dry run: a duplicate in flight runs');
    is(ask('/dry/one/7', body => 'y'), '201 REUSED [key_reused]', 'dry run: so does another request');
    is(ledger_count(), 3, 'dry run: three executions');
})->response;
is(ask('/dry/one/7'), '201 REPLAY []', 'dry run: the outcome is that of the first');

# A duplicate that waited would be as late as the first, which is not over yet.
while_pending('/dry/wait/1', sub ($first) {
    is(ask('/dry/wait/1'), '201 IN_PROGRESS [in_progress]', 'dry run: a duplicate does not wait');
})->response;

answers('dry run: no key', 1, ['/dry/one/8', key => undef] => '201 - []');

answers('plain nginx tries the next peer', 2, ['/plain/1', do => 'die=before'] => '502 - []');
answers('dry run: so does nginx', 2, ['/dry/1', do => 'die=before'] => '502 NEW []');

# Plain nginx drops the exchange when the client leaves, and logs 499 then.
for my $place ('/plain/2', '/dry/one/9') {
    my $own = $id + 1;
    while_pending($place, sub ($first) {
        $first->close;
        ok(wait_until(sub { $ng->access_log =~ /^$own 499 /m }, 5, '499'),
            "$place: the exchange ends with the client");
    });
}

# The application pauses in its answer: what it said before reaches the client.
for my $place ('/plain/3', '/dry/one/10') {
    my $conn = send_request(arguments($place, do => 'size=10&pieces=2&gap=1'));
    my $started = time;
    IO::Select->new($conn->sock)->can_read(10);
    cmp_ok(time - $started, '<', 0.9, "$place: the answer is not held");
    $conn->close;
}

# A run that is protected goes on without its client.
{
    my $own = $id + 1;
    while_pending('/9', sub ($first) { $first->close });
    ok(wait_until(sub { $ng->access_log =~ /^$own /m }, 5, 'a log line'), 'the run comes to its end');
    is(ask('/9'), '201 replayed REPLAY []', 'without a dry run the exchange outlives the client');
}

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;
done_testing();
