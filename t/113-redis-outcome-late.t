#!/usr/bin/env perl

# Redis is away when a run ends: its client is answered all the same, and its
# outcome is stored as soon as that is possible.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

my $PARAMS = 'timeout=500ms connect_timeout=1s';

# A Redis behind a proxy, an nginx that uses it, and a second one that looks on.
sub start_all (%opt) {
    my ($redis, $proxy) = proxied_redis();
    my $lines = $opt{lines} // 'idempotency_lease 20s;';
    my ($ng) = on_redis_nginx($proxy->url, %opt, params => $PARAMS, lines => $lines);
    my $other = on_redis_nginx($redis->url, lines => $lines);
    return ($ng, $other, $redis, $proxy);
}

sub answered ($conn, $wanted) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $answer = $conn->response;
    like(said($answer), $wanted, 'the client is answered');
    return $answer;
}

my $WARNED = qr/\[(?:warn|error)\].*idempotency: /;

# ---- stored later ---------------------------------------------------------

for my $case (
    ['cut off',     sub ($redis, $proxy) { $proxy->mode('stall') }],
    ['mute',        sub ($redis, $proxy) { $proxy->mode('mute') }],
    ['frozen',      sub ($redis, $proxy) { $redis->freeze }],
    ['not there',   sub ($redis, $proxy) { $proxy->mode('refuse') }],
    )
{
    my ($name, $break) = @$case;
    for my $uri ('/x', $name eq 'cut off' ? '/open' : ()) {
        subtest "an outcome that met a Redis $name is stored when it is back ($uri)" => sub {
            my ($ng, $other, $redis, $proxy) = start_all();
            my $key = "$name$uri" =~ s/ /-/gr;
            my ($gate, $conn) = start_run($ng->port, $key, uri => $uri);
            $break->($redis, $proxy);
            my $opened = time;
            $gate->open;
            my $first = said(answered($conn, qr/^201 #\d+$/));
            cmp_ok(time - $opened, '<', 3, 'after the timeout at the latest');
            # For the attempts to begin.
            sleep 0.5;
            $proxy->mode('pass');
            $redis->thaw;
            is(wait_said("$first replayed", sub { post($other->port, $key, uri => $uri) }, 12),
                "$first replayed", 'soon it is stored, for every nginx');
            is(said(post($ng->port, $key, uri => $uri)), "$first replayed", 'its own too');
            is(ledger_count(key => $key), 1, 'executed once');
            finish($_) for $ng, $other;
        };
    }
}

subtest 'a failure frees its key later, well before its lease ends' => sub {
    my ($ng, $other, $redis, $proxy) = start_all();
    my ($gate, $conn) = start_run($ng->port, 'freed', do => 'status=500');
    $proxy->mode('refuse');
    $gate->open;
    answered($conn, qr/^500/);
    sleep 0.3;
    $proxy->mode('pass');
    my $retry = wait_said(qr/^201/, sub { post($other->port, 'freed') }, 12);
    like($retry, qr/^201 #\d+$/, 'a retry runs');
    is_deeply([attempts_of('freed')], [1, 1], 'as a first attempt');
    finish($_) for $ng, $other;
};

subtest 'an unknown outcome is known as such later, well before its lease ends' => sub {
    my ($ng, $other, $redis, $proxy) = start_all();
    my ($gate, $conn) = start_run($ng->port, 'unknown', do => 'die=before');
    $proxy->mode('refuse');
    $gate->open;
    answered($conn, qr/^502/);
    sleep 0.3;
    $proxy->mode('pass');
    is(wait_said('409 outcome_unknown', sub { post($other->port, 'unknown') }, 12),
        '409 outcome_unknown', 'a retry is told');
    is(ledger_count(key => 'unknown'), 1, 'executed once');
    finish($_) for $ng, $other;
};

subtest 'many outcomes of one outage are all stored, of any size' => sub {
    my ($ng, $other, $redis, $proxy) = start_all();
    my @keys = map {"many-$_"} 1 .. 40;
    my $gate = Keyed::Gate->new;
    my @conns = map {
        send_post($ng->port, $keys[$_],
            do => $gate->closed . '&size=' . ($_ % 4 ? $_ * 100 : 200_000));
    } 0 .. $#keys;
    begun($_) for @keys;
    $proxy->mode('refuse');
    $gate->open;
    my @first = collect(\@conns, 20);
    is(scalar(grep { said($_) =~ /^201 #\d+$/ } @first), 40, 'all clients are answered');
    $proxy->mode('pass');
    is_back($ng);
    wait_until(sub { said(post($other->port, $_)) =~ /replayed/ }, 10, $_) for @keys;
    my @retries = map { post($other->port, $_) } @keys;
    is_deeply([map { said($_) } @retries], [map { said($_) . ' replayed' } @first], 'all are stored');
    ok(!(grep { $retries[$_]{body} ne $first[$_]{body} } 0 .. $#keys), 'byte by byte');
    is(scalar(grep { ledger_count(key => $_) != 1 } @keys), 0, 'each executed once');
    my ($line) = lines_in($ng, qr/\[warn\].*available again/);
    like($line // '', qr/available again.*\b40\b/, 'the log counts them');
    finish($_) for $ng, $other;
};

subtest 'Redis dies between a claim and its end, and has what it had when it is back' => sub {
    my $redis = RedisServer->start(aof => 'always');
    my $ng = on_redis_nginx($redis->url, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'aof');
    $redis->kill;
    $gate->open;
    my $first = said(answered($conn, qr/^201 #\d+$/));
    $redis->launch;
    is(wait_said("$first replayed", sub { post($ng->port, 'aof') }, 12), "$first replayed", 'stored');
    is(ledger_count(key => 'aof'), 1, 'executed once');
    finish($ng);
};

# ---- nobody is there ------------------------------------------------------

subtest 'the client has left: its outcome is stored later all the same' => sub {
    my ($ng, $other, $redis, $proxy) = start_all();
    my ($gate, $conn) = start_run($ng->port, 'alone');
    $conn->close;
    $proxy->mode('stall');
    $gate->open;
    ok(wait_until(sub { under_way($ng->port(3)) == 0 }, 10, 'the run'), 'the run ends');
    $proxy->mode('pass');
    my ($n) = executions('alone');
    is(wait_said("201 #$n replayed", sub { post($other->port, 'alone') }, 12), "201 #$n replayed",
        'stored');
    is(ledger_count(key => 'alone'), 1, 'executed once');
    finish($_) for $ng, $other;
};

subtest 'a client that leaves while its outcome is stored changes nothing' => sub {
    my ($ng, $other, $redis, $proxy) = start_all();
    my ($gate, $conn) = start_run($ng->port, 'leaves');
    $proxy->mode('stall');
    $gate->open;
    sleep 0.1;
    $conn->reset;
    sleep 0.5;
    $proxy->mode('pass');
    my ($n) = executions('leaves');
    is(wait_said("201 #$n replayed", sub { post($other->port, 'leaves') }, 12), "201 #$n replayed",
        'stored');
    is(ledger_count(key => 'leaves'), 1, 'executed once');
    finish($_) for $ng, $other;
};

for my $how (qw(reload quit)) {
    subtest "a worker that leaves ($how) stores what it owes first" => sub {
        my ($ng, $other, $redis, $proxy) = start_all();
        my ($old) = $ng->worker_pids;
        my ($gate, $conn) = start_run($ng->port, "worker-$how");
        $proxy->mode('stall');
        $gate->open;
        my $first = said(answered($conn, qr/^201 #\d+$/));
        if ($how eq 'reload') { ok($ng->reload, 'reloaded') }
        else                  { kill QUIT => $ng->master_pid }
        sleep 0.5;
        ok(!is_gone($old), 'the old worker stays');
        $proxy->mode('pass');
        is(wait_said("$first replayed", sub { post($other->port, "worker-$how") }, 12),
            "$first replayed", 'stored');
        ok(wait_until(sub { is_gone($old) }, 10, 'the worker'), 'then it leaves');
        is(ledger_count(key => "worker-$how"), 1, 'executed once');
        finish($other);
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

subtest 'a worker that leaves does not wait for Redis for ever' => sub {
    my ($ng, $other, $redis, $proxy) = start_all(lines => 'idempotency_lease 1500ms;');
    my ($gate, $conn) = start_run($ng->port, 'leave');
    $proxy->mode('refuse');
    $gate->open;
    answered($conn, qr/^201 #\d+$/);
    ok($ng->stop, 'it stops by itself');
    is(wait_said('409 outcome_unknown', sub { post($other->port, 'leave') }), '409 outcome_unknown',
        'its outcome is unknown');
    is(ledger_count(key => 'leave'), 1, 'executed once');
    $ng->check_logs;
    finish($other);
};

# ---- slowly -----------------------------------------------------------------

subtest 'many large outcomes over a slow network do not cost the connection' => sub {
    my ($ng, $other, $redis, $proxy) = start_all();
    my @keys = map {"slow-$_"} 1 .. 8;
    my @runs = map { [start_run($ng->port, $_, do => 'size=1000000')] } @keys;
    $proxy->mode('slow');
    $_->[0]->open for @runs;
    my %first = map { $keys[$_] => answered($runs[$_][1], qr/^201 #\d+$/) } 0 .. $#keys;
    for my $key (@keys) {
        my $replayed = said($first{$key}) . ' replayed';
        is(wait_said($replayed, sub { post($other->port, $key) }, 20), $replayed, 'is stored');
        is(ledger_count(key => $key), 1, 'executed once');
    }
    is(scalar lines_in($ng, qr/is unavailable|lost while commands waited/), 0, 'the connection stays')
        or diag((lines_in($ng, qr/redis/i))[0 .. 3]);
    finish($_) for $ng, $other;
};

subtest 'who comes after a large outcome that hangs does not wait for it' => sub {
    my ($ng, $other, $redis, $proxy) = start_all(lines => 'idempotency_max_response 8m;');
    my ($gate, $conn) = start_run($ng->port, 'hangs', do => 'size=8000000');
    $proxy->mode('stall');
    $gate->open;
    answered($conn, qr/^201 #\d+$/);
    # The outcome is given more time than this.
    my $began = time;
    is(said(post($ng->port, 'next')), $REFUSED, 'refused');
    cmp_ok(time - $began, '<', 2, 'in its time');
    $proxy->mode('pass');
    my ($n) = executions('hangs');
    is(wait_said("201 #$n replayed", sub { post($other->port, 'hangs') }, 15), "201 #$n replayed",
        'the outcome is stored then');
    finish($_) for $ng, $other;
};

# ---- nginx closes all --------------------------------------------------------

subtest 'worker_shutdown_timeout closes the connection to Redis as well' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=10s',
        main => 'worker_shutdown_timeout 500ms;');
    # So that Redis knows the scripts, and a command is not sent twice.
    post($ng->port, 'first');
    my ($gate, $ended) = start_run($ng->port, 'ended');
    my ($shut, $cut) = start_run($ng->port, 'cut');
    $proxy->mode('mute');
    $gate->open;
    # Redis has it, nginx waits for the answer.
    wait_until(sub {
        2 == grep { ord(substr $redis->command('GET', $_), 1) == 2 } keys_of($redis);
    }, 10, 'the outcome');
    my ($old) = $ng->worker_pids;
    kill HUP => $ng->master_pid;
    ok(!$cut->response->{status}, 'a run is cut');
    $proxy->mode('pass');
    ok(wait_until(sub { is_gone($old) }, 10, 'the worker'), 'the old worker leaves');
    my ($n) = executions('ended');
    is(said(post($ng->port, 'ended')), "201 #$n replayed", 'one that had ended is stored');
    is(said(post($ng->port, 'cut')), '409 outcome_unknown', 'the other is unknown, and stored as that');
    is(ledger_count(key => $_), 1, "$_: executed once") for qw(ended cut);
    $shut->open;
    finish($ng, signal => 'TERM');
};

# ---- too late -------------------------------------------------------------

subtest 'Redis stays away longer than the lease: the outcome is unknown until it is stored' => sub {
    my ($ng, $other, $redis, $proxy) = start_all(lines => 'idempotency_lease 1500ms;');
    my ($gate, $conn) = start_run($ng->port, 'late');
    $proxy->mode('refuse');
    $gate->open;
    my ($n) = executions('late');
    answered($conn, qr/^201 #$n$/);
    is(wait_said('409 outcome_unknown', sub { post($other->port, 'late') }), '409 outcome_unknown',
        'a retry elsewhere is told so');
    $proxy->mode('pass');
    is_back($ng);
    is(wait_said("201 #$n replayed", sub { post($other->port, 'late') }), "201 #$n replayed",
        'the outcome is stored all the same');
    is(ledger_count(key => 'late'), 1, 'executed once');
    ok(wait_until(sub { lines_in($ng, qr/1 outcomes were stored late, 0 were lost/) }, 10, 'a line'),
        'and the log has counted it');
    finish($_) for $ng, $other;
};

subtest 'a successor took over meanwhile: what comes late changes nothing' => sub {
    my ($ng, $other, $redis, $proxy) = start_all(
        lines => 'idempotency_lease 1500ms; idempotency_unknown_outcome release;');
    my ($gate, $conn) = start_run($ng->port, 'fenced');
    $proxy->mode('stall');
    my $second = wait_said(qr/^201/, sub { post($other->port, 'fenced') });
    like($second, qr/^201 #\d+$/, 'it runs');
    $gate->open;
    my $first = said(answered($conn, qr/^201 #\d+$/));
    isnt($first, $second, 'the first client gets its own answer');
    $proxy->mode('pass');
    is_back($ng);
    sleep 0.3;
    is(said(post($_->port, 'fenced')), "$second replayed", 'the successor\'s is the one stored')
        for $ng, $other;
    is_deeply([attempts_of('fenced')], [1, 2], 'two attempts');
    finish($_) for $ng, $other;
};

subtest 'Redis forgets the claim: the outcome is stored all the same, and the log tells' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'forgotten');
    $redis->restart;
    is_back($ng);
    $gate->open;
    my $first = said(answered($conn, qr/^201 #\d+$/));
    ok(lines_in($ng, qr/\[warn\].*idempotency: Redis at .* had lost 1 records/), 'warned');
    is(said(post($ng->port, 'forgotten')), "$first replayed", 'a retry gets it');
    is(ledger_count(key => 'forgotten'), 1, 'executed once');
    finish($ng);
};

done_testing();
