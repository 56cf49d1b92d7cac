# The gate while a request is under way or the store is full: limit_conn, what
# $idempotency_status tells, and dry runs.

use v5.36;

use IO::Select;
use Test::More;
use Time::HiRes qw(time);
use lib 't/lib';
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
log_format told escape=none '$http_x_id $status $idempotency_status [$idempotency_error]';
access_log %%DIR%%/access.log told;
limit_conn_zone $http_x_limit zone=connections:1m;
limit_conn_log_level info;
idempotency_store tiny memory:32k;
idempotency_scope none;
idempotency on;

server {
    listen 127.0.0.1:%%PORT%%;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }

    location /conn/ {
        limit_conn connections 1;
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
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /dry/ {
        idempotency_dry_run on;
        proxy_buffering off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;

        location /dry/wait/ {
            idempotency_wait 10s;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
    }
}
CONF

my $id = 0;

# ($uri, key => , do => behaviour, body => , headers => )
sub arguments ($uri, %opt) {
    my @headers = ('X-Id' => ++$id, 'Idempotency-Key' => $opt{key} // 'k', @{ $opt{headers} // [] });
    push @headers, 'X-Behaviour' => $opt{do} if defined $opt{do};
    return ($ng->port, 'POST', $uri, headers => \@headers, body => $opt{body} // 'x');
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

# A request that stays with the application while $during runs.
sub while_pending ($uri, $during, %opt) {
    ledger_reset();
    my $barrier = $ng->path('barrier-' . ($id + 1));
    my $first = send_request(arguments($uri, %opt, do => "barrier=$barrier"));
    ok(wait_until(sub { ledger_count() == 1 }), "$uri: one request is pending");
    $during->($first);
    open my $file, '>', $barrier or die "$barrier: $!\n";
    return $first;
}

# ---- limit_conn -----------------------------------------------------------

sub answer ($got) {
    return "$got->{status}" if !$got->{headers}{'x-execution'};
    return join ' ', $got->{status},
        $got->{headers}{'idempotent-replayed'} ? 'replay of' : 'run',
        $got->{headers}{'x-execution'}[0];
}

{
    my @limit = map { [headers => ['X-Limit' => $_]] } 'one', 'two';
    my $ask = sub ($key, $limit) { answer(request(arguments('/conn/1', key => $key, @$limit))) };
    my $first = while_pending('/conn/1', sub ($first) {
        is($ask->('b', $limit[0]), 503, 'limit_conn refuses another');
        is($ask->('b', $limit[1]), '201 run 2', 'a key that limit_conn refused is free');
        is($ask->('a', $limit[0]), 503, 'limit_conn comes before the answer to a duplicate');
    }, key => 'a', @{ $limit[0] });
    is(answer($first->response), '201 run 1', 'the first goes on');
    is(ledger_count(), 2, 'two executions');
}

# ---- $idempotency_status --------------------------------------------------

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

# ---- idempotency_dry_run --------------------------------------------------

while_pending('/dry/7', sub ($first) {
    is(ask('/dry/7'), '201 IN_PROGRESS [in_progress]', 'dry run: a duplicate in flight runs');
    is(ask('/dry/7', body => 'y'), '201 REUSED [key_reused]', 'dry run: so does another request');
    is(ledger_count(), 3, 'dry run: three executions');
})->response;
is(ask('/dry/7'), '201 REPLAY []', 'dry run: the outcome is that of the first');

# A duplicate that waited would be as late as the first, which is not over yet.
while_pending('/dry/wait/1', sub ($first) {
    is(ask('/dry/wait/1'), '201 IN_PROGRESS [in_progress]', 'dry run: a duplicate does not wait');
})->response;

# Plain nginx drops the exchange when the client leaves, and logs 499 then.
for my $place ('/plain/2', '/dry/9') {
    my $own = $id + 1;
    while_pending($place, sub ($first) {
        $first->close;
        ok(wait_until(sub { $ng->access_log =~ /^$own 499 /m }, 5, '499'),
            "$place: the exchange ends with the client");
    });
}

# The application pauses in its answer: what it said before reaches the client.
for my $place ('/plain/3', '/dry/10') {
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
