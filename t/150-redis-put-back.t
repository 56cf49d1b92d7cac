#!/usr/bin/env perl

# A Redis that has restarted or is another one may have lost records: each
# worker puts back what it knows, before anything is claimed there.

use v5.36;

use File::Path qw(remove_tree);
use Test::More;
use Time::HiRes qw(sleep time);

use FakeRedis;
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use Proxy;
use RedisServer;

redis_only();

my $PARAMS = 'timeout=500ms connect_timeout=1s';
my $CHECKED = qr/idempotency: Redis at "\S+" has restarted or is another server/;
my $ADVICE = qr/; "appendonly" is off there, set it to "yes" so that Redis keeps its data/;
my $TWICE = qr/\[error\].*this operation may have run twice/;

# Asks until it is told something else than that the store is not there.
sub told ($port, $key, %opt) {
    return wait_said(qr/^(?!503)/, sub { post($port, $key, %opt) }, 10);
}

# What is lost without an append-only file could be kept.
sub is_checked ($ng, $lost, $there, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $advice = $lost && !$opt{aof} ? $ADVICE : '';
    my $text = qr/$CHECKED: it had lost $lost records of this worker, which are put back, and still had $there$advice$/;
    ok(wait_until(sub { lines_in($ng, $text) }, 10, 'the line'), "$lost lost, $there still there")
        or diag(lines_in($ng, qr/idempotency/));
}

# ---- what is put back -----------------------------------------------------

subtest 'a running request' => sub {
    my $redis = RedisServer->start;
    # Longer than the test: it is not the renewal that helps.
    my ($ng, $other) = two_nginx($redis, params => $PARAMS, lines => 'idempotency_lease 300s;');
    my ($gate, $conn) = start_run($ng->port, 'runs');
    $redis->restart;
    is(told($other->port, 'runs'), '409 in_progress', 'a retry elsewhere does not run');
    is(told($other->port, 'runs', body => 'other'), '422 key_reused', 'its fingerprint is known');
    is_checked($ng, 1, 0);
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'it ends');
    is(told($other->port, 'runs'), "$first replayed", 'and is replayed');
    is(ledger_count(key => 'runs'), 1, 'executed once');
    finish($_) for $ng, $other;
};

