#!/usr/bin/env perl

# idempotency_admin: look a record up, list unknown outcomes, settle one.

use v5.36;

use Test::More;

use Admin;
use Keyed;
use Ledger;
use Nginx;
use RedisServer;

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

# root:secret
my $users = 'root:{PLAIN}secret';

my $ng = Nginx->prepare(workers => 2, http => <<"CONF");
    idempotency_scope none;
    lingering_close off;
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        location / { idempotency on; idempotency_lease 300ms; $pass }
        location /any { idempotency on; idempotency_scope_route off; $pass }
        location /scoped { idempotency on; idempotency_scope \$http_x_user \$http_x_shop; $pass }
        location /again { idempotency on; idempotency_unknown_outcome release; $pass }
        location /large { idempotency on; $pass }
        location = /pid { return 200 \$pid; }
        location = /admin { idempotency_admin; }
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        location / { stub_status; access_log off; }
    }
    server {
        listen 127.0.0.1:%%PORT4%%;
        idempotency on;
        location = /admin { idempotency_admin; }
        location = /guarded {
            auth_basic admin;
            auth_basic_user_file %%DIR%%/users;
            idempotency_admin;
        }
    }
CONF
write_file($ng->path('users'), "$users\n");
$ng->launch or die 'nginx does not start: ' . $ng->error_log;
retry_against($ng);

sub unknown_key {
    write_to('/x', do => 'die=before');
    return find($ng, claim_key());
}

claim 'a record that completed is found by its key' => sub {
    write_to('/x', do => 'status=202');
    my $found = find($ng, claim_key());
    is($found->{state}, 'completed', 'state');
    is($found->{status}, 202, 'status');
    is($found->{attempt}, 1, 'attempt');
    cmp_ok($found->{response_bytes}, '>', 20, 'size');
    cmp_ok($found->{age_seconds}, '<', 60, 'age');
    cmp_ok(abs($found->{remaining_seconds} - 86400), '<', 60, 'remaining time');
    is_deeply([sort keys %$found], [qw(age_seconds attempt id remaining_seconds response_bytes
        state status)], 'and nothing else: no key, no body');
    is_deeply({ %{ answer_of(ask($ng, "id=$found->{id}")) }, %$found{qw(age_seconds
        remaining_seconds)} }, $found, 'and by its id');
};

claim 'the route and the scope are part of the name' => sub {
    write_to('/x');
    is(act($ng, act => 'find', key => claim_key(), host => 'localhost', port => $ng->port,
        method => 'PUT', path => '/x')->{status}, 404, 'another method');
    write_to('/any/thing');
    is(answer_of(act($ng, act => 'find', key => claim_key()))->{state}, 'completed', 'no route');
    write_to('/scoped', headers => ['X-User' => 'ann', 'X-Shop' => 'a&b']);
    my @route = (host => 'localhost', port => $ng->port, method => 'POST', path => '/scoped');
    is(answer_of(act($ng, act => 'find', key => claim_key(), scope => 'ann', scope => 'a&b',
        @route))->{state}, 'completed', 'two values of a scope');
    is(act($ng, act => 'find', key => claim_key(), scope => 'bob', scope => 'a&b',
        @route)->{status}, 404, 'of another caller');
};

claim 'release: it did not happen, and the next retry runs' => sub {
    my $record = unknown_key();
    is($record->{state}, 'unknown', 'unknown');
    is($record->{status}, undef, 'without a status');
    is_refused(write_to('/x'), 'outcome_unknown');
    my $answer = act($ng, act => 'release', id => $record->{id});
    is_deeply(answer_of($answer), { id => $record->{id}, done => 'release' }, 'done');
    is(ask($ng, "id=$record->{id}")->{status}, 404, 'gone');
    is_rerun(write_to('/x'));
    is(executions(), 2, 'executed again');
};

