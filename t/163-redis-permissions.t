#!/usr/bin/env perl

# idempotency_admin with the permissions that docs/redis.md asks for, and with
# less: no act fails half-way, and the administrator is told what Redis says.

use v5.36;

use Test::More;

use Admin;
use Keyed;
use Ledger;
use Nginx;
use OnRedis;
use RedisServer;

redis_only();

my $PAGE = qr{docs/redis\.md#permissions-of-the-user};

sub permitted_redis {
    my $redis = RedisServer->start(password => 'x');
    $redis->command('ACL', 'SETUSER', 'idem', documented_acl());
    return $redis;
}

sub administered_nginx ($redis, %opt) {
    my $ng = on_redis_nginx('redis://idem:password@' . $redis->address, %opt, servers => <<'CONF');
    server {
        listen 127.0.0.1:%%PORT4%%;
        location = /admin { idempotency_admin; }
    }
CONF
    is_back($ng);
    return $ng;
}

sub unknown_record ($ng, $key) {
    post($ng->port, $key, do => 'die=before');
    is(said(post($ng->port, $key)), '409 outcome_unknown', "$key: its outcome is unknown");
    return id_of($ng, $key);
}

# The route of the records has no port here.
sub id_of ($ng, $key) {
    my $answer = act($ng, act => 'find', key => $key, host => 'localhost', method => 'POST',
        path => '/x');
    is($answer->{status}, 200, "$key: found by its key") or diag($answer->{body});
    return answer_of($answer)->{id};
}

sub is_done ($answer, $name) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is($answer->{status}, 200, $name) or diag($answer->{body});
}

sub completed_by_hand ($ng, $id) {
    return act($ng, act => 'complete', id => $id, status => 201, header => 'X-By: hand',
        body => 'by hand');
}

