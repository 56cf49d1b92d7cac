#!/usr/bin/env perl

# Many clients at once that retry, disagree and leave: whatever the order, a
# key that has succeeded never runs again, and all are told the same.

use v5.36;

use List::Util qw(max shuffle uniq);
use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Http2;
use Keyed;

my $KEYS    = 200;
my $RETRIES = 5;
my $AT_ONCE = 20;     # keys

my $seed = $ENV{TEST_STORM_SEED} // time ^ $$;
srand($seed);
note("TEST_STORM_SEED=$seed repeats this");

my $ng = Nginx->start(workers => 2, http => <<'CONF');
idempotency_scope none;
idempotency_scope_route host method path;
lingering_close off;
server {
    listen 127.0.0.1:%%PORT%% reuseport;
    listen 127.0.0.1:%%PORT2%% http2 reuseport;
    idempotency on;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /wait {
        idempotency_wait 10s;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /open {
        idempotency_hold off;
        idempotency_wait 300ms;
        proxy_buffering off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
server {
    listen 127.0.0.1:%%PORT3%%;
    location / { stub_status; access_log off; }
}
CONF

sub uri_of ($key) {
    my ($number) = $key =~ /(\d+)$/;
    return ('/x', '/wait', '/open')[$number % 3];
}

# One of a key's requests, sent; undef if its client has left already.
sub send_one ($key, $odds) {
    my $do = sprintf 'sleep=%.3f', rand 0.08;
    $do .= '&status=500' if rand() < $odds->{fails};
    my $body = rand() < $odds->{differs} ? 'other' : 'body';
    my @request = ('POST', uri_of($key), body => $body,
        headers => ['idempotency-key' => $key, 'x-behaviour' => $do]);

    if (rand() < $odds->{leaves}) {
        leave_early(@request);
        return;
    }
    return { key => $key, conn => send_request($ng->port, @request) };
}

sub leave_early (@request) {
    if (rand() < 0.3) {
        my $h2 = Http2->new($ng->port(2));
        my $id = $h2->send(@request);
        sleep rand 0.01;
        rand() < 0.5 ? $h2->rst($id) : $h2->close;
        return;
    }
    my $conn = send_request($ng->port, @request);
    sleep rand 0.01;
    rand() < 0.5 ? $conn->close : $conn->reset;
}

# The answers by key, as said().
sub storm ($prefix, %odds) {
    my @keys = map {"$prefix-$_"} 1 .. $KEYS;
    my (%answers, $hung);
    while (my @some = splice @keys, 0, $AT_ONCE) {
        my @sent = grep {defined} map { send_one($_, \%odds) } shuffle((@some) x $RETRIES);
        my @responses = collect([map { $_->{conn} } @sent], 30);
        for my $i (0 .. $#sent) {
            push @{ $answers{ $sent[$i]{key} } }, said($responses[$i]);
            $hung++ if $responses[$i]{timeout};
            $sent[$i]{conn}->close;
        }
    }
    is($hung // 0, 0, 'no request hangs');
    return \%answers;
}

# Once more with either body, when those that run without a client are done.
sub ask_last ($answers, $prefix) {
    wait_until(sub { under_way($ng->port(3)) == 0 }, 15, 'the last runs');
    for my $key (map {"$prefix-$_"} 1 .. $KEYS) {
        push @{ $answers->{$key} }, map {
            said(post($ng->port, $key, uri => uri_of($key), body => $_));
        } qw(body other);
    }
}

sub check ($prefix, $answers, $allowed, $wrong) {
    my $runs = runs_by_key();
    my @wrong;
    for my $key (map {"$prefix-$_"} 1 .. $KEYS) {
        my @said = @{ $answers->{$key} };
        my @strange = grep { !/$allowed/ } @said;
        my @good = uniq(map { /^201 #(\d+)/ ? $1 : () } @said);
        my @runs = @{ $runs->{$key} // [] };
        my $reason = @strange ? 'a strange answer'
            : @good != 1 ? 'not one good answer' : $wrong->($good[0], @runs);
        push @wrong, "$key: $reason; ran as @runs; said " . join ', ', @said if $reason;
    }
    is_deeply(\@wrong, [], 'every key has one outcome, and all are told the same');
}

subtest 'an operation runs once, whoever comes, waits, differs or leaves' => sub {
    ledger_reset();
    my $answers = storm('once', fails => 0, differs => 0.2, leaves => 0.3);
    ask_last($answers, 'once');
    check('once', $answers,
        qr/^(?:201 #\d+(?: replayed)?|409 in_progress|422 key_reused)$/,
        sub ($good, @runs) { @runs == 1 && $runs[0] == $good ? '' : 'ran again' });
    is(ledger_count(), $KEYS, 'one run for each key');
};

subtest 'an operation that fails is run again until it succeeds, and no more' => sub {
    ledger_reset();
    my $answers = storm('fails', fails => 0.4, differs => 0.1, leaves => 0.3);
    ask_last($answers, 'fails');
    check('fails', $answers,
        qr/^(?:201 #\d+(?: replayed)?|500 #\d+|409 in_progress|422 key_reused)$/,
        sub ($good, @runs) { max(@runs) == $good ? '' : 'ran after it had succeeded' });
};

ok(wait_until(sub { under_way($ng->port(3)) == 0 }, 10, 'the rest'), 'no request is left over');
ok($ng->stop, 'stops');
$ng->check_logs;

done_testing();
