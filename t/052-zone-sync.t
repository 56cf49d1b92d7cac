#!/usr/bin/env perl

# The memory store on a file with "sync": what is left after a loss of power,
# and what a disk that is slow or broken does to requests. The disk is one of
# our own, see t/lib/disk.c.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp ();
use IO::Select;
use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use Nginx;
use Keyed;

memory_only('about the memory store');

# Sanitizers want to be the first library, but can do without.
$ENV{ASAN_OPTIONS} = join ',', grep {defined} $ENV{ASAN_OPTIONS}, 'verify_asan_link_order=0';

my $folder = File::Temp->newdir('disk-XXXXXX', TMPDIR => 1);
chmod 0755, "$folder";
my $library = "$folder/disk.so";
my $source = dirname(abs_path(__FILE__)) . '/lib/disk.c';
system('cc', '-shared', '-fPIC', '-Wall', '-Werror', '-o', $library, $source) == 0
    or die "$source cannot be compiled\n";

sub conf ($sync, $lines = '') {
    return <<"CONF";
idempotency_store s memory:1m file=%%DIR%%/zone $sync;
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        idempotency s;
        $lines
        idempotency_scope none;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /idle { return 200; }
}
CONF
}

my $disks = 0;

# An nginx with a disk of its own.
sub start_on_disk ($http, %opt) {
    my $disk = "$folder/disk-" . ++$disks;
    disk_is($disk, 'good');
    my $ng = Nginx->start(http => $http, %opt, env => {
        LD_PRELOAD => $library, TEST_DISK => $disk, TEST_DISK_SHADOW => "$disk.shadow",
    });
    $ng->{disk} = $disk;
    return $ng;
}

sub disk_is ($disk, $word) {
    open my $out, '>', "$disk.new" or die "$disk: $!\n";
    print {$out} "$word\n";
    close $out;
    rename "$disk.new", $disk or die "$disk: $!\n";
}

# Only what was written is left, and it was another boot of the machine.
sub lose_power ($ng) {
    $ng->kill_whole;
    my $written = Nginx::slurp("$ng->{disk}.shadow");
    my ($boot) = Nginx::slurp('/proc/sys/kernel/random/boot_id') =~ /(\S+)/;
    substr($written, index($written, $boot), length $boot) = reverse $boot;
    open my $out, '>:raw', $ng->path('zone') or die "zone: $!\n";
    print {$out} $written;
    close $out;
    ok($ng->launch, 'started again');
}

sub is_served ($ng) { return request($ng->port, 'GET', '/idle')->{status} == 200 }

