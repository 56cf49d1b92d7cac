#!/usr/bin/env perl

# The memory store: what a record outlives, and what happens when there is no
# room or a worker is killed in the middle of a change.

use v5.36;

use Digest::SHA qw(sha1_hex);
use IO::Select;
use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;

memory_only('about the memory store');

sub server ($port, $lines) {
    return <<"CONF";
server {
    listen 127.0.0.1:%%$port%%;
    add_header X-Pid \$pid always;
    location / {
        $lines
        idempotency_scope none;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
}

# A store of this size, and one server that uses it.
sub conf ($size, $lines = '') {
    return "idempotency_store s memory:$size;\n"
        . server('PORT', "idempotency s; $lines");
}

# What a retry must see again, byte by byte.
sub essence ($response) {
    my @headers = map { "$_: @{ $response->{headers}{$_} // [] }" }
        qw(content-type content-length location);
    return sha1_hex(join "\n", @headers, $response->{body});
}

subtest 'records survive a reload and are replayed by the new workers' => sub {
    my $ng = Nginx->start(http => conf('1m'), workers => 2);
    my $first = post($ng->port, 'reload');
    ok($ng->reload, 'reloaded');
    my $retry = post($ng->port, 'reload');
    is(said($retry), said($first) . ' replayed', 'replayed');
    isnt(pid_of($retry), pid_of($first), 'by a new worker');
    is(ledger_count(key => 'reload'), 1, 'executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a reload that changes the size is refused, the old workers go on' => sub {
    my $ng = Nginx->start(http => conf('1m'));
    my $first = post($ng->port, 'resize');
    my @before = $ng->worker_pids;
    ok(!$ng->reload_config(conf('2m')), 'refused');
    like($ng->error_log, qr/\[emerg\] .*cannot change its size from 1048576 to 2097152/,
        'and says why');
    is_deeply([$ng->worker_pids], \@before, 'the same workers');
    is(said(post($ng->port, 'resize')), said($first) . ' replayed',
        'their records are there');
    is(said(post($ng->port, 'resize', body => 'other')), '422 key_reused',
        'all of them');
    like(said(post($ng->port, 'after-resize')), qr/^201 #\d+$/, 'new keys run');
    ok($ng->reload_config(conf('1m')), 'the old size is still good');
    is(said(post($ng->port, 'resize')), said($first) . ' replayed',
        'and so are its records');
    is(ledger_count(key => 'resize'), 1, 'executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs(allow => qr/cannot change its size/);
};

subtest 'a reload to another store name starts empty' => sub {
    my $ng = Nginx->start(http => conf('1m'));
    post($ng->port, 'rename');
    my $renamed = conf('2m') =~ s/store s /store t /r =~ s/idempotency s;/idempotency t;/r;
    ok($ng->reload_config($renamed), 'reloaded');
    like(said(post($ng->port, 'rename')), qr/^201 #\d+$/, 'runs');
    is(ledger_count(key => 'rename'), 2, 'executed again');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'two stores do not mix' => sub {
    my $ng = Nginx->start(http => join '',
        "idempotency_store a memory:1m;\nidempotency_store b memory:1m;\n",
        "idempotency_scope_route host method path;\n",
        server('PORT', 'idempotency a;'), server('PORT2', 'idempotency b;'),
        server('PORT3', 'idempotency a;'));
    my $in_a = post($ng->port(1), 'mixed');
    my $in_b = post($ng->port(2), 'mixed');
    like(said($in_b), qr/^201 #\d+$/, 'the other store knows nothing of it');
    is(said(post($ng->port(3), 'mixed')), said($in_a) . ' replayed',
        'the same store from elsewhere does');
    is(said(post($ng->port(2), 'mixed')), said($in_b) . ' replayed',
        'each has its own');
    is(ledger_count(key => 'mixed'), 2, 'executed once for each store');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# The answers to keys that are new until one is refused, by key.
sub fill ($ng, $prefix, %opt) {
    my (%answers, $refused);
    for my $i (1 .. 1000) {
        my $response = post($ng->port, "$prefix-$i", %opt);
        return (\%answers, $response, $i) if $response->{status} == 503;
        $answers{"$prefix-$i"} = $response;
    }
    return (\%answers, undef, 1000);
}

subtest 'a full zone refuses new keys and forgets none' => sub {
    my $ng = Nginx->start(http => conf('64k'));
    ledger_reset();
    my ($answers, $refused, $tried) = fill($ng, 'full');
    is(said($refused), '503 store_unavailable', "refused, at key $tried");
    ok($refused->{headers}{'retry-after'}, 'with Retry-After');
    is(said(post($ng->port, "more-$_")), '503 store_unavailable', 'and so is another')
        for 1 .. 3;

    my @lost = grep {
        my $got = said(post($ng->port, $_));
        $got ne said($answers->{$_}) . ' replayed' && $got ne '409 response_not_kept';
    } sort keys %$answers;
    is_deeply(\@lost, [], 'every earlier key is known');
    is(ledger_count(), scalar keys %$answers, 'each was executed once');
    is(scalar lines_in($ng, qr/zone "idempotency:s" is full, new keys/), 1,
        'said once in the log');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a full zone has room again when records expire, without a restart' => sub {
    my $ng = Nginx->start(http =>
        conf('32k', 'idempotency_ttl 200 forever; idempotency_ttl 202 4s;'));
    my $kept = post($ng->port, 'kept', do => 'status=200');
    my $full = 0;
    for my $batch (1 .. 20) {
        my @answers = parallel(40, sub ($i) {
            post_args($ng->port, "short-$batch-$i", do => 'status=202');
        });
        last if $full = grep { $_->{status} == 503 } @answers;
    }
    ok($full, 'filled');
    my ($number, @late) = 0;
    ok(wait_until(sub {
        @late = map { post($ng->port, "late-$number") } ++$number, 'again';
        $late[0]{status} == 201 && $late[1]{status} == 201;
    }, 20, 'room'), 'a new key runs after a while, and its outcome is kept');
    is(said($late[1]), said($late[0]) . ' replayed', 'with its response');
    like(said(post($ng->port, 'kept')), qr/^(?:\Q@{[said($kept)]}\E replayed|409 response_not_kept)$/,
        'what is kept forever is still known');
    is(ledger_count(key => 'kept'), 1, 'and was executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a response that does not fit leaves the outcome without it' => sub {
    my $ng = Nginx->start(http => conf('64k'));
    my $large = 'size=200000';
    my $first = post($ng->port, 'large', do => $large);
    is(length $first->{body}, 200_000, 'the client got it');
    my $retry = post($ng->port, 'large', do => $large);
    is(said($retry), '409 response_not_kept', 'the retry does not');
    my ($location) = @{ $first->{headers}{location} };
    like($retry->{body}, qr/\b201\b/, 'it is told the status');
    like($retry->{body}, qr/\Q$location\E/, 'and the Location');
    is(said(post($ng->port, 'large', body => 'other')), '422 key_reused',
        'another body is another request');
    is(ledger_count(key => 'large'), 1, 'executed once');
    is(scalar lines_in($ng, qr/is full, responses are not stored/), 1,
        'said once in the log');
    my $small = post($ng->port, 'small');
    is(said(post($ng->port, 'small')), said($small) . ' replayed',
        'a small one has room');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'in a full zone the oldest responses make room' => sub {
    my $ng = Nginx->start(http => conf('64k'), workers => 2);
    ledger_reset();
    my @first = map { post($ng->port, "room-$_", do => 'size=1500') } 1 .. 60;
    is(scalar(grep { $_->{status} != 201 } @first), 0, 'all run');
    my @retries = map { post($ng->port, "room-$_", do => 'size=1500') } 1 .. 60;
    my ($not_kept) = grep { said($retries[$_]) =~ /replayed/ } 0 .. 59;
    cmp_ok($not_kept, '>', 5, "the first $not_kept are not kept");
    is_deeply([map { said($_) } @retries[0 .. $not_kept - 1]],
        [('409 response_not_kept') x $not_kept], 'and only those');
    is_deeply([map { said($_) } @retries[$not_kept .. 59]],
        [map { said($_) . ' replayed' } @first[$not_kept .. 59]], 'the others replay');
    my ($location) = @{ $first[0]{headers}{location} };
    like($retries[0]{body}, qr/"original_status":201,"original_location":"\Q$location\E"/,
        'a retry is told the status and the Location');
    is(ledger_count(), 60, 'each was executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'ten times too much: nothing is forgotten, and the log has three lines' => sub {
    my $ng = Nginx->start(http => conf('1m'), workers => 2);
    ledger_reset();
    my (@sent, %status, $refused);

    # A megabyte in some 600 responses; the facts alone are nearly 4,000.
    while (@sent < 8_000 && !$refused) {
        my @keys = map { 'ten-' . (@sent + $_) } 1 .. 40;
        my @answers = parallel(40, sub ($i) {
            post_args($ng->port, $keys[$i], do => 'size=1500');
        });
        $status{ $keys[$_] } = $answers[$_]{status} for 0 .. 39;
        $refused = grep { $_->{status} == 503 } @answers;
        push @sent, @keys;
    }
    my @ran = grep { $status{$_} == 201 } @sent;
    cmp_ok(scalar @ran, '>', 3_800, scalar(@ran) . ' keys ran until one was refused');
    is(scalar(grep { $status{$_} != 201 && $status{$_} != 503 } @sent), 0,
        'nothing but 201 and 503');
    is(ledger_count(), scalar @ran, 'each was executed once');

    my %retry;
    my @again = @ran;
    while (my @keys = splice @again, 0, 40) {
        my @answers = parallel(scalar @keys, sub ($n) {
            post_args($ng->port, $keys[$n], do => 'size=1500');
        });
        $retry{ said($_) =~ s/#\d+ //r }++ for @answers;
    }
    is_deeply([sort grep { !/^(?:201 replayed|409 response_not_kept)$/ } keys %retry], [],
        'a retry of each is answered by its record');
    is(ledger_count(), scalar @ran, 'and none ran again');

    my @lines = lines_in($ng, qr/zone "idempotency:s"/);
    is(scalar @lines, 3, 'three lines');
    like($lines[0], qr/\[warn\].*is 80% full, at the present rate it is full in \d+ \w+;/,
        'the first says when it is full');
    like($lines[1], qr/\[warn\].*is full, the oldest responses are dropped .*takes \d+% of the zone/,
        'the second that responses are dropped');
    like($lines[2], qr/\[error\].*is full, new keys cannot be stored/,
        'the third that keys are refused');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'an outcome without its response lasts as long as a 200' => sub {
    my $ng = Nginx->start(http => conf('64k',
        'idempotency_ttl 200 1h; idempotency_ttl 201 1s;'));
    post($ng->port, 'lasting', do => 'size=200000');
    post($ng->port, 'passing');
    ok(wait_until(sub { said(post($ng->port, 'passing')) !~ /replayed/ }, 5),
        'a 201 that was kept has lapsed');
    is(said(post($ng->port, 'lasting', do => 'size=200000')),
        '409 response_not_kept', 'the one that was not kept has not');
    is(ledger_count(key => 'lasting'), 1, 'executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# ---- killed workers -------------------------------------------------------

# Large answers, since it is their copying that takes time under the lock.
sub keyed_uri ($key) {
    my ($number) = $key =~ /(\d+)$/;
    return '/k?size=' . (100, 30_000, 300_000)[$number % 3];
}

# Sends keys forever: new ones, and old ones again. Lines of what it was told.
sub hammer ($port, $name, $file) {
    open my $out, '>', $file or die "$file: $!\n";
    $out->autoflush(1);
    srand($$);
    for (my $i = 1;; $i++) {
        my @keys = ("$name-$i", map { "$name-" . (1 + int rand $i) } 1 .. 4);
        my @answers = eval {
            parallel(scalar @keys, sub ($n) {
                post_args($port, $keys[$n], uri => keyed_uri($keys[$n]));
            }, timeout => 15);
        };
        for my $n (0 .. $#answers) {
            print {$out} join(' ', $keys[$n], $answers[$n]{timeout} ? 'HANG' : 'ended',
                said($answers[$n]), essence($answers[$n])), "\n";
        }
    }
}

sub start_hammer (@arguments) {
    my $pid = fork // die "fork: $!\n";
    return $pid if $pid;
    $SIG{TERM} = 'DEFAULT';
    hammer(@arguments);
    POSIX::_exit(0);
}

subtest 'workers killed at any moment leave no key hanging and none run twice' => sub {
    my $ng = Nginx->start(workers => 3, http => conf('256m',
        'idempotency_lease 500ms; idempotency_wait 200ms;'));
    ledger_reset();
    my %file = map { $_ => $ng->path("hammer-$_") } 'a' .. 'c';
    my @clients = map { start_hammer($ng->port, $_, $file{$_}) } sort keys %file;

    my $kills = 25;
    for (1 .. $kills) {
        sleep 0.05 + rand 0.15;
        my @pids = $ng->worker_pids;
        kill KILL => $pids[rand @pids] if @pids;
    }
    kill KILL => @clients;
    waitpid $_, 0 for @clients;
    wait_until(sub { $ng->worker_pids == 3 }, 5, 'three workers');

    my (%acknowledged, @hung, @differ);
    for my $line (map { split /\n/, Nginx::slurp($_) } values %file) {
        my ($key, $ended, $said) = $line =~ /^(\S+) (\S+) (.*)$/ or next;
        push @hung, $line if $ended eq 'HANG';
        next if $said !~ /^201 (#\d+)(?: replayed)? (\w+)$/;
        my $what = "$1 $2";
        push @differ, "$line, not $acknowledged{$key}"
            if ($acknowledged{$key} //= $what) ne $what;
    }
    is_deeply(\@hung, [], 'no request hung');
    is_deeply(\@differ, [], 'all answers to a key are the same');
    cmp_ok(scalar keys %acknowledged, '>', 20, 'many keys were acknowledged');

    my @gone;
    for my $key (sort keys %acknowledged) {
        my $got = post($ng->port, $key, uri => keyed_uri($key));
        my $now = said($got) . ' ' . essence($got);
        push @gone, "$key: $now, not $acknowledged{$key}"
            if $now !~ /^201 (#\d+) replayed (\w+)$/ || "$1 $2" ne $acknowledged{$key};
    }
    is_deeply(\@gone, [], 'every acknowledged response still replays');

    my $runs = runs_by_key();
    is_deeply([grep { @{ $runs->{$_} } > 1 } keys %$runs], [], 'no key ran twice');

    # What nobody heard of is settled too: known, or unknown after its lease.
    my @open = grep { !$acknowledged{$_} } keys %$runs;
    sleep 0.6;
    my @stuck = grep {
        said(post($ng->port, $_, uri => keyed_uri($_)))
            !~ /^(?:201 #\d+ replayed|409 (?:outcome_unknown|response_not_kept))$/;
    } @open;
    is_deeply(\@stuck, [], 'no other key hangs');
    like(said(post($ng->port, 'afterwards')), qr/^201 #\d+$/, 'new keys run');

    note(scalar(keys %$runs), ' keys, ', scalar @open, ' unheard, locks taken over: ',
        scalar lines_in($ng, qr/was locked by/), ', repaired: ',
        scalar lines_in($ng, qr/repaired after a worker died/));
    ok($ng->stop, 'stops');
    $ng->check_logs(allow => qr/exited on signal 9|shared memory zone .* was locked by/);
};

# How long it takes until a response begins, which is when it was stored.
sub time_to_store ($ng, $key, $uri) {
    my $conn = send_post($ng->port, $key, uri => $uri);
    my $began = time;
    IO::Select->new($conn->sock)->can_read(10);
    my $took = time - $began;
    $conn->close;
    return $took;
}

# The large outcomes expire soon, as room for more of them than fit would be
# made at the expense of the oldest response, which is looked at here.
subtest 'an outcome cut short while it is written costs no room' => sub {
    my $ng = Nginx->start(http => conf('64m', 'idempotency_max_response 64m;'
        . 'idempotency_lease 300ms; idempotency_ttl 200 202 24h; idempotency_ttl 201 200ms;'));
    my $kept = post($ng->port, 'kept', do => 'status=200&size=20000');
    my $uri = '/k?size=12000000';
    my ($took) = sort { $a <=> $b } map { time_to_store($ng, "cut-0-$_", $uri) } 1 .. 3;

    # nginx itself tells when a worker held the lock.
    my ($rounds, $hits, $until, @wrong) = (0, 0, time + 8);
    while ($hits < 3 && time < $until) {
        my $key = 'cut-' . ++$rounds;
        my ($pid) = $ng->worker_pids;
        my $conn = send_post($ng->port, $key, uri => $uri);
        sleep $took * (0.8 + rand 0.3);
        kill KILL => $pid;
        wait_until(sub { my ($new) = $ng->worker_pids; ($new // $pid) != $pid }, 5, 'a worker');
        my $replay = said(my $got = post($ng->port, 'kept', do => 'status=200'));
        push @wrong, "round $rounds: $replay"
            if $replay ne said($kept) . ' replayed' || $got->{body} ne $kept->{body};
        $hits = scalar lines_in($ng, qr/was locked by/);
        $conn->close;
    }
    is_deeply(\@wrong, [], 'other records are whole all the time');
    note("$hits of $rounds kills hit a worker that held the lock, repaired: ",
        scalar lines_in($ng, qr/repaired after a worker died/));

    # Nearly all of the zone for one answer, once the last has expired.
    # A 202 is kept longer than a busy machine needs to repeat it.
    my ($number, $said) = (0, '');
    my $whole = '/k?size=60000000&status=202';
    wait_until(sub {
        my $key = 'whole-' . ++$number;
        post($ng->port, $key, uri => $whole);
        ($said = said(post($ng->port, $key, uri => $whole))) =~ /replayed/;
    }, 8, 'room');
    like($said, qr/^202 #\d+ replayed$/, 'all the room is there');
    my $runs = runs_by_key();
    is_deeply([grep { /^cut-/ && @{ $runs->{$_} } > 1 } keys %$runs], [], 'no key ran twice');
    ok($ng->stop, 'stops');
    $ng->check_logs(allow => qr/exited on signal 9|shared memory zone .* was locked by/);
};

done_testing();
