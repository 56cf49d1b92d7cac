#!/usr/bin/env perl

# Redis is there and says no: the request is refused, the log says why, once,
# and when Redis has changed its mind all goes on.

use v5.36;

use Test::More;

use FakeRedis;
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use RedisServer;

redis_only();

sub refuses ($ng, $key, $reason) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my @answers = map { post($ng->port, $key) } 1 .. 5;
    is_deeply(tally(@answers), { $REFUSED => 5 }, 'refused');
    is(status_of($answers[0]), 'STORE_ERROR', 'as a failure of the store');
    like(said(post($ng->port, "$key-pass", uri => '/pass')), qr/^201 #\d+$/,
        'or run unprotected, where that is wanted');
    is(ledger_count(key => $key), 0, 'not executed');
    my @lines = lines_in($ng, $GONE);
    is(scalar @lines, 1, 'one line is logged') or diag(@lines);
    like($lines[0] // '', $reason, 'which says why');
}

sub is_fine_again ($ng, $key) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is_back($ng);
    my $first = said(post($ng->port, $key));
    is(said(post($ng->port, $key)), "$first replayed", 'the same key runs then, and is replayed');
    is(ledger_count(key => $key), 1, 'executed once');
    wait_for_line($ng, $key);
    is(scalar lines_in($ng, $BACK), 1, 'one line is logged') or diag(lines_in($ng, qr/redis/i));
}

# That all is well is said when something was stored, and nothing was refused
# for a while.
sub wait_for_line ($ng, $key) {
    my $n = 0;
    wait_until(sub { post($ng->port, "$key-again-" . $n++); lines_in($ng, $BACK) }, 10, 'a line');
}

# ---- memory ---------------------------------------------------------------

subtest 'it has no memory left' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    is_back($ng);
    $redis->command('CONFIG', 'SET', 'maxmemory', 1);
    refuses($ng, 'oom', qr/OOM/);
    $redis->command('CONFIG', 'SET', 'maxmemory', 0);
    is_fine_again($ng, 'oom');
    finish($ng);
};

subtest 'it has no memory left, but what it has is replayed' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    my $first = said(post($ng->port, 'full'));
    post($ng->port, 'full-unknown', do => 'die=before');
    my ($gate, $conn) = start_run($ng->port, 'full-runs');
    for my $limit (['maxmemory', 1, 0], ['min-replicas-to-write', 1, 0]) {
        my ($name, $on, $off) = @$limit;
        $redis->command('CONFIG', 'SET', $name, $on);
        is(said(post($ng->port, 'full')), "$first replayed", "$name: a replay");
        is(said(post($ng->port, 'full', body => 'other')), '422 key_reused', '... another body');
        is(said(post($ng->port, 'full-unknown')), '409 outcome_unknown', '... an unknown outcome');
        is(said(post($ng->port, 'full-runs')), '409 in_progress', '... a run');
        is(said(post($ng->port, "full-new-$name")), $REFUSED, '... a new key is refused');
        $redis->command('CONFIG', 'SET', $name, $off);
    }
    is(ledger_count(key => 'full'), 1, 'executed once');
    $gate->open;
    $conn->response;
    finish($ng);
};

subtest 'nginx starts while it has no memory left' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    my $first = said(post($ng->port, 'start-full'));
    $redis->command('CONFIG', 'SET', 'maxmemory', 1);
    $ng->restart;
    is(wait_said(qr/^201/, sub { post($ng->port, 'start-full') }), "$first replayed", 'it replays');
    is(said(post($ng->port, 'start-full-new')), $REFUSED, 'and refuses what is new');
    $redis->command('CONFIG', 'SET', 'maxmemory', 0);
    is_fine_again($ng, 'start-full-new');
    finish($ng);
};

