#!/usr/bin/env perl

# The status page in a browser: it lists unknown outcomes and settles them
# where the server has an administrators' location, by the same requests as
# everybody else. TEST_SCREENSHOTS=folder keeps what it looks like.

use v5.36;

use Test::More;

use Admin;
use Browser;
use Keyed;
use Ledger;
use Nginx;
use Status ();

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

my $ng = Nginx->prepare(http => <<"CONF");
    idempotency_scope none;
    idempotency_store second memory:1m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { idempotency on; $pass }
        location /second { idempotency second; $pass }
        location /dry { idempotency on; idempotency_dry_run on; $pass }
        location = /none { idempotency_status; }
    }
    server {
        listen 127.0.0.1:%%PORT4%%;
        location = /status { idempotency_status; }
        location = /admin { idempotency_admin; }
        location ~ ^/regex\$ { idempotency_admin; }
    }
    server {
        listen 127.0.0.1:%%PORT2%%;
        location = /status { idempotency_status; }
        location = /closed { idempotency_admin; deny all; }
    }
CONF
$ng->launch or die 'nginx does not start: ' . $ng->error_log;
retry_against($ng);

my $browser = Browser->start;

sub go ($port, $uri) {
    $browser->go("http://127.0.0.1:$port$uri");
    wait_until(sub { $browser->run("return document.getElementById('when').textContent") =~ /^as of/ },
        20, 'the page') or die "the page does not come up\n";
}

sub is_hidden ($id) { return $browser->run("return document.getElementById('$id').hidden") }

sub page_said { return $browser->run("return document.getElementById('unknown-said').textContent") }

sub says ($what) { return wait_until(sub { page_said() =~ $what }, 20, "the page to say $what") }

sub ids {
    return $browser->run(
        "return [...document.querySelectorAll('#unknown-list tbody tr')].map(r => r.dataset.id)");
}

# Presses a button as a keyboard does.
sub press ($selector) {
    $browser->run("document.querySelector(arguments[0]).focus()", $selector);
    $browser->keys('Enter');
}

sub set_field ($name, $value) {
    $browser->run("document.querySelector('#settle [name=' + arguments[0] + ']').value = arguments[1]",
        $name, $value);
}

sub picture ($name) {
    my $folder = $ENV{TEST_SCREENSHOTS} or return;
    $browser->screenshot("$folder/$name.png");
}

sub unknown_key ($uri = '/x', $store = 'default') {
    write_to($uri, do => 'die=before');
    return answer_of(act($ng, act => 'find', key => claim_key(), store => $store,
        host => 'localhost', port => $ng->port, method => 'POST', path => $uri))->{id};
}

subtest 'where there is no location for it nothing is offered' => sub {
    is(Status::status_of($ng, port => 1, uri => '/none')->{admin}, undef, 'the JSON has none');
    go($ng->port, '/none');
    ok(is_hidden('unknown'), 'nor has the page');
};

claim 'there is nothing to settle' => sub {
    is(Status::status_of($ng)->{admin}, '/admin', 'the JSON says where');
    go($ng->port(4), '/status');
    ok(!is_hidden('unknown'), 'the page offers it');
    press('#unknown-show');
    ok(says(qr/^None is unknown now\.$/), 'and says so');
    ok(is_hidden('unknown-list'), 'without a list');
};

claim 'released: the next retry is executed' => sub {
    my $id = unknown_key();
    press('#unknown-show');
    ok(says(qr/^1 unknown\.$/), 'one');
    is_deeply(ids(), [$id], 'this one');
    press("tr[data-id='$id'] [data-act=release]");
    ok($browser->run("return document.getElementById('settle').open"), 'it asks first');
    is(find($ng, claim_key(), store => 'default')->{state}, 'unknown', 'and has done nothing yet');
    picture('settle-release');
    press('#settle-cancel');
    is(find($ng, claim_key(), store => 'default')->{state}, 'unknown', 'nor when the answer is no');
    press("tr[data-id='$id'] [data-act=release]");
    press('#settle-do');
    ok(says(qr/^Done: release record $id\. None is unknown now\.$/), 'done');
    is($browser->run('return document.activeElement.id'), 'unknown-said', 'and it is read out');
    is_rerun(write_to('/x'));
    like($ng->error_log, qr/administrator "-" at 127\.0\.0\.1: release record $id/, 'logged');
};