# do, what its client is told, what a retry is told
my %OUTCOMES = (
    'a response'               => ['', qr/^201 #\d+$/, 'replayed'],
    'an unknown outcome'       => ['die=before', qr/^502/, '409 outcome_unknown'],
    'a response not to keep'   => ['h=X-Accel-Idempotency:discard', qr/^201/, '409 response_not_kept'],
    'a response without a body' => ['status=204', qr/^204/, 'replayed'],
    'a large response'         => ['size=200000', qr/^201/, 'replayed'],
    'a very large response'    => ['size=300000', qr/^201/, '409 response_not_kept'],
);

for my $name (sort keys %OUTCOMES) {
    my ($do, $answer, $then) = @{ $OUTCOMES{$name} };
    subtest "what was stored a short time ago: $name" => sub {
        my $redis = RedisServer->start;
        my ($ng, $other) = two_nginx($redis, params => $PARAMS);
        my $key = $name =~ s/ /-/gr;
        my $first = post($ng->port, $key, do => $do);
        like(said($first), $answer, 'its client is answered');
        wait_until(sub { ((unpack 'CC', $redis->command('GET', (keys_of($redis))[0]))[1] // 1) != 1 },
            5, 'the outcome');
        my $ttl = $redis->command('PTTL', (keys_of($redis))[0]);
        sleep 1.2;
        $redis->restart;
        my $wanted = $then eq 'replayed' ? said($first) . ' replayed' : $then;
        is(told($other->port, $key), $wanted, 'so is a retry elsewhere');
        ok(post($other->port, $key)->{body} eq $first->{body}, 'byte for byte')
            if $then eq 'replayed';
        is(ledger_count(key => $key), 1, 'executed once');
        my $left = $redis->command('PTTL', (keys_of($redis))[0]);
        cmp_ok($left, '<=', $ttl - 1000, 'it is kept no longer than it would have been');
        cmp_ok($left, '>', $ttl - 60_000, '... and no shorter');
        is_checked($ng, 1, 0);
        finish($_) for $ng, $other;
    };
}

subtest 'a file that is gone: that there should be one is not said' => sub {
    my $redis = RedisServer->start(aof => 'always');
    my $ng = on_redis_nginx($redis->url, params => $PARAMS);
    my $first = said(post($ng->port, 'no-file'));
    $redis->stop;
    remove_tree(glob $redis->path('appendonly*'));
    $redis->launch or die $redis->log;
    is(told($ng->port, 'no-file'), "$first replayed", 'it is put back');
    is_checked($ng, 1, 0, aof => 1);
    finish($ng);
};

subtest 'what is kept for ever' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => $PARAMS, lines => 'idempotency_ttl forever;');
    my $first = said(post($ng->port, 'ever'));
    $redis->restart;
    is(told($ng->port, 'ever'), "$first replayed", 'is there again');
    is($redis->command('PTTL', (keys_of($redis))[0]), -1, 'and does not expire');
    finish($ng);
};

subtest 'an outcome that could not be stored' => sub {
    my $redis = RedisServer->start;
    my ($ng, $other) = two_nginx($redis, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'late');
    $redis->kill;
    $gate->open;
    my $first = said($conn->response);
    like($first, qr/^201 #\d+$/, 'its client is answered');
    $redis->launch;
    is(told($other->port, 'late'), "$first replayed", 'a retry elsewhere gets it');
    is(ledger_count(key => 'late'), 1, 'executed once');
    finish($_) for $ng, $other;
};

subtest 'many at once, and over several connections' => sub {
    my $redis = RedisServer->start;
    my ($ng, $other) = two_nginx($redis, params => "$PARAMS connections=3 failover_grace=2s");
    my %first = map { $_ => said(post($ng->port, "many-$_")) } 1 .. 300;
    $redis->restart;
    my @wrong = grep { told($other->port, "many-$_") ne "$first{$_} replayed" } sort keys %first;
    is_deeply(\@wrong, [], 'all are replayed');
    ok(wait_until(sub { lines_in($ng, $CHECKED) == 3 }, 10, 'three lines'), 'each connection tells');
    finish($_) for $ng, $other;
};

subtest 'a server that has kept its data loses nothing' => sub {
    my $redis = RedisServer->start(aof => 'always');
    my $ng = on_redis_nginx($redis->url, params => $PARAMS);
    my $first = said(post($ng->port, 'aof'));
    my ($gate, $conn) = start_run($ng->port, 'aof-2');
    $redis->restart;
    is(told($ng->port, 'aof'), "$first replayed", 'it is replayed');
    is_checked($ng, 0, 2);
    is(scalar lines_in($ng, qr/\[notice\].*$CHECKED/), 1, 'which is no warning');
    $gate->open;
    like(said($conn->response), qr/^201/, 'what runs ends');
    finish($ng);
};

# What others put back has to come first, also after the second connection.
subtest 'the connection breaks while claims wait' => sub {
    my $redis = RedisServer->start;
    my @proxies = map { Proxy->to($redis->path('redis.sock')) } 1 .. 2;
    my ($ng, $other) = map { on_redis_nginx($_->url, params => "$PARAMS failover_grace=3s") } @proxies;
    my $first = said(post($other->port, 'breaks'));
    is(told($ng->port, 'breaks'), "$first replayed", 'both are connected');
    $_->mode('refuse') for @proxies;
    $redis->restart;
    my $connected = sub { ($redis->command('INFO', 'clients') =~ /^connected_clients:(\d+)/m)[0] > 1 };
    $proxies[0]->mode('pass');
    wait_until($connected, 10, 'a connection');
    $proxies[0]->mode('refuse');
    # Now the first wait would be over.
    sleep 3.5;
    $proxies[0]->mode('pass');
    wait_until($connected, 10, 'another one');
    sleep 0.3;
    like(said(post($ng->port, 'breaks')), qr/^503/, 'claims wait again');
    $proxies[1]->mode('pass');
    is(told($ng->port, 'breaks'), "$first replayed", 'until others have put back');
    is(ledger_count(key => 'breaks'), 1, 'executed once');
    finish($_) for $ng, $other;
};

# ---- a copy that lags behind ----------------------------------------------

# A server that restarts with these records only, before a worker sees it.
sub falls_back ($redis, $proxy, %records) {
    $proxy->mode('refuse');
    $redis->restart;
    $redis->command('SET', $_, $records{$_}, 'PX', 3_600_000) for keys %records;
    $proxy->mode('pass');
}

sub other_token ($record) {
    substr $record, 6, 16, 'x' x 16;
    return $record;
}

subtest 'the copy has a claim that was gone: what runs takes its place' => sub {
    my ($redis, $proxy) = proxied_redis();
    my ($ng, $other) = map { on_redis_nginx($proxy->url, params => $PARAMS) } 1 .. 2;
    my ($gate, $conn) = start_run($ng->port, 'gone');
    my ($name) = keys_of($redis);
    my $own = $redis->command('GET', $name);
    falls_back($redis, $proxy, $name => other_token($own));
    is_checked($ng, 1, 0);
    is($redis->command('GET', $name), $own, 'its own record is back');
    is(told($other->port, 'gone'), '409 in_progress', 'a retry elsewhere does not run');
    is(scalar lines_in($ng, $TWICE), 1, 'the log says what it may mean');
    $gate->open;
    my $first = said($conn->response);
    is(told($other->port, 'gone'), "$first replayed", 'and gets its answer');
    is(ledger_count(key => 'gone'), 1, 'executed once');
    finish($_, allow => $TWICE) for $ng, $other;
};

subtest 'and so does an outcome' => sub {
    my ($redis, $proxy) = proxied_redis();
    my ($ng, $other) = map { on_redis_nginx($proxy->url, params => $PARAMS) } 1 .. 2;
    my ($gate, $conn) = start_run($ng->port, 'done');
    my ($name) = keys_of($redis);
    my $pending = other_token($redis->command('GET', $name));
    $gate->open;
    my $first = said($conn->response);
    falls_back($redis, $proxy, $name => $pending);
    is(told($other->port, 'done'), "$first replayed", 'a retry elsewhere gets it');
    finish($_, allow => $TWICE) for $ng, $other;
};

subtest 'the outcome of another run of the same attempt is never replaced' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS);
    my $first = said(post($ng->port, 'theirs'));
    my ($name) = keys_of($redis);
    my $theirs = other_token($redis->command('GET', $name));
    falls_back($redis, $proxy, $name => $theirs);
    is_checked($ng, 0, 1);
    is($redis->command('GET', $name), $theirs, 'it stays');
    is(scalar lines_in($ng, $TWICE), 1, 'the log says what it means');
    finish($ng, allow => $TWICE);
};