subtest 'it has no memory for a response: that it ran is kept' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, lines => 'idempotency_max_response 8m;');
    my ($gate, $conn) = start_run($ng->port, 'large', do => 'size=4000000');
    $redis->command('CONFIG', 'SET', 'maxmemory', $redis->info_field('used_memory') + 1_000_000);
    $gate->open;
    my $first = $conn->response;
    like(said($first), qr/^201 #\d+$/, 'the client is answered');
    is(length $first->{body}, 4_000_000, 'in full');
    is(wait_said('409 response_not_kept', sub { post($ng->port, 'large') }), '409 response_not_kept',
        'a retry learns that it ran');
    is(ledger_count(key => 'large'), 1, 'executed once');
    finish($ng, signal => 'TERM');
};

for my $policy (qw(allkeys-lru volatile-ttl noeviction)) {
    my $wanted = $policy eq 'noeviction' ? 0 : 1;
    subtest "a server that may evict is told of: $policy" => sub {
        my $redis = RedisServer->start(conf => ['maxmemory 100mb', "maxmemory-policy $policy"]);
        my $ng = on_redis_nginx($redis->url, workers => 2, params => 'connections=2');
        is_back($ng);
        wait_until(sub { $redis->clients == 4 }, 5, 'the connections');
        $redis->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        is_back($ng);
        wait_until(sub { lines_in($ng, qr/maxmemory-policy/) }, 5, 'a warning') if $wanted;
        my @lines = lines_in($ng, qr/\[warn\].*idempotency: .*maxmemory-policy/);
        is(scalar @lines, $wanted, $wanted ? 'one warning in all' : 'no warning') or diag(@lines);
        like($lines[0], qr/\Q$policy\E/, 'it says what is set') if $wanted;
        finish($ng);
    };
}

# ---- roles ----------------------------------------------------------------

subtest 'it is a replica' => sub {
    my $master = RedisServer->start;
    my $redis = RedisServer->start(conf => ['replicaof 127.0.0.1 ' . $master->port]);
    my $ng = on_redis_nginx($redis->url);
    refuses($ng, 'replica', qr/replica/);
    $redis->command('REPLICAOF', 'NO', 'ONE');
    is_fine_again($ng, 'replica');
    finish($ng);
};

subtest 'it is a replica that takes writes, which its master will undo' => sub {
    my $master = RedisServer->start;
    my $redis = RedisServer->start(
        conf => ['replicaof 127.0.0.1 ' . $master->port, 'replica-read-only no']);
    my $ng = on_redis_nginx($redis->url);
    refuses($ng, 'writable', qr/replica/);
    finish($ng);
};

subtest 'it becomes a replica' => sub {
    my $master = RedisServer->start;
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    is_back($ng);
    $redis->command('REPLICAOF', '127.0.0.1', $master->port);
    # Whether it closes the connection or refuses to write is its own affair.
    refuses($ng, 'demoted', qr/replica|READONLY/i);
    $redis->command('REPLICAOF', 'NO', 'ONE');
    is_fine_again($ng, 'demoted');
    finish($ng);
};

subtest 'it lacks the replicas that it wants' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    is_back($ng);
    $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 1);
    refuses($ng, 'replicas', qr/NOREPLICAS/);
    $redis->command('CONFIG', 'SET', 'min-replicas-to-write', 0);
    is_fine_again($ng, 'replicas');
    finish($ng);
};

subtest 'it is still loading' => sub {
    return plan(skip_all => 'an old one cannot be made slow') if RedisServer::is_old();
    # Slowly, and with an ear for others.
    my $redis = RedisServer->start(conf => ['key-load-delay 10000', 'rdbcompression no',
        'loading-process-events-interval-bytes 1024']);
    my $ng = on_redis_nginx($redis->url);
    my $first = said(post($ng->port, 'known'));
    $redis->command('SET', "fill-$_", 'x' x 1000) for 1 .. 250;
    $redis->command('SAVE');
    $redis->kill;
    $redis->launch(early => 1);
    wait_until(sub { eval { $redis->command('PING'); 0 } || $@ =~ /LOADING/ }, 5, 'it to load');
    is_deeply(tally(map { post($ng->port, 'known') } 1 .. 5), { $REFUSED => 5 }, 'refused');
    $redis->wait_ready;
    is_back($ng);
    is(said(post($ng->port, 'known')), "$first replayed", 'then all is there');
    is(ledger_count(key => 'known'), 1, 'executed once');
    wait_for_line($ng, 'loading');
    is_deeply([map { scalar lines_in($ng, $_) } $GONE, $BACK], [1, 1], 'a line for each change')
        or diag(lines_in($ng, qr/redis/i));
    finish($ng, signal => 'TERM');
};