claim 'completed: retries get this response; in a store of another name' => sub {
    my $id = unknown_key('/second', 'second');
    press('#unknown-show');
    ok(says(qr/^1 unknown\.$/), 'one');
    press("tr[data-id='$id'] [data-act=complete]");
    set_field(status => 201);
    set_field(headers => "Location: /orders/77\nX-By: hand\n");
    set_field(body => '{"total":"5 & 6 = 11"}');
    picture('settle-complete');
    press('#settle-do');
    ok(says(qr/^Done: complete record $id\./), 'done');
    my $retry = write_to('/second');
    is("$retry->{status} $retry->{body}", '201 {"total":"5 & 6 = 11"}', 'status and body');
    is(header($retry, 'Location'), '/orders/77', 'a header');
    is(header($retry, 'X-By'), 'hand', 'another header');
    is(executions(), 1, 'not executed again');
};

claim 'what cannot be done is said' => sub {
    my $id = unknown_key();
    press('#unknown-show');
    says(qr/^1 unknown/);
    press("tr[data-id='$id'] [data-act=complete]");
    set_field(headers => 'no header');
    press('#settle-do');
    ok(says(qr/^Not done: "complete" needs/), 'a header that is none');
    for my $look (['light', 1100], ['dark', 1100], ['dark', 360]) {
        $browser->media($look->[0]);
        $browser->size($look->[1], 900);
        cmp_ok($browser->run('return document.documentElement.scrollWidth'), '<=', $look->[1],
            'nothing sticks out');
        picture("settle-list-$look->[0]-$look->[1]");
    }
    press("tr[data-id='$id'] [data-act=delete]");
    is(act($ng, act => 'release', id => $id, store => 'default')->{status}, 200,
        'somebody else is quicker');
    press('#settle-do');
    ok(says(qr/^Not done: There is no such record/), 'a record that is gone');
};

claim 'many are shown in parts' => sub {
    my @connections = map { send_post($ng->port, claim_key() . "-$_", do => 'die=before') } 1 .. 120;
    collect(\@connections, 60);
    press('#unknown-show');
    ok(says(qr/^\d+(?: or more)? unknown\.$/), 'some');
    for (1 .. 20) {
        last if is_hidden('unknown-more');
        my $before = @{ ids() };
        press('#unknown-more');
        wait_until(sub { @{ ids() } > $before || is_hidden('unknown-more') }, 20, 'more of them');
    }
    ok(says(qr/^120 unknown\.$/), 'in the end all');
    my %seen = map { $_ => 1 } @{ ids() };
    is(keys %seen, 120, 'once each');
};

subtest 'a dry run saves nothing, and the page does not say so' => sub {
    post($ng->port, 'dry', uri => '/dry') for 1 .. 3;
    post($ng->port, 'dry', uri => '/dry', body => 'other');
    go($ng->port(4), '/status');
    my $text = sub { $browser->run("return document.getElementById('dry-run').textContent") };
    ok(wait_until(sub { $text->() =~ /^Dry run: without it, 2 requests would have got a stored response, and 1 would have been refused \(key_reused 1\)\.$/ },
        20, 'the text'), 'it says what would have been') or diag($text->());
    my $totals = $browser->run("return ['saved', 'stopped'].map(n => +document.getElementById('total-' + n).dataset.value)");
    my $zone = Status::counts($ng, '_');
    is($totals->[0], $zone->{replay_age_seconds}, 'retries saved');
    is($totals->[0], $zone->{'requests.REPLAY'} - 2, 'without those of the dry run');
    is($totals->[1], $zone->{'requests.UNKNOWN'} // 0, 'duplicates stopped');
    picture('dry-run');
};

subtest 'who may not settle is told so' => sub {
    go($ng->port(2), '/status');
    press('#unknown-show');
    ok(says(qr/^They cannot be shown: nginx answers with 403/), 'told so');
    ok(is_hidden('unknown-list'), 'and sees nothing');
};

$browser->stop;
ok($ng->stop, 'stops');
$ng->check_logs;

done_testing();
