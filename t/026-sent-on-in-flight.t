#!/usr/bin/env perl

# Runs that a content handler has sent on, while others wait for them or have
# taken over from them: nobody gets the response past the location that has
# admitted its run.

use v5.36;

use Test::More;

use Http2;
use Keyed;
use Ledger;
use Nginx;

my $lua = lua_modules() or plan skip_all => 'needs Lua';
my $APP = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my @KEEP = (Connection => 'keep-alive');
my @ANN = ('X-User' => 'ann');

# The way is not in the fingerprint: a handler may choose by anything.
sub start_sent_on ($lines, %opt) {
    return Nginx->start(%opt, main => $lua, http => <<"CONF");
idempotency_scope none;
idempotency_scope_route host method path;
proxy_set_header X-Attempt \$idempotency_attempt;
lingering_close off;
$lines
server {
    listen 127.0.0.1:%%PORT%% reuseport;
    listen 127.0.0.1:%%PORT2%% http2;
    location / {
        idempotency on;
        content_by_lua_block { ngx.exec(ngx.var.http_x_way or "\@secret") }
    }
    location \@secret {
        if (\$http_x_user = "") { return 401; }
        $APP
    }
    location \@open { $APP }
    location = /pid { return 200 \$pid; }
}
server {
    listen 127.0.0.1:%%PORT3%%;
    location / { stub_status; access_log off; }
}
CONF
}

sub ask ($conn, $key, %opt) {
    my (undef, @arguments) = post_args(0, $key, %opt,
        headers => [@KEEP, @{ $opt{headers} // [] }]);
    $conn->send(@arguments);
    return $conn->response;
}

# ---- successors -----------------------------------------------------------

for my $case (
    ['another location', ['X-Way' => '@open'], '409 response_not_kept'],
    ['the same location', [@ANN], '201 #2 replayed'],
    )
{
    my ($name, $way, $told) = @$case;
    subtest "a successor that $name has admitted" => sub {
        ledger_reset();
        my $ng = start_sent_on('idempotency_lease 500ms; idempotency_unknown_outcome release;',
            workers => 2);
        my ($stopped, $other) = $ng->worker_pids;
        my $conn = connection_to($ng->port, $other);
        my ($gate, $owner) = start_run($ng->port, 'k', headers => [@KEEP, @$way],
            conn => connection_to($ng->port, $stopped));
        kill STOP => $stopped;
        $gate->open;
        is(wait_said(qr/^201/, sub { ask($conn, 'k', headers => \@ANN) }), '201 #2',
            'a retry takes over and runs');
        is_deeply([attempts_of('k')], [1, 2], 'as the second attempt');
        kill CONT => $stopped;
        my $got = $owner->response;
        is(said($got), $told, 'what the first client is told');
        unlike($got->{body}, qr/original/, 'and not more than that');
        is(said(ask($conn, 'k', headers => \@ANN)), '201 #2 replayed',
            'the successor\'s is the one stored');
        is(said(ask($conn, 'k')), '401', 'for those whom its location admits');
        is(ledger_count(), 2, 'two executions');
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

# ---- waiting, and HTTP/2 --------------------------------------------------

subtest 'those who have waited are led to the location, each with its own rights' => sub {
    ledger_reset();
    my $ng = start_sent_on('idempotency_wait 10s;');
    my ($gate, $owner) = start_run($ng->port, 'w', headers => \@ANN);
    my @waiting = map { send_post($ng->port, 'w', headers => $_ % 2 ? \@ANN : []) } 1 .. 6;
    my $h2 = Http2->new($ng->port(2));
    my @streams = map {
        $h2->send('POST', '/x', body => $Keyed::BODY,
            authority => 'localhost', headers => ['idempotency-key' => 'w', @$_])
    } ['x-user' => 'ann'], [];
    wait_parked($ng, 9);
    $gate->open;
    is(said($owner->response), '201 #1', 'the run ends');
    is_deeply(tally(map { $_->response } @waiting), { '201 #1 replayed' => 3, 401 => 3 },
        'HTTP/1');
    is_deeply([map { $h2->response($_)->{status} } @streams], [201, 401], 'HTTP/2');
    is(ledger_count(), 1, 'one execution');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

done_testing();