# ---- rights ---------------------------------------------------------------

subtest 'the password is wrong' => sub {
    my $redis = RedisServer->start(password => 'right-one');
    my $ng = on_redis_nginx('redis://:wrong-one@' . $redis->address);
    refuses($ng, 'wrong', qr/WRONGPASS/);
    unlike($ng->error_log, qr/wrong-one/, 'the password is not logged');
    $redis->command('CONFIG', 'SET', 'requirepass', 'wrong-one');
    is_fine_again($ng, 'wrong');
    finish($ng);
};

subtest 'what it says about a login is not logged: it may repeat the password' => sub {
    my $redis = RedisServer->start;
    my $fake = FakeRedis->before($redis, sub ($words, $ask) {
        return $ask->() if $words->[0] ne 'AUTH';
        return "-ERR unknown command 'AUTH', with args beginning with: '$words->[1]' '$words->[2]'\r\n";
    });
    my $ng = on_redis_nginx('redis://someone:very-secret@' . $fake->address);
    refuses($ng, 'auth', qr/login failed/);
    unlike($ng->error_log, qr/very-secret/, 'the password is not logged');
    finish($ng, signal => 'TERM');
};

subtest 'a password is wanted' => sub {
    my $redis = RedisServer->start(password => 'right-one');
    my $ng = on_redis_nginx($redis->url);
    refuses($ng, 'none', qr/NOAUTH/);
    $redis->command('CONFIG', 'SET', 'requirepass', '');
    is_fine_again($ng, 'none');
    finish($ng);
};