subtest 'sync=always: what was answered is there after a loss of power' => sub {
    my $ng = start_on_disk(conf('sync=always'), workers => 2);
    my %first;
    for my $round (1 .. 5) {
        my @keys = map {"power-$round-$_"} 1 .. 20;
        my @answers = parallel(20, sub ($i) { post_args($ng->port, $keys[$i], do => 'size=700') });
        $first{ $keys[$_] } = said($answers[$_]) for 0 .. 19;
    }
    my ($gate, $run) = start_run($ng->port, 'power-runs');
    lose_power($ng);
    $run->close;
    my @wrong = grep { said(post($ng->port, $_, do => 'size=700')) ne "$first{$_} replayed" } sort keys %first;
    is_deeply(\@wrong, [], 'every response that a client has got replays');
    like(said(post($ng->port, 'power-runs')), qr/^409 (?:in_progress|outcome_unknown)$/,
        'what was sent on is known');
    $gate->open;
    is(ledger_count(key => 'power-runs'), 1, 'and did not run again');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'sync=always: power is lost at any moment, and no key runs twice' => sub {
    my $ng = start_on_disk(conf('sync=always'), workers => 2);
    my %said;
    for my $round (1 .. 5) {
        my @conns = map { send_post($ng->port, "moment-$round-$_", uri => '/k?size=3000') } 1 .. 30;
        sleep rand 0.06;
        lose_power($ng);
        $_->close for @conns;
        my @answers = parallel(30, sub ($i) {
            post_args($ng->port, "moment-$round-" . ($i + 1), uri => '/k?size=3000');
        });
        $said{ said($_) =~ s/#\d+ ?//r }++ for @answers;
    }
    my $runs = runs_by_key();
    my @twice = grep { /^moment-/ && @{ $runs->{$_} } > 1 } keys %$runs;
    is_deeply(\@twice, [], 'none ran twice');
    note(join ', ', map {"$_: $said{$_}"} sort keys %said);
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'sync=1s: written after a second, and when nginx leaves' => sub {
    my $ng = start_on_disk(conf('sync=1s'));
    my $shadow = "$ng->{disk}.shadow";
    ok(!-s $shadow, 'nothing is written yet');
    my $began = time;
    my $first = post($ng->port, 'second-1');
    cmp_ok(time - $began, '<', 0.9, 'nobody waits for it');
    ok(wait_until(sub { -s $shadow }, 5, 'the disk'), 'written');
    cmp_ok(time - $began, '>', 0.9, 'after a second');
    lose_power($ng);
    is(said(post($ng->port, 'second-1')), said($first) . ' replayed', 'replays after a loss of power');
    my $last = post($ng->port, 'second-2');
    ok($ng->stop, 'stops');
    $ng->launch;
    lose_power($ng);
    is(said(post($ng->port, 'second-2')), said($last) . ' replayed', 'and so does the last one');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'without sync nothing is written by us' => sub {
    my $ng = start_on_disk(conf(''));
    post($ng->port, "system-$_") for 1 .. 3;
    ok($ng->stop, 'stops');
    ok(!-e "$ng->{disk}.shadow", 'nothing was written');
};

# ---- a disk that does not answer ---------------------------------------------

subtest 'a slow disk holds claims up, and nothing else' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    my $known = post($ng->port, 'known');
    disk_is($ng->{disk}, 'stuck');
    my @conns = map { send_post($ng->port, "slow-$_") } 1 .. 3;
    sleep 0.3;
    ok(is_served($ng), 'other requests are served');
    is(said(post($ng->port, 'known')), said($known) . ' replayed', 'replays too');
    is(said(post($ng->port, 'slow-1')), '409 in_progress', 'a retry waits for the first');
    is(ledger_count(key => 'slow-1'), 0, 'no request was sent on');
    disk_is($ng->{disk}, 'good');
    is_deeply([map { said($_->response) =~ s/#\d+//r } @conns], [('201 ') x 3], 'then they run');
    is(ledger_count(key => 'slow-1'), 1, 'once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'clients that leave at any moment' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    for my $round (1 .. 20) {
        my @conns = map { send_post($ng->port, "any-$round-$_", do => 'sleep=0.01') } 1 .. 20;
        sleep rand 0.03;
        $_->close for @conns;
    }
    ok(wait_until(sub { said(post($ng->port, 'any')) =~ /^201/ }, 5, 'nginx'), 'nginx goes on');
    my $runs = runs_by_key();
    is_deeply([grep { /^any-/ && @{ $runs->{$_} } > 1 } keys %$runs], [], 'no key ran twice');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'an outcome waits for the disk too' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    my ($gate, $run) = start_run($ng->port, 'outcome');
    disk_is($ng->{disk}, 'stuck');
    $gate->open;
    sleep 0.3;
    ok(!IO::Select->new($run->sock)->can_read(0), 'no answer yet');
    disk_is($ng->{disk}, 'good');
    my $first = $run->response;
    is($first->{status}, 201, 'answered then');
    is(said(post($ng->port, 'outcome')), said($first) . ' replayed', 'and it is stored');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a client that leaves while the disk is slow leaves no open claim' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    disk_is($ng->{disk}, 'stuck');
    my $conn = send_post($ng->port, 'leaves');
    sleep 0.2;
    $conn->close;
    sleep 0.2;
    disk_is($ng->{disk}, 'good');
    like(wait_said(qr/^201/, sub { post($ng->port, 'leaves') }, 3), qr/^201 #\d+/,
        'the key is free, or was used');
    is(ledger_count(key => 'leaves'), 1, 'it ran once');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'nginx that is asked to leave answers those who wait for the disk first' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    disk_is($ng->{disk}, 'stuck');
    my $conn = send_post($ng->port, 'quits');
    sleep 0.2;
    kill QUIT => $ng->master_pid;
    sleep 0.5;
    disk_is($ng->{disk}, 'good');
    is($conn->response->{status}, 201, 'answered');
    ok(wait_until(sub { $ng->reaped }, 10, 'the end'), 'and leaves');
    $ng->check_logs;
};

subtest 'a disk that stays stuck: 503 after five seconds, and well again later' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    my ($gate, $run) = start_run($ng->port, 'stuck-outcome');
    disk_is($ng->{disk}, 'stuck');
    $gate->open;
    my $began = time;
    my $conn = send_post($ng->port, 'stuck');
    is(said($conn->response(9)), '503 store_unavailable', 'refused');
    cmp_ok(time - $began, '>', 4.5, 'after some patience');
    is($run->response->{status}, 201, 'who has run gets the response all the same');
    is(scalar lines_in($ng, qr/\[error\].*was not written to the disk in 5 seconds; new keys are refused/), 1,
        'one line says why');
    disk_is($ng->{disk}, 'good');
    my $said = '';
    wait_until(sub { ($said = said(post($ng->port, 'stuck'))) =~ /^201/ }, 5, 'the disk');
    like($said, qr/^201 #\d+$/, 'the key was given back, and runs');
    like(said(post($ng->port, 'stuck-outcome')), qr/replayed/, 'the outcome was stored');
    is(scalar lines_in($ng, qr/\[notice\].*is written to the disk again/), 1, 'one line says that it is well');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a broken disk: 503 at once, no request is sent on' => sub {
    my $ng = start_on_disk(conf('sync=always'));
    my $known = post($ng->port, 'known-2');
    disk_is($ng->{disk}, 'broken');
    is(said(post($ng->port, 'broken')), '503 store_unavailable', 'refused') for 1 .. 3;
    is(ledger_count(key => 'broken'), 0, 'not sent on');
    is(said(post($ng->port, 'known-2')), said($known) . ' replayed', 'what is known replays');
    is(scalar lines_in($ng, qr/\[error\].*file ".*zone" cannot be written to the disk; new keys are refused \("store_unavailable"\) until all of it is written: check the disk \(5: Input\/output error\)/),
        1, 'one line says why');
    disk_is($ng->{disk}, 'good');
    like(said(post($ng->port, 'broken')), qr/^201 #\d+$/, 'runs when it is well again');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a broken disk leaves an unknown outcome unknown' => sub {
    my $ng = start_on_disk(conf('sync=always',
        'idempotency_unknown_outcome release; proxy_set_header X-Attempt $idempotency_attempt;'));
    post($ng->port, 'again', do => 'status=504');
    disk_is($ng->{disk}, 'broken');
    is(said(post($ng->port, 'again')), '503 store_unavailable', 'refused');
    disk_is($ng->{disk}, 'good');
    post($ng->port, 'again');
    my @attempts = attempts_of('again');
    is(scalar @attempts, 2, 'ran again when the disk was well');
    cmp_ok($attempts[1], '>', 1, 'and was announced as a further attempt');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'a file on a network file system is refused' => sub {
    my %types = (NFS => 0x6969, SMB => 0xfe534d42, Ceph => 0x00c36400);
    for my $name (sort keys %types) {
        my $ng = Nginx->prepare(http => conf(''), env => {
            LD_PRELOAD => $library, TEST_DISK_TYPE => $types{$name},
        });
        $ng->port;
        ok(!$ng->launch, "$name: nginx does not start");
        like($ng->error_log, qr/\[emerg\].*zone" cannot be used: it is on a network file system: use a local one/, 'and says why');
        ok(!glob($ng->path('zone*')), 'nothing is left');
    }
};

subtest 'processes of a worker do not get the file' => sub {
    my $ng = Nginx->start(http => conf(''));
    my ($worker) = $ng->worker_pids;
    my $zone = $ng->path('zone');
    my @open = map {m{(\d+)$}} grep { (readlink // '') eq $zone } glob "/proc/$worker/fd/*";
    cmp_ok(scalar @open, '>=', 1, 'the worker has it open');
    my @kept = grep {
        my ($flags) = Nginx::slurp("/proc/$worker/fdinfo/$_") =~ /^flags:\s*(\d+)/m;
        !(oct($flags) & oct('02000000'));
    } @open;
    is_deeply(\@kept, [], 'each descriptor is closed on exec');
    ok($ng->stop, 'stops');
};

subtest 'parameters' => sub {
    my %wrong = (
        'sync=1s' => '"sync" of idempotency store "s" needs "file=PATH": without a file there is no disk',
        'file=f sync=soon' => 'invalid "sync=soon" of idempotency store "s", write "off", "always" or a time such as "1s", at least "10ms"',
        'file=f sync=' => 'invalid "sync=" of idempotency store "s"',
        'file=f sync=1ms' => 'invalid "sync=1ms" of idempotency store "s"',
        'file=f sync=off sync=1s' => 'duplicate parameter "sync=1s" of idempotency store "s"',
    );
    for my $parameters (sort keys %wrong) {
        my ($good, $log) = Nginx->conf_test("idempotency_store s memory:1m $parameters;");
        ok(!$good, "$parameters is refused");
        like($log, qr/\[emerg\].*\Q$wrong{$parameters}\E/, 'with the reason');
    }
    for my $sync (qw(off always 1s 250ms)) {
        my ($good, $log) = Nginx->conf_test("idempotency_store s memory:1m file=f sync=$sync;");
        ok($good, "sync=$sync") or diag($log);
    }
};

done_testing();
