#!/usr/bin/env perl

# The memory store on a file whose disk cannot be written: nothing counts as
# stored that is not, with "sync" and without. The disk is a real one: see
# t/lib/RealDisk.pm.

use v5.36;

use RealDisk;

BEGIN { RealDisk::with_own_mounts() }

use Test::More;
use Time::HiRes qw(sleep time);

use Ledger;
use MemoryPressure;
use Nginx;
use Keyed;

memory_only('about the memory store');

sub conf ($disk, $sync, $lines = '') {
    return <<"CONF";
idempotency_store s memory:8m file=@{[$disk->dir]}/zone $sync;
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        idempotency s;
        $lines
        idempotency_scope none;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
}

# Only what is on the disk is left, and it was another boot of the machine.
sub lose_power ($ng, $disk) {
    $ng->kill_whole;
    my $path = $disk->dir . '/zone';
    my ($boot) = Nginx::slurp('/proc/sys/kernel/random/boot_id') =~ /(\S+)/;
    my $written = $disk->on_disk($path);
    $disk->work;
    substr($written, index($written, $boot), length $boot) = reverse $boot;
    open my $out, '+<:raw', $path or die "$path: $!\n";
    print {$out} $written;
    close $out;
}

my $CANNOT = qr/\[error\].*file ".*zone" cannot be written to the disk; new keys are refused \("store_unavailable"\)/;

for my $workers (1, 2) {
    subtest "sync=always, $workers worker(s): what was acknowledged is on the disk" => sub {
        my $disk = RealDisk->new;
        my $ng = Nginx->start(http => conf($disk, 'sync=always'), workers => $workers);
        my %said = map { $_ => said(post($ng->port, $_, do => 'size=700')) } map {"a$workers-$_"} 1 .. 20;
        $disk->fail($disk->dir . '/zone');
        for my $round (1 .. 20) {
            my @keys = map {"b$workers-$round-$_"} 1 .. 4;
            my @answers = parallel(4, sub ($i) { post_args($ng->port, $keys[$i], do => 'size=700') });
            $said{ $keys[$_] } = said($answers[$_]) for 0 .. 3;
        }
        my @acknowledged = grep { $said{$_} =~ /^201/ } sort keys %said;
        note(scalar(@acknowledged), ' of ', scalar(keys %said), ' were acknowledged');
        lose_power($ng, $disk);
        ok($ng->launch, 'started again');
        post($ng->port, $_, do => 'size=700') for sort keys %said;
        my $runs = runs_by_key();
        is_deeply([grep { @{ $runs->{$_} // [] } > 1 } @acknowledged], [], 'none of them ran again');
        cmp_ok(scalar lines_in($ng, $CANNOT), '>=', 1, 'the log says that the disk fails');
        ok($ng->stop, 'stops');
    };

    subtest "sync=always, $workers worker(s): written completely when the disk works again" => sub {
        my $disk = RealDisk->new;
        my $ng = Nginx->start(http => conf($disk, 'sync=always'), workers => $workers);
        $disk->fail($disk->dir . '/zone');
        my @keys = map {"w$workers-$_"} 1 .. 30;
        my %said = map { $_ => said(post($ng->port, $_, do => 'size=700')) } @keys;
        is(scalar(grep {/^503/} values %said), 30, 'refused') or diag(explain \%said);
        is(scalar(grep { ledger_count(key => $_) } @keys), 0, 'and not sent on');
        $disk->work;
        wait_said(qr/^201/, sub { post($ng->port, "w$workers-well") });
        for my $key (@keys) {
            $said{$key} = wait_said(qr/^201/, sub { post($ng->port, $key, do => 'size=700') });
        }
        lose_power($ng, $disk);
        ok($ng->launch, 'started again');
        my @wrong = grep { said(post($ng->port, $_, do => 'size=700')) ne ($said{$_} =~ s/ replayed//r) . ' replayed' } @keys;
        is_deeply(\@wrong, [], 'all replay after a loss of power');
        ok($ng->stop, 'stops');
    };
}

subtest 'without sync: a write error, then memory pressure, and no key runs again' => sub {
    my $pressure = MemoryPressure->new or plan skip_all => 'there is no memory cgroup';
    my $disk = RealDisk->new;
    local $ENV{TEST_NGINX_BINARY} = $pressure->wrapped($ENV{TEST_NGINX_BINARY} || 'nginx');
    my $ng = Nginx->start(http => conf($disk, ''), workers => 2);
    my @keys = map {"p-$_"} 1 .. 60;
    post($ng->port, 'before');
    $disk->fail($disk->dir . '/zone');
    is(scalar(grep { said(post($ng->port, $_, do => 'size=700')) =~ /^201/ } @keys), 60, 'they ran');
    $disk->write_back;
    $pressure->reclaim;
    my %again;
    $again{ said(post($ng->port, $_, do => 'size=700')) =~ s/#\d+ ?//r }++ for @keys;
    note(join ', ', map {"$_: $again{$_}"} sort keys %again);
    my $runs = runs_by_key();
    is(scalar(grep { @{ $runs->{$_} } > 1 } @keys), 0, 'none ran again');
    ok(wait_until(sub { lines_in($ng, qr/\[(?:error|alert)\].*file ".*zone"/) }, 5, 'a line'), 'the log says why');
    $disk->work;
    ok($ng->stop, 'stops');
};

subtest 'without sync: the error is seen while no request comes, and is over by itself' => sub {
    my $disk = RealDisk->new;
    my $ng = Nginx->start(http => conf($disk, ''), workers => 2);
    post($ng->port, 'idle-before');
    $disk->fail($disk->dir . '/zone');
    my $last = said(post($ng->port, 'idle-last', do => 'size=7000'));
    $disk->write_back;
    ok(wait_until(sub { lines_in($ng, $CANNOT) }, 5, 'the line'), 'the log says so');
    is(said(post($ng->port, 'idle-new')), '503 store_unavailable', 'new keys are refused');
    is(ledger_count(key => 'idle-new'), 0, 'and not sent on');
    is(said(post($ng->port, 'idle-last', do => 'size=7000')), "$last replayed", 'what is known replays');
    $disk->work;
    ok(wait_until(sub { lines_in($ng, qr/\[notice\].*is written to the disk again/) }, 5, 'the other line'),
        'the log says when it is over');
    like(wait_said(qr/^201/, sub { post($ng->port, 'idle-new') }), qr/^201/, 'new keys run');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

done_testing();
