#!/usr/bin/env perl

# The memory store on a file: what a restart, a crash of all of nginx, an
# upgrade and a larger size leave of it, and which files are refused.

use v5.36;

use File::Basename qw(dirname);
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

use Daemon;
use Ledger;
use Nginx;
use Keyed;
use Running ();

memory_only('about the memory store');

# The file is zone/s in the directory of this nginx.
sub conf ($size = '1m', $lines = '') {
    return <<"CONF";
idempotency_store s memory:$size file=zone/s;
server {
    listen 127.0.0.1:%%PORT%%;
    add_header X-Pid \$pid always;
    location / {
        idempotency s;
        $lines
        idempotency_scope none;
        idempotency_scope_route method path;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
}

sub file ($ng) { return $ng->path('zone/s') }

subtest 'records survive a restart' => sub {
    my $ng = Nginx->start(http => conf(), workers => 2);
    my @first = map { post($ng->port, "restart-$_", do => "size=$_") } 10, 1_000, 20_000;
    my ($mode, $links) = (stat file($ng))[2, 3];
    is(sprintf('%04o', $mode & 07777), '0600', 'the file is for its owner only');
    is($links, 1, 'and has one name');
    is(-s file($ng), 1024 * 1024, 'and its size is that of the store');

    for my $signal (qw(QUIT TERM)) {
        ok($ng->restart(signal => $signal), "restarted by $signal");
        my @retries = map { post($ng->port, "restart-$_", do => "size=$_") } 10, 1_000, 20_000;
        is_deeply([map { said($_) } @retries], [map { said($_) . ' replayed' } @first],
            'replayed');
        is_deeply([map { $_->{body} } @retries], [map { $_->{body} } @first], 'byte by byte');
    }
    is(ledger_count(key => 'restart-1000'), 1, 'executed once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'kill -9 of everything: what was pending is unknown after its lease' => sub {
    my $ng = Nginx->start(http => conf('1m', 'idempotency_lease 1s;'), workers => 2);
    my $done = post($ng->port, 'killed-done');
    my ($gate, $run) = start_run($ng->port, 'killed-pending');
    $ng->kill_whole;
    $run->close;
    ok($ng->launch, 'started again');
    is(said(post($ng->port, 'killed-done')), said($done) . ' replayed', 'what ended replays');
    is(wait_said('409 outcome_unknown', sub { post($ng->port, 'killed-pending') }),
        '409 outcome_unknown', 'what ran is unknown');
    $gate->open;
    is(ledger_count(key => 'killed-pending'), 1, 'what ran did not run again');
    like(said(post($ng->port, 'killed-new')), qr/^201 #\d+$/, 'new keys run');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'TTLs go on over a restart' => sub {
    my $ng = Nginx->start(http => conf('1m', 'idempotency_ttl 201 3s; idempotency_ttl 200 1h;'));
    my $ends = time + 3;
    post($ng->port, 'ttl-short');
    my $long = post($ng->port, 'ttl-long', do => 'status=200');
    ok($ng->restart, 'restarted');
    like(said(post($ng->port, 'ttl-short')), qr/replayed/, 'not yet expired') if time < $ends - 0.5;
    sleep $ends + 0.2 - time if time < $ends + 0.2;
    like(said(post($ng->port, 'ttl-short')), qr/^201 #\d+$/, 'expired in time');
    is(said(post($ng->port, 'ttl-long', do => 'status=200')), said($long) . ' replayed',
        'the other has not');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a reload keeps the records, and nginx -t takes no notice' => sub {
    my $ng = Nginx->start(http => conf(), workers => 2);
    my $first = post($ng->port, 'reload');
    {
        # nginx -t does not free its memory: a leak would decide its status.
        local $ENV{ASAN_OPTIONS} = join ',', grep {defined} $ENV{ASAN_OPTIONS}, 'detect_leaks=0';
        is(system(Nginx::command($ng->dir, '-t', '-q')), 0, 'nginx -t beside it');
    }
    ok($ng->reload, 'reloaded');
    my $retry = post($ng->port, 'reload');
    is(said($retry), said($first) . ' replayed', 'replayed');
    isnt(pid_of($retry), pid_of($first), 'by a new worker');
    ok($ng->reload_config(conf() =~ s/store s /store t /r =~ s/idempotency s;/idempotency t;/r),
        'reloaded with another name for the store');
    is(said(post($ng->port, 'reload')), said($first) . ' replayed', 'the file counts');
    ok($ng->restart, 'restarted');
    is(said(post($ng->port, 'reload')), said($first) . ' replayed', 'replayed');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a reload that loads another build of the module keeps the records' => sub {
    plan skip_all => 'the module is part of nginx' if !$ENV{TEST_NGINX_LOAD_MODULES};
    my $ng = Nginx->start(http => conf());
    my $first = post($ng->port, 'build');
    my $copy = $ng->path('module.so');
    my ($modules) = $ENV{TEST_NGINX_LOAD_MODULES} =~ /(\S+)$/;
    system('cp', $modules, $copy) == 0 or die "cp: $?\n";
    local $ENV{TEST_NGINX_LOAD_MODULES} = $ENV{TEST_NGINX_LOAD_MODULES} =~ s/\S+$/$copy/r;
    ok($ng->reload_config(conf()), 'reloaded');
    is(said(post($ng->port, 'build')), said($first) . ' replayed', 'replayed');
    # The build before is not there any more, and its descriptor with it.
    ok($ng->reload_config(conf() =~ s/store s /store t /r =~ s/idempotency s;/idempotency t;/r),
        'reloaded again, with another name for the store');
    is(said(post($ng->port, 'build')), said($first) . ' replayed', 'replayed');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a worker killed at any moment leaves the file whole' => sub {
    my $ng = Nginx->start(http => conf('16m', 'idempotency_lease 1s;'), workers => 2);
    my %first;
    for my $round (1 .. 15) {
        my @keys = map {"worker-$round-$_"} 1 .. 8;
        my ($pid) = $ng->worker_pids;
        my @conns = map { send_post($ng->port, $_, uri => '/k?size=100000') } @keys;
        sleep rand 0.05;
        kill KILL => $pid;
        $_->close for @conns;
        wait_until(sub { $ng->worker_pids == 2 }, 5, 'two workers');
        $first{"kept-$round"} = post($ng->port, "kept-$round");
    }
    my @lost = grep { said(post($ng->port, $_)) ne said($first{$_}) . ' replayed' } sort keys %first;
    is_deeply(\@lost, [], 'all others replay');
    $ng->kill_whole;
    ok($ng->launch, 'started again');
    @lost = grep { said(post($ng->port, $_)) ne said($first{$_}) . ' replayed' } sort keys %first;
    is_deeply(\@lost, [], 'and after a restart');
    my $runs = runs_by_key();
    is_deeply([grep { /^(?:worker|kept)-/ && @{ $runs->{$_} } > 1 } keys %$runs], [],
        'no key ran twice');
    ok($ng->stop, 'stops');
    $ng->check_logs(allow => qr/exited on signal 9/);
};

# ---- upgrade on the fly ----------------------------------------------------

subtest 'an upgrade on the fly: both masters share the records' => sub {
    my $ng = Daemon->start(http => conf(), workers => 1);
    my $port = $ng->port;
    my $old = $ng->master_pid;
    my $first = post($port, 'upgrade-1');
    ok($ng->upgrade, 'the new binary is up');

    # Both accept requests now.
    my (%by, %said);
    for my $i (1 .. 40) {
        my $response = post($port, 'upgrade-1');
        $by{ pid_of($response) }++;
        $said{ said($response) }++;
    }
    is_deeply([keys %said], [said($first) . ' replayed'], 'all replayed');
    note(scalar(keys %by), ' workers answered');
    my @between = map { post($port, "upgrade-between-$_") } 1 .. 10;
    $ng->end_upgrade;
    ok(wait_until(sub { is_gone($old) }, 10, 'the end of the old one'), 'the old one leaves');
    is_deeply([map { said(post($port, "upgrade-between-$_")) } 1 .. 10],
        [map { said($_) . ' replayed' } @between], 'what ran in between is known');
    is(said(post($port, 'upgrade-1')), said($first) . ' replayed', 'and what ran before');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# Which descriptors a process has of a file.
sub descriptors ($pid, $path) {
    return grep { (readlink // '') eq $path } glob "/proc/$pid/fd/*";
}

sub listeners ($pid) { return grep { (readlink // '') =~ /^socket:/ } glob "/proc/$pid/fd/*" }

subtest 'a reload that loads another build, then upgrades on the fly' => sub {
    plan skip_all => 'the module is part of nginx' if !$ENV{TEST_NGINX_LOAD_MODULES};
    my $ng = Daemon->start(http => conf(), workers => 1);
    my $first = post($ng->port, 'builds');
    my $sockets = listeners($ng->master_pid);
    my ($module) = $ENV{TEST_NGINX_LOAD_MODULES} =~ /(\S+)$/;
    for my $round (1 .. 3) {
        my $copy = $ng->path("module-$round.so");
        system('cp', $module, $copy) == 0 or die "cp: $?\n";
        local $ENV{TEST_NGINX_LOAD_MODULES} = $ENV{TEST_NGINX_LOAD_MODULES} =~ s/\S+$/$copy/r;
        ok($ng->reload_config(conf()), "reloaded with another build, $round");
        is(said(post($ng->port, 'builds')), said($first) . ' replayed', 'replayed');
        is(scalar descriptors($ng->master_pid, file($ng)), 1, 'the master has one descriptor of the file');
        ok(wait_until(sub { $sockets == listeners($ng->master_pid) }, 10, 'the end of the old worker'),
            'and all of its sockets');
        my $old = $ng->master_pid;
        ok($ng->upgrade, 'the new binary is up') or return;
        is(said(post($ng->port, 'builds')), said($first) . ' replayed', 'replayed');
        $ng->end_upgrade;
        ok(wait_until(sub { is_gone($old) }, 10, 'the end of the old one'), 'the old one leaves');
        is(scalar descriptors($ng->master_pid, file($ng)), 1, 'one descriptor');
    }
    is(said(post($ng->port, 'builds')), said($first) . ' replayed', 'replayed');
    is(ledger_count(key => 'builds'), 1, 'it ran once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# ---- size ------------------------------------------------------------------

subtest 'a larger size grows the file, a smaller one is refused' => sub {
    my $ng = Nginx->start(http => conf('64k'));
    my @first = map { post($ng->port, "grow-$_") } 1 .. 20;
    ok(!$ng->reload_config(conf('1m')), 'a reload is refused');
    like($ng->error_log, qr/file ".*zone\/s" of a store of 1048576 bytes cannot be used, it has 65536 bytes: it is in use, so it cannot be made larger now/,
        'and says why');
    ok($ng->restart, 'restarted with the larger size');
    is(-s file($ng), 1024 * 1024, 'the file has grown');
    is_deeply([map { said(post($ng->port, "grow-$_")) } 1 .. 20],
        [map { said($_) . ' replayed' } @first], 'its records are there');
    my @more = map { post($ng->port, "more-$_", do => 'size=2000') } 1 .. 100;
    is(scalar(grep { said(post($ng->port, "more-$_", do => 'size=2000')) =~ /replayed/ } 1 .. 100), 100,
        'and there is room');
    $ng->stop;
    $ng->{http} = conf('64k');
    ok(!$ng->launch, 'a smaller size is refused');
    like($ng->error_log, qr/\[emerg\].*a store of 65536 bytes cannot be used, it has 1048576 bytes: it is larger than its store, and cannot be made smaller/,
        'and says both');
    # nginx forgets its first pool when it refuses its configuration.
    unlink glob $ng->path('sanitizer*');
    $ng->{http} = conf();
    ok($ng->launch, 'the old size is good');
    is(said(post($ng->port, 'grow-1')), said($first[0]) . ' replayed', 'and so are its records');
    ok($ng->stop, 'stops');
    $ng->check_logs(allow => qr/\[emerg\]/);
};

# ---- files that are refused -------------------------------------------------

sub put ($path, $bytes) {
    open my $out, '>:raw', $path or die "$path: $!\n";
    print {$out} $bytes;
    close $out or die "$path: $!\n";
    chmod 0600, $path;
    chown((stat dirname($path))[4, 5], $path);
}

# A file that is good but for what is done to it.
sub spoil ($do) {
    return sub ($ng) {
        my $path = file($ng);
        $ng->{http} = conf();
        $ng->launch or die $ng->error_log;
        $ng->stop;
        unlink $ng->path('error.log');
        $do->($path);
    };
}

sub patch_at ($path, $offset, $bytes) {
    open my $io, '+<:raw', $path or die "$path: $!\n";
    seek $io, $offset, 0;
    print {$io} $bytes;
    close $io;
}

my @refused = (
    ['a symbolic link', spoil(sub ($path) {
        rename $path, "$path.real";
        symlink "$path.real", $path;
    }), 'it is a symbolic link'],
    ['a file of another user', spoil(sub ($path) { chown 12345, -1, $path }),
        'it belongs to another user than the workers run as'],
    ['a file that others may read', spoil(sub ($path) { chmod 0644, $path }),
        'others may read or write it: set its mode to 0600'],
    ['a directory', spoil(sub ($path) { unlink $path; mkdir $path }),
        'it cannot be opened (21: Is a directory)'],
    ['a named pipe', spoil(sub ($path) { unlink $path; POSIX::mkfifo($path, 0600) }),
        'it is not a regular file'],
    ['a file of another kind', spoil(sub ($path) { put($path, 'hello' x 1000) }),
        'it is not a file of this module, or its beginning is lost: move it away to start with an empty store'],
    ['an empty file', spoil(sub ($path) { put($path, '') }),
        'it is not a file of this module, or its beginning is lost: move it away to start with an empty store'],
    ['a file of another layout', spoil(sub ($path) { patch_at($path, 8, pack 'Q<', 99) }),
        'its records are of a build of the module that stores them in another way'],
    ['a full disk', sub ($ng) { $ng->{http} = conf('900000g') },
        'its space cannot be reserved'],
    ['a directory without a parent', sub ($ng) {
        $ng->{http} = conf() =~ s{zone/s}{no/such/s}r;
    }, 'its directory cannot be created (2: No such file or directory)'],
);

# As nginx, but the folder zone is a mount of its own.
sub with_mount ($mount) {
    return sub ($ng) {
        my $binary = $ENV{TEST_NGINX_BINARY} || 'nginx';
        my $script = $ng->path('nginx.sh');
        mkdir $ng->path('zone');
        put($script, <<"SCRIPT");
#!/bin/sh
exec unshare -m sh -c 'cd "$ng->{dir}" && $mount && exec "\$@"' sh "$binary" "\$@"
SCRIPT
        chmod 0755, $script;
        $ENV{TEST_NGINX_BINARY} = $script;
    };
}

my $can_mount = system('unshare -m sh -c "mount -t tmpfs none /mnt" 2> /dev/null') == 0;

push @refused, (
    ['a disk that is too small', with_mount('mount -t tmpfs -o size=512k none zone'),
        'its space cannot be reserved (28: No space left on device)'],
    ['a read-only file system', with_mount('mount -t tmpfs -o ro none zone'),
        'it cannot be created (30: Read-only file system)'],
    ['a file on a read-only file system', sub ($ng) {
        spoil(sub ($path) { })->($ng);
        with_mount('mount --bind zone zone && mount -o remount,bind,ro zone')->($ng);
    }, 'it cannot be opened (30: Read-only file system)'],
) if $can_mount;

for (@refused) {
    my ($what, $prepare, $reason) = @$_;
    subtest "refused: $what" => sub {
        plan skip_all => 'only root can give files away' if $what =~ /another user/ && $>;
        local $ENV{TEST_NGINX_BINARY} = $ENV{TEST_NGINX_BINARY};
        my $ng = Nginx->prepare(http => conf());
        $ng->port;
        $prepare->($ng);
        ok(!$ng->launch, 'nginx does not start');
        my @lines = lines_in($ng, qr/\[emerg\]/);
        is(scalar @lines, 1, 'one line');
        like($lines[0], qr/idempotency: file ".*" cannot be used: .*/, 'about the file');
        my ($words, $code) = $reason =~ /^(.*?)( \(\d+: .*\))?$/;
        like($lines[0], qr/cannot be used: \Q$words\E/, 'that says why');
        like($lines[0], qr/\Q$code\E/, 'with the error of the system') if $code;
    };
}

subtest 'refused: a second nginx on the same file' => sub {
    my $ng = Nginx->start(http => conf());
    my $path = file($ng);
    my $first = post($ng->port, 'second');
    my $other = Nginx->prepare(http => conf() =~ s{file=zone/s}{file=$path}r);
    $other->port;
    ok(!$other->launch, 'it does not start');
    like($other->error_log, qr/\[emerg\].*cannot be used: it is in use by another nginx/, 'and says why');
    is(said(post($ng->port, 'second')), said($first) . ' replayed', 'the first goes on');
    $ng->kill_whole;
    ok($other->launch, 'it starts when the first is gone');
    is(said(post($other->port, 'second')) =~ s/#\d+ //r, '201 replayed', 'with its records');
    ok($other->stop, 'stops');
};

subtest 'two first starts at once: one of them runs' => sub {
    my @pairs;
    for my $pair (1 .. 12) {
        my @both = map { Nginx->prepare(http => conf()) } 1, 2;
        my $path = $both[0]->path('zone/s');
        for my $ng (@both) {
            $ng->{http} = conf('4m') =~ s{file=zone/s}{file=$path}r;
            $ng->port;
            $ng->write_conf;
        }
        push @pairs, \@both;
    }
    for my $ng (map {@$_} @pairs) {
        my $child = $ng->{child} = $ng->spawn;
        Running::started($child, sub { $ng->kill_all });
    }
    my $run = sub ($both) { scalar grep { !$_->reaped && $_->is_up } @$both };
    ok(wait_until(sub { !grep { $run->($_) != 1 || 1 != grep { $_->reaped } @$_ } @pairs }, 20, 'one of each pair'),
        'one of two runs') or diag(map { $_->error_log } map {@$_} grep { $run->($_) != 1 } @pairs);
    is(scalar(map { glob $_->[0]->path('zone/s.*') } @pairs), 0, 'and no other file is left');
    for my $ng (map {@$_} @pairs) {
        next if $ng->reaped;
        like(said(post($ng->port, 'first-start-' . $ng->port)), qr/^201/, 'it serves') if $ng == $pairs[0][0];
        $ng->stop;
    }
};

subtest 'two stores on one file, other parameters' => sub {
    my %wrong = (
        'file=zone/s file=zone/t' => 'duplicate parameter "file=zone/t" of idempotency store "s"',
        'file=' => 'unknown parameter "file=" of idempotency store "s", a memory store has only "file=PATH"',
        'prefix=x' => 'unknown parameter "prefix=x" of idempotency store "s", a memory store has only "file=PATH"',
    );
    for my $parameters (sort keys %wrong) {
        my ($good, $log) = Nginx->conf_test("idempotency_store s memory:1m $parameters;");
        ok(!$good, "$parameters is refused");
        like($log, qr/\Q$wrong{$parameters}\E/, 'with the reason');
    }
    my ($good, $log) = Nginx->conf_test(
        "idempotency_store a memory:1m file=f;\nidempotency_store b memory:1m file=f;");
    ok(!$good, 'one file for two stores is refused');
    like($log, qr/file ".*f" of idempotency store "b" is already used by store "a"/, 'with the reason');
};

subtest 'a store does not get or lose its file on reload' => sub {
    my $ng = Nginx->start(http => conf());
    my $first = post($ng->port, 'kind');
    ok(!$ng->reload_config(conf() =~ s{ file=zone/s}{}r), 'refused');
    like($ng->error_log, qr/zone "idempotency:s" cannot lose a file on reload/, 'and says why');
    is(said(post($ng->port, 'kind')), said($first) . ' replayed', 'its records are there');
    ok($ng->stop, 'stops');
    my $other = Nginx->start(http => conf() =~ s{ file=zone/s}{}r);
    ok(!$other->reload_config(conf()), 'the other way, too');
    like($other->error_log, qr/zone "idempotency:s" cannot get a file on reload/, 'and says why');
    ok($other->stop, 'stops');
};

subtest 'a store does not get another file on reload' => sub {
    my $ng = Nginx->start(http => conf());
    my $first = post($ng->port, 'path');
    my ($gate, $run) = start_run($ng->port, 'path-runs');
    my $other = conf() =~ s{zone/s}{zone/t}r;
    ok(!$ng->reload_config($other), 'refused');
    like($ng->error_log, qr/\[emerg\].*zone "idempotency:s" cannot change its file from ".*zone\/s" to ".*zone\/t" on reload, its records would be lost: restart nginx or rename the store/,
        'and says both');
    ok(!-e $ng->path('zone/t'), 'no file was made');
    is(said(post($ng->port, 'path')), said($first) . ' replayed', 'its records are there');
    is(said(post($ng->port, 'path-runs')), '409 in_progress', 'a retry of what runs does not run');
    if ($ENV{TEST_NGINX_LOAD_MODULES}) {
        my $copy = $ng->path('module.so');
        my ($module) = $ENV{TEST_NGINX_LOAD_MODULES} =~ /(\S+)$/;
        system('cp', $module, $copy) == 0 or die "cp: $?\n";
        local $ENV{TEST_NGINX_LOAD_MODULES} = $ENV{TEST_NGINX_LOAD_MODULES} =~ s/\S+$/$copy/r;
        ok(!$ng->reload_config($other), 'another build refuses it, too');
        like($ng->error_log, qr/\[emerg\].*zone "idempotency:s" has another file than ".*zone\/t", or none/, 'and says so');
    }
    $gate->open;
    is($run->response->{status}, 201, 'the run ends');
    is(ledger_count(key => 'path-runs'), 1, 'it ran once');
    ok($ng->restart, 'restarted');
    ok($ng->stop, 'stops');
};

subtest 'a reload that renames a store and its file says how many records it leaves' => sub {
    my $ng = Nginx->start(http => conf());
    post($ng->port, "left-$_") for 1 .. 3;
    my $renamed = conf() =~ s/store s /store t /r =~ s{zone/s}{zone/t}r =~ s/idempotency s;/idempotency t;/r;
    ok($ng->reload_config($renamed), 'reloaded');
    is(scalar lines_in($ng, qr/\[warn\].*zone "idempotency:s" is not in the new configuration, its 3 records stay in the file ".*zone\/s": retries of these requests run again/),
        1, 'said once');
    ok($ng->reload_config($renamed =~ s/store t /store u /r =~ s/idempotency t;/idempotency u;/r),
        'renamed again, with the same file');
    is(scalar lines_in($ng, qr/\[warn\].*is not in the new configuration/), 1, 'nothing to say: the file counts');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a reload that drops a zone says how many records it had' => sub {
    my $ng = Nginx->start(http => conf() =~ s{ file=zone/s}{}r);
    post($ng->port, "dropped-$_") for 1 .. 3;
    my $off = conf() =~ s/idempotency_store .*\n//r =~ s/idempotency s;//r;
    ok($ng->reload_config($off), 'reloaded without it');
    is(scalar lines_in($ng, qr/\[warn\].*zone "idempotency:s" is not in the new configuration, its 3 records are dropped/),
        1, 'said once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'the same of the implicit zone, and nothing of an empty one' => sub {
    my $on = conf() =~ s/idempotency_store .*\n//r =~ s/idempotency s;/idempotency on;/r;
    my $off = $on =~ s/idempotency on;//r;
    my $ng = Nginx->start(http => $on);
    post($ng->port, 'implicit');
    ok($ng->reload_config($off), 'off');
    ok($ng->reload_config($on), 'and on again');
    is(scalar lines_in($ng, qr/\[warn\].*zone "idempotency:default" is not in the new configuration, its 1 records? (?:is|are) dropped/),
        1, 'the one record is told of');
    ok($ng->reload_config($off), 'off again');
    is(scalar lines_in($ng, qr/are dropped|is dropped/), 1, 'there was none any more');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'zone-dump shows what is in a file that is in use' => sub {
    my $ng = Nginx->start(http => conf());
    post($ng->port, 'dump', do => 'size=1000');
    my $build = dirname(dirname(__FILE__)) . '/build.sh';
    my $dump = sub { split /\n/, qx('$build' zone-dump '@{[file($ng)]}' 2>/dev/null) };
    my @lines = $dump->(); # the first call builds it
    is(scalar @lines, 2, 'one record');
    my ($gate, $conn) = start_run($ng->port, 'dump-pending');
    @lines = $dump->();
    is(scalar @lines, 3, 'a line for each record, and one for all');
    is(scalar(grep {/^[0-9a-f]+ completed attempt=1 age=\S+s expires=8\d{4}\.\ds response=1\d{3} summary=\d+$/} @lines),
        1, 'the one that ended');
    is(scalar(grep {/^[0-9a-f]+ pending   attempt=1 .* lease=30\.0s response=0 summary=0$/} @lines),
        1, 'the one that runs') or diag(@lines);
    like($lines[-1], qr/^2 records, \d+ of \d+ blocks in use, \d+ by responses; damaged: 0 lost, 0 without response$/,
        'the sum');
    $gate->open;
    $conn->response;
    like(said(post($ng->port, 'dump', do => 'size=1000')), qr/replayed/, 'it has not changed');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

# ---- damage -----------------------------------------------------------------

subtest 'a file that was cut anywhere starts again with what is left' => sub {
    my $ng = Nginx->start(http => conf('32k'));
    my %first = map { $_ => said(post($ng->port, "cut-$_", do => 'size=500')) } 1 .. 25;
    $ng->kill_whole;
    my $whole = Nginx::slurp(file($ng));
    my ($wrong, $lines) = (0, 0);

    for (my $size = 1024; $size < length $whole; $size += 2048 + 256) {
        put(file($ng), substr $whole, 0, $size);
        unlink $ng->path('error.log');
        $ng->launch or die $ng->error_log;
        for my $key (1, 12, 25) {
            my $said = said(post($ng->port, "cut-$key", do => 'size=500'));
            $wrong++ if $said !~ /^(?:\Q$first{$key}\E replayed|409 response_not_kept|201 #\d+)$/;
        }
        $lines += lines_in($ng, qr/was damaged/);
        $ng->stop;
    }
    is($wrong, 0, 'every answer is whole');
    note("$lines starts told of damage");
    put(file($ng), substr $whole, 0, 500);
    ok(!$ng->launch, 'without its beginning it is refused');
};

done_testing();
