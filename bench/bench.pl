#!/usr/bin/perl

# The module beside others that answer retries, all in one run: what a request
# costs a gateway, in CPU time, against what nginx could do at best. That is
# proxy_pass for a first request, return 200 for a replay.
#
#   bench.pl            some minutes
#   bench.pl --quick    less than one, with more noise and without Node, which is
#                       too slow for that
#   bench.pl --rounds N --only NAME,NAME...
#   bench.pl --against MODULE.so   another build beside this one; its names, for
#                                  --only, end in 0
#   bench.pl --profile   one round, with perf: where the time goes, in microseconds
#
# Rounds are interleaved: one contender after the other in each, and each is
# compared with the limit in the same round. Table and chart are medians.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/lib", "$FindBin::Bin/../t/lib";

use Getopt::Long;
use POSIX ();
use Time::HiRes qw(sleep time);

use Application;
use Chart;
use Contenders;
use Profile;
use Report;

my %opt = (rounds => 0, quick => 0, only => '', against => '', profile => 0);
GetOptions(\%opt, 'rounds=i', 'quick', 'only=s', 'against=s', 'profile') or exit 2;
die "--quick is over before perf has begun: leave it out for --profile\n" if $opt{profile} && $opt{quick};

my $CONNECTIONS = 32;
my @COLUMNS = (
    { name => '300 B', id => 'small', size => 'small', body => 300, requests => 10000, keys => 10000 },
    { name => '16 KiB JSON request', id => 'json', size => 'small', body => 16384,
        requests => 3000, keys => 10000 },
    { name => '64 KiB answer', id => 'large', size => 'large', body => 300,
        requests => 2000, keys => 1000 },
);
if ($opt{quick}) {
    @$_{qw(requests keys)} = ($_->{requests} / 10, 400) for @COLUMNS;
}
# Perl would end without ending what it has started.
$SIG{PIPE} = sub { exit 1 };
my $application = Application->new;
my $ROUNDS = $opt{rounds} || ($opt{quick} ? 3 : 9);
my $runs = 0;
my @profiles;

main();

sub main {
    my $cpu = separate();
    my %only = map { $_ => 1 } split /,/, $opt{only};
    my $all = Contenders->start($application, cpu => $cpu, node => !$opt{quick},
        against => $opt{against}, %only ? (only => \%only) : ());
    my @list = $all->list;
    my %result = (columns => \@COLUMNS, list => \@list, rounds => $ROUNDS,
        quick => $opt{quick}, began => load_average());
    prepare($_) for @list;
    if ($opt{profile}) {
        one_round(@list);
        print Profile::table(@profiles);
        $all->stop;
        return;
    }
    $result{twice} = { map { $_->{id} => ran_twice($_) } @list };
    for my $round (1 .. $ROUNDS) {
        print STDERR "round $round of $ROUNDS\n";
        push @{ $result{rows} }, one_round(@list);
    }
    $result{latency} = latency(@list);
    $result{ended} = load_average();
    $all->stop;
    write_out(\%result);
}

# One CPU for the gateways, the others for all else.
sub separate {
    my $last = POSIX::sysconf(84) - 1;
    return undef if $last < 1;
    system("taskset -p -c 0-@{[ $last - 1 ]} $$ > /dev/null") == 0 or die "taskset failed\n";
    return $last;
}

sub load_average {
    open my $file, '<', '/proc/loadavg' or return '?';
    return (split ' ', readline $file)[0];
}

# ---- one measurement ------------------------------------------------------

sub one_round (@list) {
    my %row;
    for my $column (@COLUMNS) {
        for my $kind (qw(new replay)) {
            for my $one (@list) {
                next if !takes_part($one, $kind);
                $row{"$column->{id} $kind"}{ $one->{id} } = measure($one, $column, $kind);
            }
        }
    }
    return \%row;
}

sub takes_part ($one, $kind) {
    return 0 if $one->{only} && $one->{only} ne $kind;
    return !$one->{limit} || $one->{limit} eq $kind;
}