subtest 'the documented permissions are enough for every act' => sub {
    my $redis = permitted_redis();
    my $ng = administered_nginx($redis);
    my %id = map { $_ => unknown_record($ng, $_) } qw(released completed deleted);
    my $first = said(post($ng->port, 'run'));

    is_done(ask($ng, "id=$id{released}"), 'looked up by its id');
    is_deeply([sort map { $_->{id} } unknown_of($ng)], [sort values %id],
        'unknown outcomes are listed');

    is_done(act($ng, act => 'release', id => $id{released}), 'released');
    like(said(post($ng->port, 'released')), qr/^201 #\d+$/, '... and runs again');

    is_done(completed_by_hand($ng, $id{completed}), 'completed');
    my $retry = post($ng->port, 'completed');
    is("$retry->{status} $retry->{body}", '201 by hand', '... and is replayed');
    my $found = answer_of(ask($ng, "id=$id{completed}"));
    is("$found->{state} $found->{status}", 'completed 201', '... as it is found');
    cmp_ok($found->{age_seconds}, '<', 60, '... with its age');
    cmp_ok(abs($found->{remaining_seconds} - 86400), '<', 60, '... and the time that is left');
    is($found->{response_bytes}, $redis->command('STRLEN', "idem:$id{completed}") - 70,
        '... and its size');

    is_done(act($ng, act => 'delete', id => $id{deleted}), 'an unknown outcome deleted');
    is_done(act($ng, act => 'delete', id => id_of($ng, 'run')), 'a completed record deleted');
    like(said(post($ng->port, 'run')), qr/^201 #\d+$/, '... and runs again');

    my %runs = (released => 2, completed => 1, deleted => 1, run => 2);
    is_deeply({ map { $_ => ledger_count(key => $_) + 0 } keys %runs }, \%runs, 'executions');
    is_deeply($redis->command('ACL', 'LOG'), [], 'Redis refused nothing');
    is(scalar lines_in($ng, qr/SCAN/), 0, 'and nothing is missing');
    finish($ng);
};

# Optional permissions are optional for administrators too.
subtest 'without TIME the acts are the same' => sub {
    my $redis = permitted_redis();
    $redis->command('ACL', 'SETUSER', 'idem', '-time');
    my $ng = administered_nginx($redis);
    my $id = unknown_record($ng, 'no-time');
    is_deeply([map { $_->{id} } unknown_of($ng)], [$id], 'listed');
    is_done(completed_by_hand($ng, $id), 'completed');
    cmp_ok(answer_of(ask($ng, "id=$id"))->{age_seconds}, '<', 60, 'age');
    is(post($ng->port, 'no-time')->{body}, 'by hand', 'replayed');
    finish($ng);
};

# What the user may still do when a script starts says nothing of what follows.
subtest 'a permission that is withdrawn leaves each record as it was' => sub {
    my $redis = permitted_redis();
    my $ng = administered_nginx($redis);
    my $id = unknown_record($ng, 'withdrawn');
    my $before = $redis->command('GET', "idem:$id");
    my %act = (
        'look up' => sub { ask($ng, "id=$id") },
        list => sub { ask($ng, 'unknown') },
        release => sub { act($ng, act => 'release', id => $id) },
        complete => sub { completed_by_hand($ng, $id) },
        delete => sub { act($ng, act => 'delete', id => $id) },
    );
    my %needs = (
        'look up' => [qw(get pttl)], list => [qw(scan getrange pttl)],
        release => [qw(getrange pttl del)], delete => [qw(getrange pttl del)],
        complete => [qw(getrange pttl set)],
    );
    for my $name (sort keys %act) {
        for my $command (@{ $needs{$name} }) {
            $redis->command('ACL', 'SETUSER', 'idem', "-$command");
            my $answer = $act{$name}->();
            # A list leaves out what it may not read.
            my $skips = $name eq 'list' && $command eq 'getrange';
            is($answer->{status}, $skips ? 200 : 503, "$name without $command");
            like(answer_of($answer)->{detail}, qr/"\Q${\ $redis->address }\E".*(?:NOPERM|ACL failure|can't run this command).*$PAGE/,
                '... the administrator is told by whom and why, and where to read') if !$skips;
            is($redis->command('GET', "idem:$id"), $before, '... the record is as it was');
            $redis->command('ACL', 'SETUSER', 'idem', "+$command");
        }
    }
    my @lines = lines_in($ng, qr/\[error\].*idempotency: record $id: Redis at "\S+" refused .*"complete".*(?:NOPERM|ACL failure|can't run).*$PAGE/);
    is(scalar @lines, 3, 'the log says it too') or diag(lines_in($ng, qr/idempotency: /));
    is_done(completed_by_hand($ng, $id), 'with all permissions it is completed');
    is(post($ng->port, 'withdrawn')->{body}, 'by hand', '... and replayed');
    is(ledger_count(key => 'withdrawn'), 1, 'executed once');
    finish($ng);
};

subtest 'a Redis that is full refuses a response, and the record is as it was' => sub {
    my $redis = permitted_redis();
    my $ng = administered_nginx($redis);
    my $id = unknown_record($ng, 'full');
    my $before = $redis->command('GET', "idem:$id");
    $redis->command('CONFIG', 'SET', 'maxmemory', 1);
    my $answer = completed_by_hand($ng, $id);
    is("$answer->{status} " . answer_of($answer)->{error}, '507 no_room', 'no room');
    is($redis->command('GET', "idem:$id"), $before, 'the record is as it was');
    $redis->command('CONFIG', 'SET', 'maxmemory', 0);
    is_done(completed_by_hand($ng, $id), 'then it is completed');
    finish($ng);
};

subtest 'a user who may not SCAN is told of when nginx connects' => sub {
    my $redis = permitted_redis();
    $redis->command('ACL', 'SETUSER', 'idem', '-scan');
    my $ng = administered_nginx($redis, workers => 2);
    wait_until(sub { lines_in($ng, qr/SCAN/) }, 5, 'a warning');
    my @lines = lines_in($ng, qr/\[warn\].*idempotency: Redis at "\S+".*SCAN.*NOPERM.*$PAGE/);
    is(scalar @lines, 1, 'one warning in all') or diag(lines_in($ng, qr/SCAN/));
    my $id = unknown_record($ng, 'no-scan');
    is_done(act($ng, act => 'release', id => $id), 'all but the list works');
    finish($ng);
};

subtest 'without idempotency_admin SCAN is not tried' => sub {
    my $redis = permitted_redis();
    my $ng = on_redis_nginx('redis://idem:password@' . $redis->address);
    is_back($ng);
    is($redis->command_stats->{scan}, undef, 'not tried');
    finish($ng);
};

subtest 'what is no record is named so, and can be deleted' => sub {
    my $redis = permitted_redis();
    my $ng = administered_nginx($redis);
    my $id = unknown_record($ng, 'damaged');
    $redis->command('SETRANGE', "idem:$id", 0, "\x09");
    my $answer = ask($ng, "id=$id");
    is("$answer->{status} " . answer_of($answer)->{error}, '409 unreadable', 'it cannot be read');
    is(completed_by_hand($ng, $id)->{status}, 409, 'nor completed');
    is_done(act($ng, act => 'delete', id => $id), 'but deleted');
    finish($ng);
};

done_testing();