# Their first attempt was lost from sight, and its outcome came late.
for my $case (['an outcome', 0], ['a run', 1]) {
    my ($what, $runs) = @$case;
    subtest "$what takes the place of the outcome of an earlier attempt" => sub {
        my $key = "earlier-$runs";
        my ($redis, $proxy) = proxied_redis();
        my ($ng, $other) = map {
            on_redis_nginx($proxy->url, params => $PARAMS, lines => 'idempotency_unknown_outcome release;')
        } 1 .. 2;
        like(said(post($ng->port, $key, do => 'die=before')), qr/^502/, 'what became of the first is unknown');
        my $gate = Keyed::Gate->new;
        my $conn = send_post($ng->port, $key, do => $gate->closed);
        ok(begun($key, 2), 'the second runs');
        my ($name) = keys_of($redis);
        my $late = other_token($redis->command('GET', $name));
        substr $late, 1, 5, pack 'CV', 3, 1;
        my $second;
        my $ends = sub { $gate->open; $second = said($conn->response) };
        $ends->() unless $runs;
        falls_back($redis, $proxy, $name => $late);
        is_checked($ng, 1, 1);
        $ends->() if $runs;
        like($second, qr/^201 #\d+$/, 'it ends');
        is(told($other->port, $key), "$second replayed", 'it is what a retry gets');
        finish($_, allow => $TWICE) for $ng, $other;
    };
}

subtest 'what is not known does not take the place of an outcome, whichever attempt had it' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS, lines => 'idempotency_unknown_outcome release;');
    like(said(post($ng->port, 'known', do => 'die=before')), qr/^502/, 'what became of the first is unknown')
        for 1 .. 2;
    my ($name) = keys_of($redis);
    my $late = other_token($redis->command('GET', $name));
    substr $late, 1, 5, pack 'CV', 3, 1;
    falls_back($redis, $proxy, $name => $late);
    is_checked($ng, 0, 2);
    is(told($ng->port, 'known'), '409 response_not_kept', 'no third run');
    is(ledger_count(key => 'known'), 2, 'which would have been one too many');
    finish($ng, allow => $TWICE);
};