# Microseconds of CPU for a request; negative: it did not do what it should.
sub measure ($one, $column, $kind) {
    if ($one->{fresh}) {
        $one->{gateway}->stop;
        $one->{gateway}->launch;
    }
    my $requests = $one->{slow} ? 100 : $column->{requests};
    my %load = load_of($one, $column, $kind);
    # Caches of the processor have been used by others meanwhile.
    $one->{gateway}->load(%load, next_prefix($kind), requests => 100);
    my $profile = $opt{profile} ? Profile->start($one->{gateway}{pid}) : undef;
    my $cpu = $one->{gateway}->cpu;
    my $said = $one->{gateway}->load(%load, next_prefix($kind), requests => $requests);
    $cpu = $one->{gateway}->cpu - $cpu;
    push @profiles, [$one->{name}, $column->{name}, $kind, $cpu / 1000 / $requests, $profile->stop] if $profile;
    my $ran = $said->{executions};
    my $expected = $kind eq 'new' ? $requests : 0;
    my $right = $ran == $expected && !$said->{short} && ($said->{status200} // 0) == $requests;
    $right = 1 if $one->{limit} && !$said->{short};
    if (!$right) {
        my $words = join ' ', map {"$_ $said->{$_}"} sort keys %$said;
        print STDERR "WRONG: $one->{id}, $column->{name}, $kind: $ran executions, $words\n";
    }
    return ($right ? 1 : -1) * $cpu / 1000 / $requests;
}

sub load_of ($one, $column, $kind) {
    return ($application->load, path => "/$kind/$column->{size}", body => $column->{body},
        expect => $Application::SIZE{ $column->{size} }, connections => $CONNECTIONS,
        $one->{http2} ? (http2 => 1) : (),
        $kind eq 'replay' ? (keys => $one->{slow} ? 100 : $column->{keys}, prefix => "r$column->{id}") : (),
        %{ $one->{load} // {} });
}

sub next_prefix ($kind) {
    return $kind eq 'new' ? (prefix => 'n' . ++$runs) : ();
}

# ---- before and after -----------------------------------------------------

# What is to be replayed, and pages that were used before.
sub prepare ($one) {
    if ($one->{warm}) {
        my %large = load_of($one, $COLUMNS[2], 'warm');
        $one->{gateway}->load(%large, next_prefix('new'), requests => 8500);
    }
    return if !takes_part($one, 'replay') || $one->{limit};
    for my $column (@COLUMNS) {
        $one->{gateway}->load(load_of($one, $column, 'replay'),
            requests => $one->{slow} ? 100 : $column->{keys});
    }
}

# Keys that are each sent 16 times at once: executions beyond one for each.
sub ran_twice ($one) {
    return undef if $one->{limit} || $one->{only};
    my $more = 0;
    for (1 .. 20) {
        my $said = $one->{gateway}->load(load_of($one, $COLUMNS[0], 'new'), next_prefix('new'),
            keys => 1, requests => 16, connections => 16);
        $more += $said->{executions} - 1 if $said->{executions} > 1;
    }
    return $more;
}

# At a rate that all can stand; in rounds as well.
sub latency (@list) {
    my ($rate, $seconds, $rounds) = $opt{quick} ? (1000, 0.5, 1) : (1000, 2, 5);
    my %of;
    for (1 .. $rounds) {
        for my $one (grep { !$_->{slow} } @list) {
            for my $kind (grep { takes_part($one, $_) } qw(new replay)) {
                my $said = $one->{gateway}->load(load_of($one, $COLUMNS[0], $kind), next_prefix($kind),
                    rate => $rate, requests => $rate * $seconds);
                push @{ $of{ $one->{id} }{$kind}{$_} }, $said->{$_} for qw(p50 p99 p999);
            }
        }
    }
    for my $one (values %of) {
        for my $times (values %$one) {
            $times = [map { Report::median(@{ $times->{$_} }) } qw(p50 p99 p999)];
        }
    }
    return \%of;
}

sub write_out ($result) {
    system('mkdir', '-p', $ENV{BENCH_OUT});
    my $text = Report::text($result);
    write_file("$ENV{BENCH_OUT}/bench.md", $text);
    write_file("$ENV{BENCH_OUT}/bench.svg", Chart::svg(Report::ratios($result)));
    print $text, "\nThis table and a chart: $ENV{BENCH_OUT}/bench.md, bench.svg\n";
}

sub write_file ($path, $text) {
    open my $file, '>', $path or die "$path: $!\n";
    print {$file} $text;
}