for my $case (['not set', '-set'], ['run no script', '-eval -evalsha'], ['not have these keys', 'resetkeys ~other:*']) {
    my ($name, $rule) = @$case;
    subtest "the user may $name" => sub {
        my $redis = RedisServer->start(password => 'x', conf => ['user app on >secret allkeys +@all']);
        my $ng = on_redis_nginx('redis://app:secret@' . $redis->address);
        is_back($ng);
        my $key = $name =~ s/ /-/gr;
        my $conn;
        my $gate = Keyed::Gate->new;
        if ($rule =~ /eval/) {
            $conn = send_post($ng->port, "$key-run", do => $gate->closed);
            begun("$key-run");
        }
        $redis->command('ACL', 'SETUSER', 'app', split ' ', $rule);
        if ($conn) {
            is(said(post($ng->port, "$key-run")), $REFUSED, 'who meets a run is refused');
            $gate->open;
            like(said($conn->response), qr/^201 #\d+$/, 'the run itself is answered');
            is(scalar lines_in($ng, $GONE), 1, 'one line is logged');
        } else {
            refuses($ng, $key, qr/NOPERM/);
        }
        $redis->command('ACL', 'SETUSER', 'app', 'allkeys', '+@all');
        my ($n) = executions("$key-run");
        is(wait_said("201 #$n replayed", sub { post($ng->port, "$key-run") }), "201 #$n replayed",
            'its outcome is stored when it may be') if $conn;
        is_fine_again($ng, $key);
        finish($ng, signal => 'TERM');
    };
}

# What it lacks is found out when nginx connects, not when an outcome cannot be
# stored.
for my $right (qw(set get getrange del pexpire pttl eval evalsha)) {
    subtest "a user who may not $right is told of at once" => sub {
        my $redis = RedisServer->start(password => 'x',
            conf => ["user app on >secret allkeys +\@all -$right"]);
        my $ng = on_redis_nginx('redis://app:secret@' . $redis->address);
        refuses($ng, "lacks-$right", qr/NOPERM|can't run this command|ACL failure/);
        $redis->command('ACL', 'SETUSER', 'app', '+@all');
        is_fine_again($ng, "lacks-$right");
        finish($ng);
    };
}

for my $right (qw(time setrange role info client)) {
    subtest "a user who may not $right can do all the same" => sub {
        my $redis = RedisServer->start(password => 'x',
            conf => ["user app on >secret allkeys +\@all -$right"]);
        my $ng = on_redis_nginx('redis://app:secret@' . $redis->address);
        is_back($ng);
        my $first = said(post($ng->port, "may-$right"));
        is(said(post($ng->port, "may-$right")), "$first replayed", 'stored and replayed');
        post($ng->port, "may-$right-not", do => 'die=before');
        is(said(post($ng->port, "may-$right-not")), '409 outcome_unknown', 'unknown outcomes too');
        finish($ng);
    };
}

# ---- others that speak for it ---------------------------------------------

subtest 'an error that is not known to mean that nothing happened' => sub {
    my $redis = RedisServer->start;
    my $file = $redis->path('fails');
    my $fake = FakeRedis->before($redis, sub ($words, $ask) {
        my $reply = $ask->();
        return $reply if !-e $file || $words->[0] !~ /^(?:SET|EVAL)/ || $words->[1] =~ /:try:/;
        return "-upstream failure\r\n";
    });
    my $ng = on_redis_nginx($fake->url, params => 'timeout=1s connect_timeout=5s');
    is_back($ng);
    write_file($file, '');
    is(said(post($ng->port, 'failure')), $REFUSED, 'refused');
    unlink $file;
    my $said = wait_said(qr/^201/, sub { post($ng->port, 'failure') }, 12);
    like($said, qr/^201 #\d+$/, 'the claim is undone, a retry runs');
    is_deeply([attempts_of('failure')], [1], 'as the first attempt');
    finish($ng, signal => 'TERM');
};

subtest 'a server that breaks the protocol again and again does not fill the log' => sub {
    my $redis = RedisServer->start;
    my $works = $redis->path('works');
    my $answers = 0;
    my $fake = FakeRedis->before($redis, sub ($words, $ask) {
        return $ask->() if -e $works || $words->[0] ne 'SET' || $words->[1] =~ /:try:/;
        return $ask->() if ++$answers % 2;
        $ask->('INCR', 'breaks');
        return "what?\r\n";
    });
    my $ng = on_redis_nginx($fake->url);
    my ($key, $breaks) = (0, 0);
    wait_until(sub {
        post($ng->port, 'breaks-' . ++$key);
        ($breaks = $redis->command('GET', 'breaks') // 0) >= 12;
    }, 60, 'twelve broken connections');
    is($breaks, 12, 'it broke twelve connections');
    is(scalar lines_in($ng, $GONE), 6, 'that it is unavailable is logged six times');
    is(scalar lines_in($ng, $BACK), 5, 'and that it is available again five times');
    write_file($works, '');
    wait_until(sub { post($ng->port, 'works-' . ++$key); lines_in($ng, $BACK) >= 6 }, 20, 'a line');
    is(scalar lines_in($ng, $BACK), 6, 'when it has worked for a while, this is logged');
    is(scalar lines_in($ng, $GONE), 6, 'and nothing else');
    finish($ng, signal => 'TERM');
};

# Each does something else with SET NX GET than Redis does.
my %ODD = (
    'says nothing' => sub ($words, $ask) {
        $ask->(grep { $_ ne 'GET' } @$words);
        return "\$-1\r\n";
    },
    'says that all is well' => sub ($words, $ask) {
        $ask->(grep { $_ ne 'GET' } @$words);
        return "+OK\r\n";
    },
    'sets it all the same' => sub ($words, $ask) {
        return $ask->('GETSET', @$words[1, 2]);
    },
    'does not set it' => sub ($words, $ask) { return $ask->('GET', $words->[1]) },
    'is asked twice, by a proxy' => sub ($words, $ask) { $ask->(); return $ask->() },
);

for my $name (sort keys %ODD) {
    subtest "a server that is asked to set what is not there, and $name" => sub {
        my $redis = RedisServer->start;
        my $fake = FakeRedis->before($redis, sub ($words, $ask) {
            my $is_it = $words->[0] eq 'SET' && grep { $_ eq 'GET' } @$words[3 .. $#$words];
            return $is_it ? $ODD{$name}->($words, $ask) : $ask->();
        });
        my $ng = on_redis_nginx($fake->url);
        is_back($ng);
        my $key = "odd-$name" =~ s/\W+/-/gr;
        my $first = said(post($ng->port, $key));
        is(said(post($ng->port, $key)), "$first replayed", 'a retry is replayed');
        is(ledger_count(key => $key), 1, 'executed once');
        finish($ng, signal => 'TERM');
    };
}

subtest 'a connection that nobody uses and that has gone is found out' => sub {
    my ($redis, $proxy) = proxied_redis();
    my $ng = on_redis_nginx($proxy->url, params => 'timeout=500ms connect_timeout=1s');
    is_back($ng);
    $proxy->mode('strand');
    ok(wait_until(sub { lines_in($ng, $BACK) }, 12, 'a line'), 'another one is made');
    like(said(post($ng->port, 'stranded')), qr/^201 #\d+$/, 'before a request needs it');
    finish($ng, signal => 'TERM');
};

# ---- one key --------------------------------------------------------------

subtest 'what is stored under a name is not a record' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    my $first = said(post($ng->port, 'type'));
    my ($name) = keys_of($redis);
    my $record = $redis->command('GET', $name);
    for my $make (['RPUSH', $name, 'x'], ['HSET', $name, 'a', 'b'], ['SADD', $name, 'x']) {
        $redis->command('DEL', $name);
        $redis->command(@$make);
        is(said(post($ng->port, 'type')), $REFUSED, "refused: $make->[0]");
        like(said(post($ng->port, "other-$make->[0]")), qr/^201 #\d+$/, 'other keys are not');
        isnt($redis->command('TYPE', $name), 'string', 'it is left alone');
    }
    ok(lines_in($ng, qr/\[error\].*idempotency: .*WRONGTYPE/), 'the log says why');
    $redis->command('DEL', $name);
    $redis->command('SET', $name, $record, 'PX', 60_000);
    is(said(post($ng->port, 'type')), "$first replayed", 'then it is one again');
    is(ledger_count(key => 'type'), 1, 'executed once');
    finish($ng, signal => 'TERM');
};

subtest 'nor is one of another type, not even where failures pass' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    post($ng->port, 'type-pass', uri => '/pass');
    my ($name) = keys_of($redis);
    $redis->command('DEL', $name);
    $redis->command('RPUSH', $name, 'x');
    is(said(post($ng->port, 'type-pass', uri => '/pass')), $REFUSED, 'refused');
    is(ledger_count(key => 'type-pass'), 1, 'executed once');
    finish($ng, signal => 'TERM');
};

subtest 'a record that cannot be read is never run over, not even where failures pass' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    post($ng->port, 'future', uri => '/pass');
    my ($name) = keys_of($redis);
    $redis->command('SETRANGE', $name, 0, chr 2);
    is(said(post($ng->port, 'future', uri => '/pass')), $REFUSED, 'refused');
    is(ledger_count(key => 'future'), 1, 'executed once');
    finish($ng, signal => 'TERM');
};

subtest 'a pending record that has lost its expiry ends as unknown' => sub {
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url);
    my ($gate, $conn) = start_run($ng->port, 'persist');
    my ($name) = keys_of($redis);
    $redis->command('PERSIST', $name);
    is(said(post($ng->port, 'persist')), '409 outcome_unknown', 'a retry is told so');
    $gate->open;
    my $first = said($conn->response);
    is(said(post($ng->port, 'persist')), "$first replayed", 'until the owner ends');
    is(ledger_count(key => 'persist'), 1, 'executed once');
    finish($ng, signal => 'TERM');
};

done_testing();