subtest 'one that has taken over from us is not replaced' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'over');
    my ($name) = keys_of($redis);
    my $theirs = other_token($redis->command('GET', $name));
    substr $theirs, 2, 4, pack 'V', 2;
    falls_back($redis, $proxy, $name => $theirs);
    is_checked($ng, 0, 1);
    is($redis->command('GET', $name), $theirs, 'it stays');
    $gate->open;
    $conn->response;
    finish($ng, signal => 'TERM', allow => $TWICE);
};

subtest 'the copy has a claim that was released: it is released again' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS);
    my ($gate, $conn) = start_run($ng->port, 'free', do => 'status=500');
    my ($name) = keys_of($redis);
    my $pending = $redis->command('GET', $name);
    $gate->open;
    like(said($conn->response), qr/^500/, 'the application refuses');
    falls_back($redis, $proxy, $name => $pending);
    like(told($ng->port, 'free'), qr/^201 #\d+$/, 'a retry runs');
    finish($ng);
};

# ---- new claims wait ------------------------------------------------------

subtest 'others come first: nothing is claimed meanwhile, not even with "pass"' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=200ms failover_grace=4s');
    like(said(post($ng->port, 'before')), qr/^201 #\d+$/, 'it works');
    $redis->restart;
    ok(wait_until(sub { lines_in($ng, $BACK) || $redis->clients }, 5, 'the link'), 'connected again');
    sleep 0.3;
    for my $uri ('/', '/pass') {
        my $at = time;
        is(said(post($ng->port, "new$uri", uri => $uri)), $REFUSED, "$uri: refused");
        cmp_ok(time - $at, '<', 2, 'within its time');
    }
    is(ledger_count(key => "new$_"), 0, 'nothing ran') for '/', '/pass';
    is_checked($ng, 1, 0);
    like(said(post($ng->port, 'after')), qr/^201/, 'then they run again');
    finish($ng);
};

subtest 'a claim that has the time waits until it may go' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=5s failover_grace=1s');
    like(said(post($ng->port, 'before')), qr/^201 #\d+$/, 'it works');
    $redis->restart;
    wait_until(sub { $redis->clients }, 5, 'the link');
    my $at = time;
    like(said(post($ng->port, 'waits')), qr/^201 #\d+$/, 'it runs');
    cmp_ok(time - $at, '>', 0.3, 'a while later');
    finish($ng);
};

subtest 'a client that leaves meanwhile does no harm' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => 'timeout=5s failover_grace=1s');
    like(said(post($ng->port, 'before')), qr/^201 #\d+$/, 'it works');
    $redis->restart;
    wait_until(sub { $redis->clients }, 5, 'the link');
    my $conn = send_post($ng->port, 'leaves');
    sleep 0.1;
    $conn->close;
    is_checked($ng, 1, 0);
    cmp_ok(ledger_count(key => 'leaves'), '<=', 1, 'it has run at most once');
    finish($ng);
};

