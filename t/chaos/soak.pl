#!/usr/bin/env perl

# A long ordinary day: steady load of all kinds, nothing fails, and memory must
# not grow once all has warmed up.
#
#   soak.pl [minutes] [--store memory|redis] [--seed S]
#
# Sampled are the workers' own memory, what they have touched of the shared
# zones, and with Redis its memory. Records lapse after a few seconds, so that
# a level is reached soon.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Getopt::Long qw(GetOptions);
use List::Util qw(sum0);
use Time::HiRes qw(sleep);

use lib dirname(abs_path(__FILE__)), dirname(abs_path(__FILE__)) . '/../lib';
use Http1 ();
use Idle;
use Lines;
use Site;
use World;

my $CLIENTS   = 16;
my $RATE      = 60;      # new keys a second
my $EVERY     = 2;       # seconds between two samples
my $WARM_UP   = 0.3;     # of the time
my $TOLERANCE = 0.05;
my $AT_LEAST  = 768;     # kB that are no growth
my $SHOWN     = 10;      # lines of samples

my %opt = (store => 'memory');
GetOptions(\%opt, 'store=s', 'seed=i') && @ARGV <= 1 && $opt{store} =~ /^(?:memory|redis)$/
    && ($ARGV[0] // 5) =~ /^(\d+(?:\.\d+)?)$/
    or die "usage: soak.pl [minutes] [--store memory|redis] [--seed S]\n";
my $seconds = 60 * $1;
$opt{seed} //= int rand 1_000_000_000;

$| = 1;
exit main();

sub main {
    my $world = World->new(store => $opt{store}, seed => $opt{seed}, instances => 1,
        more_conf => 'idempotency_ttl 5s;', forget => 1);
    printf "soak: %.1f minutes, --store %s --seed %d\n", $seconds / 60, $opt{store}, $opt{seed};
    $world->start;
    my @samples = take_samples($world);
    my ($instance) = $world->site->instances;
    my $requests = requests_of($instance);
    my $left = $instance->{nginx}->stop;
    show(@samples);
    my @wrong = (growth(@samples), trouble($world), $left ? () : 'nginx does not leave');
    $world->stop;
    $world->remove;
    print map {"$_\n"} @wrong, "$requests requests", @wrong ? 'FAIL' : 'PASS';
    return @wrong ? 1 : 0;
}

# ---- samples --------------------------------------------------------------

sub take_samples ($world) {
    my $began = now();
    my @clients = $world->start_clients($CLIENTS, began => $began, until => $began + $seconds,
        rate => $RATE, think => 0.01, calm => 1);
    my @samples;
    while (now() < $began + $seconds - $EVERY) {
        sleep $EVERY;
        push @samples, sample($world, now() - $began);
    }
    $world->wait_for(20, @clients);
    return @samples;
}

sub sample ($world, $at) {
    my ($instance) = $world->site->instances;
    my @status = map { Nginx::slurp("/proc/$_/status") } Site::workers_of($instance);
    my %sample = (
        seconds => $at,
        'workers' => sum0(map { /^RssAnon:\s+(\d+)/m } @status),
        'zones'   => sum0(map { /^RssShmem:\s+(\d+)/m } @status),
    );
    if ($world->{redis_port}) {
        my ($bytes) = Idle::ask_redis($world, 'INFO memory') =~ /^used_memory:(\d+)/m;
        $sample{redis} = int(($bytes // 0) / 1024);
    }
    return \%sample;
}

sub requests_of ($instance) {
    my $text = Http1::request($instance->{port}{stub}, 'GET', '/')->{body};
    return $text =~ /^ \d+ \d+ (\d+)/m ? $1 : 0;
}

# ---- verdict --------------------------------------------------------------

# What is more in the last third after the warm-up than in the first.
sub growth (@samples) {
    my @warm = grep { $_->{seconds} > $WARM_UP * $seconds } @samples;
    my $third = int(@warm / 3) || return 'too few samples';
    return map {
        my $name = $_;
        my ($first, $last) = map { median(map { $_->{$name} } @$_) }
            [@warm[0 .. $third - 1]], [@warm[-$third .. -1]];
        $last > $first + $AT_LEAST && $last > $first * (1 + $TOLERANCE)
            ? "$name: grew from $first to $last kB" : ();
    } grep { $_ ne 'seconds' } sort keys %{ $warm[0] };
}

sub median (@values) { return (sort { $a <=> $b } @values)[@values / 2] }

sub trouble ($world) {
    my @lines = map { split /\n/, Nginx::slurp($_) } $world->site->logs;
    return ((grep { /\[(?:alert|emerg)\]|exited on signal|Sanitizer|runtime error:/ } @lines),
        $world->complaints || ());
}

sub show (@samples) {
    my @names = sort keys %{ $samples[0] // {} };
    my $step = int(@samples / $SHOWN) || 1;
    for my $i (grep { $_ % $step == 0 || $_ == $#samples } 0 .. $#samples) {
        print join(', ', map { sprintf '%s %d', $_ eq 'seconds' ? 'second' : "$_ kB",
            $samples[$i]{$_} } 'seconds', grep { $_ ne 'seconds' } @names), "\n";
    }
}