claim 'complete: it did happen, and retries get this' => sub {
    my $record = unknown_key();
    my $answer = act($ng, act => 'complete', id => $record->{id}, status => 201,
        header => 'Location: /orders/77', header => 'X-By: hand', type => 'text/plain; charset=utf-8',
        body => "it's done & dusted\n");
    is($answer->{status}, 200, 'done') or diag($answer->{body});
    my $found = find($ng, claim_key());
    is("$found->{state} $found->{status}", 'completed 201', 'state');
    my $retry = write_to('/x');
    is($retry->{status}, 201, 'status');
    is(header($retry, 'Idempotent-Replayed'), 'true', 'a replay');
    is(header($retry, 'Location'), '/orders/77', 'Location');
    is(header($retry, 'X-By'), 'hand', 'another header');
    is(header($retry, 'Content-Type'), 'text/plain; charset=utf-8', 'type');
    is($retry->{body}, "it's done & dusted\n", 'body');
    is(executions(), 1, 'not executed again');
    is_refused(write_to('/x', body => 'other'), 'key_reused', 422);
    cmp_ok(abs($found->{remaining_seconds} - 86400), '<', 60, 'for a day');
};

# As an operator may copy them from another response.
claim 'complete leaves out what belongs to the connection' => sub {
    my $record = unknown_key();
    my @left_out = ('Content-Length: 3', 'content-length: 400', 'Transfer-Encoding: chunked',
        'Connection: close', 'Keep-Alive: timeout=5', 'Proxy-Connection: close', 'TE: trailers',
        'Trailer: X-T', 'Upgrade: h2c', 'Proxy-Authenticate: Basic', 'Server: other',
        'Date: Thu, 01 Jan 1970 00:00:00 GMT');
    my $answer = act($ng, act => 'complete', id => $record->{id}, status => 201,
        (map { (header => $_) } @left_out), header => 'X-By: hand', body => 'by hand');
    is($answer->{status}, 200, 'done') or diag($answer->{body});
    my $conn = Http1->new($ng->port);
    my $ask = sub ($key) {
        my (undef, @request) = post_args($ng->port, $key, headers => [Connection => 'keep-alive']);
        return $conn->send(@request)->response;
    };
    my $retry = $ask->(claim_key());
    is("$retry->{status} $retry->{body}", '201 by hand', 'replayed');
    is(header($retry, 'X-By'), 'hand', 'with the other header');
    is(header($retry, 'Content-Length'), 7, 'one length, the true one');
    is(header($retry, $_), undef, "no $_")
        for qw(Transfer-Encoding Keep-Alive Proxy-Connection TE Trailer Upgrade Proxy-Authenticate);
    is(header($retry, 'Connection'), 'keep-alive', 'the connection is kept');
    unlike(header($retry, 'Server') . header($retry, 'Date'), qr/other|1970/, 'Server and Date are new');
    like(said($ask->(claim_key() . '-next')), qr/^201 #\d+$/, 'and sound');
    $conn->close;
};

claim 'an act may come in chunks' => sub {
    my $record = unknown_key();
    my $form = Admin::form(act => 'release', id => $record->{id});
    my $answer = request($ng->port(4), 'POST', '/admin', body => $form, chunked => 1,
        headers => ['X-Idempotency-Admin' => 1]);
    is($answer->{status}, 200, 'done') or diag($answer->{body});
    is_rerun(write_to('/x'));
};

claim 'complete for some time' => sub {
    my $record = unknown_key();
    is(act($ng, act => 'complete', id => $record->{id}, status => 200, ttl => 600)->{status}, 200,
        'done');
    cmp_ok(abs(find($ng, claim_key())->{remaining_seconds} - 600), '<', 30, 'remaining time');
    my $retry = write_to('/x');
    is("$retry->{status} $retry->{body}", '200 ', 'an empty response');
};

claim 'delete: whatever it is' => sub {
    write_to('/x');
    my $record = find($ng, claim_key());
    for my $what (qw(release complete)) {
        my $answer = act($ng, act => $what, id => $record->{id}, status => 200);
        is($answer->{status}, 409, "$what is for unknown outcomes");
        is(answer_of($answer)->{error}, 'not_unknown', 'and says so');
    }
    is(said(write_to('/x'), number => 0), '201 replayed', 'and nothing has changed');
    is(act($ng, act => 'delete', id => $record->{id})->{status}, 200, 'deleted');
    is_rerun(write_to('/x'));
    $record = unknown_key();
    is(act($ng, act => 'delete', id => $record->{id})->{status}, 200, 'an unknown outcome too');
};

claim 'nothing is done to a record whose owner lives' => sub {
    my ($gate, $owner) = start_run($ng->port, claim_key());
    my $record = find($ng, claim_key());
    is($record->{state}, 'pending', 'pending');
    # Longer than its lease, so it has been renewed.
    select undef, undef, undef, 0.7;
    for my $what (qw(release complete delete)) {
        my $answer = act($ng, act => $what, id => $record->{id}, status => 200);
        is("$answer->{status} " . answer_of($answer)->{error}, '409 in_progress', "no $what");
    }
    $gate->open;
    my $first = said($owner->response);
    like($first, qr/^201 #\d+$/, 'the run ends as it would have');
    is(said(write_to('/x')), "$first replayed", 'and is replayed');
    is(executions(), 1, 'executed once');
};

claim 'an owner that comes back from the dead does not undo what was settled' => sub {
    my @pids = $ng->worker_pids;
    my ($gate, $owner) = start_run($ng->port, claim_key(),
        conn => connection_to($ng->port, $pids[0]));
    # A new connection might have to wait for the worker that stands still.
    my $conn = connection_to($ng->port, $pids[1]);
    my $ask = sub (@fields) {
        $conn->send('POST', '/admin', body => Admin::form(@fields),
            headers => ['X-Idempotency-Admin' => 1, Connection => 'keep-alive']);
        return $conn->response;
    };
    kill STOP => $pids[0];
    my $record;
    wait_until(sub {
        $record = answer_of($ask->(act => 'find', key => claim_key(), host => 'localhost',
            port => $ng->port, method => 'POST', path => '/x'));
        return $record->{state} eq 'unknown';
    }, 10, 'the end of the lease');
    my $answer = $ask->(act => 'complete', id => $record->{id}, status => 299, body => 'settled');
    is($answer->{status}, 200, 'settled') or diag($answer->{body});
    kill CONT => $pids[0];
    $gate->open;
    is($owner->response->{body}, 'settled', 'its own client is told the same');
    my $retry = write_to('/x');
    is("$retry->{status} $retry->{body}", '299 settled', 'as is a retry');
    is(executions(), 1, 'executed once');
};

claim 'unknown outcomes are listed, page by page' => sub {
    my @before = unknown_of($ng);
    my @keys = map { claim_key() . "-$_" } 1 .. 130;
    my @connections = map { send_post($ng->port, $_, uri => '/large', do => 'die=before') } @keys;
    collect(\@connections, 60);
    my %wanted = map { find($ng, $_, path => '/large')->{id} => 1 } @keys;
    is(keys %wanted, 130, 'so many');
    my @listed = unknown_of($ng);
    is(@listed - @before, 130, 'all are listed');
    my %seen;
    $seen{ $_->{id} }++ for @listed;
    is_deeply([grep { !$seen{$_} } keys %wanted], [], 'by their ids');
    is_deeply([grep { $_ > 1 } values %seen], [], 'once each');
    is_deeply([grep { $_->{state} ne 'unknown' } @listed], [], 'and no other state');
    my $page = answer_of(ask($ng, 'unknown'));
    cmp_ok(scalar @{ $page->{unknown} }, '<=', 2000, 'a page has its limit');
    ok(defined $page->{next}, 'and there is a next one') if !on_redis();
};

claim 'a page of another site cannot act' => sub {
    my $record = unknown_key();
    my @act = (act => 'release', id => $record->{id});
    my $host = '127.0.0.1:' . $ng->port(4);
    my %forged = (
        'without the header' => [],
        'a cross-site request' => ['X-Idempotency-Admin' => 1, 'Sec-Fetch-Site' => 'cross-site'],
        'a sibling site' => ['X-Idempotency-Admin' => 1, 'Sec-Fetch-Site' => 'same-site'],
        'another origin' => ['X-Idempotency-Admin' => 1, Origin => 'http://evil.example'],
        'no origin' => ['X-Idempotency-Admin' => 1, Origin => 'null'],
    );
    for my $how (sort keys %forged) {
        is(act($ng, { headers => $forged{$how} }, @act)->{status}, 403, $how);
    }
    is(find($ng, claim_key())->{state}, 'unknown', 'and has changed nothing');
    is(act($ng, { headers => ['X-Idempotency-Admin' => 1, Origin => "http://$host",
        'Sec-Fetch-Site' => 'same-origin', Host => $host] }, @act)->{status}, 200,
        'our own page can');
};

claim 'access control is that of nginx, and the log says who it was' => sub {
    my $record = unknown_key();
    my @act = (act => 'release', id => $record->{id});
    is(act($ng, { uri => '/guarded' }, @act)->{status}, 401, 'nobody');
    is(find($ng, claim_key())->{state}, 'unknown', 'has changed nothing');
    is(act($ng, { uri => '/guarded', headers => ['X-Idempotency-Admin' => 1,
        Authorization => 'Basic cm9vdDpzZWNyZXQ='] }, @act)->{status}, 200, 'an administrator');
    like($ng->error_log, qr/\[notice\].*idempotency: administrator "root" at 127\.0\.0\.1: release record $record->{id} in store "default": done/,
        'is named');
    unlike($ng->error_log, qr/administrator.*\Q${\ claim_key() }\E/, 'without the key');
    act($ng, { headers => ['X-Idempotency-Admin' => 1,
        # "a\n2026 forged"b\e:x
        Authorization => 'Basic ImEKMjAyNiBmb3JnZWQiYhs6eA=='] }, @act);
    like($ng->error_log, qr/administrator "\?a\?2026 forged\?b\?" at 127\.0\.0\.1: release/,
        'a name cannot look like another line');
};

claim 'what makes no sense' => sub {
    my $record = unknown_key();
    my $id = $record->{id};
    my @bad = (
        ['no question', ask($ng, '')],
        ['no such id', ask($ng, 'id=12')],
        ['no such store', ask($ng, "id=$id&store=none")],
        ['no act', act($ng, id => $id)],
        ['another act', act($ng, act => 'burn', id => $id)],
        ['no id', act($ng, act => 'release')],
        ['no key', act($ng, act => 'find')],
        ['no status', act($ng, act => 'complete', id => $id)],
        ['not a status', act($ng, act => 'complete', id => $id, status => 99)],
        ['no header', act($ng, act => 'complete', id => $id, status => 200, header => 'x')],
        ['a split header', act($ng, act => 'complete', id => $id, status => 200,
            header => "X: a\r\nY: b")],
        ['a split type', act($ng, act => 'complete', id => $id, status => 200,
            type => "text/plain\r\nY: b")],
        ['a second type', act($ng, act => 'complete', id => $id, status => 200,
            header => 'Content-Type: text/plain')],
        ['a body that the status does not have', act($ng, act => 'complete', id => $id,
            status => 204, body => 'x')],
        ['no time', act($ng, act => 'complete', id => $id, status => 200, ttl => 0)],
    );
    is("$_->[1]{status} " . (answer_of($_->[1])->{error} // ''), '400 bad_request', $_->[0]) for @bad;
    is(request($ng->port(4), 'DELETE', '/admin')->{status}, 405, 'another method');
    is(act($ng, act => 'complete', id => $id, status => 200, body => 'x' x 100_000)->{status}, 413,
        'more than fits in memory');
    is(act($ng, act => 'release', id => '0' x length $id)->{status}, 404, 'no such record');
    is(find($ng, claim_key())->{state}, 'unknown', 'has changed nothing');
};

finish($ng);

subtest 'a Redis that is gone' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    my $redis = RedisServer->start;
    my $down = Nginx->start(http => <<"CONF");
    idempotency_store far @{[$redis->url]} timeout=300ms connect_timeout=300ms;
    server {
        listen 127.0.0.1:%%PORT4%%;
        location = /admin { idempotency_admin; }
    }
CONF
    is(ask($down, 'unknown&store=far')->{status}, 200, 'asked');
    $redis->stop;
    is(ask($down, 'unknown&store=far')->{status}, 503, 'then it says so');
    is(act($down, act => 'release', id => 'ab' x 16, store => 'far')->{status}, 503, 'and of an act');
    ok($down->stop, 'stops');
    $down->check_logs;
};

done_testing();