subtest 'a connection that was only lost does not matter' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=2s failover_grace=10s');
    like(said(post($ng->port, 'one')), qr/^201 #\d+$/, 'it works');
    $proxy->mode('cut');
    $proxy->mode('pass');
    like(told($ng->port, 'two'), qr/^201 #\d+$/, 'it works again at once');
    is(scalar lines_in($ng, $CHECKED), 0, 'nothing was put back');
    finish($ng);
};

subtest 'a server that does not say who it is may be another each time' => sub {
    my $redis = RedisServer->start;
    my $fake = FakeRedis->before($redis, sub ($words, $ask) {
        return "-NOPERM no\r\n" if $words->[0] eq 'INFO';
        return $ask->();
    });
    my $proxy = Proxy->to($fake->{port});
    my $ng = on_redis_nginx($proxy->url, params => $PARAMS);
    my $first = said(post($ng->port, 'who'));
    $proxy->mode('cut');
    $proxy->mode('pass');
    is(told($ng->port, 'who'), "$first replayed", 'it is replayed');
    is_checked($ng, 0, 1);
    finish($ng);
};

subtest 'switched off: nothing waits, nothing is put back' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => "$PARAMS reassert=0 failover_grace=10s");
    like(said(post($ng->port, 'off')), qr/^201 #\d+$/, 'it works');
    $redis->restart;
    like(told($ng->port, 'off'), qr/^201 #\d+$/, 'a retry runs');
    is(scalar lines_in($ng, $CHECKED), 0, 'nothing was put back');
    finish($ng);
};

subtest 'the time in which Redis is away does not count for "reassert"' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => "$PARAMS reassert=1s");
    my $first = said(post($ng->port, 'long-away'));
    like($first, qr/^201/, 'it is stored');
    $redis->stop;
    sleep 2;
    $redis->launch;
    is(told($ng->port, 'long-away'), "$first replayed", 'it is put back');
    is(ledger_count(key => 'long-away'), 1, 'executed once');
    finish($ng);
};

subtest 'what was put back a short time ago is put back again' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => "$PARAMS reassert=3s failover_grace=100ms");
    my $first = said(post($ng->port, 'again'));
    like($first, qr/^201/, 'it is stored');
    sleep 2;
    $redis->restart;
    is_checked($ng, 1, 0);
    sleep 1.5;
    $redis->restart;
    is(told($ng->port, 'again'), "$first replayed", 'after a second loss as well');
    is(ledger_count(key => 'again'), 1, 'executed once');
    finish($ng);
};

subtest 'what is older than "reassert" is not put back' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, params => "$PARAMS reassert=500ms");
    like(said(post($ng->port, 'old')), qr/^201 #\d+$/, 'it works');
    sleep 0.8;
    $redis->restart;
    like(told($ng->port, 'old'), qr/^201 #\d+$/, 'a retry runs');
    finish($ng);
};

# ---- bad values -----------------------------------------------------------

for my $case (['reassert=soon', '"reassert" must be 0, or a time with a unit, e.g. "30s"'],
    ['reassert=30', '"reassert" must be 0, or a time with a unit, e.g. "30s"'],
    ['failover_grace=-1s', '"failover_grace" must be 0, or a time with a unit, e.g. "1s"'])
{
    my ($param, $message) = @$case;
    my $text = eval { on_redis_nginx('redis://127.0.0.1:1', params => $param); 1 } ? 'it starts' : $@;
    like($text, qr/\[emerg\].*idempotency store "default": \Q$message\E/, $param);
}

done_testing();
