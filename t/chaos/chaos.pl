#!/usr/bin/env perl

# Many clients, several nginx, and everything that can go wrong at once; then
# the question whether the promises were kept.
#
#   chaos.pl [--seconds N] [--seed S] [--store memory|file|redis|sentinel|cluster] [--keep]
#            [--durability replicas:2] [--hosts-live [--cut-off]] [--loss seconds|all|flush]
#            [--clients N] [--instances N] [--rate NEW_KEYS_A_SECOND] [--until-red [RULES]]
#            [--also NAME,NAME...] [--small-limits] [--load fast] [--rounds N]
#
# --until-red: the run ends soon after the first violation of rules 1 to 4, or of those
# that are named. That is what is wanted, so nothing is kept.
# --also: what this module is known to get wrong, see %ALSO in Workload.pm.
# --load fast: clients and applications in C++, for 1,000 new keys a second.
# --rounds: so many runs one after the other, each with a seed of its own and a
# world of its own, until one fails.
#
# The faults follow from the seed; what they meet does not, as processes are
# free to be fast or slow. Ends with 0 (PASS) if all rules of Checker.pm held, with
# 1 (FAIL) if one did not, and with 2 (SAYS LITTLE) if they held, but a rule of
# Forgiven.pm was used for too many keys.
#
# --small-limits is for a module that was built --without limits.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Getopt::Long qw(GetOptions);

use lib dirname(abs_path(__FILE__)), dirname(abs_path(__FILE__)) . '/../lib';
use Batches;
use ClusterNemesis;
use Idle;
use Lines;
use Nemesis;
use Network;
use Progress;
use Rounds;
use Site;
use Workload;
use World;

my $PROBERS  = 8;
my $LONG_RUN = $READ_TIMEOUT + $LEASE;    # whatever runs is over by then
my $SHOWN    = 3;                         # violations of a rule told in full

my ($PASS, $FAIL, $SAYS_LITTLE) = (0, 1, 2);

my %opt = (seconds => 60, store => 'memory', clients => 60, instances => 3, rate => undef,
    durability => undef, loss => 'seconds', load => 'perl', rounds => 1);
my @arguments = @ARGV;
GetOptions(\%opt, 'seconds=i', 'seed=i', 'store=s', 'keep', 'clients=i', 'instances=i', 'rate=i',
    'durability=s', 'hosts-live', 'cut-off', 'loss=s', 'until-red:s', 'also=s', 'small-limits',
    'load=s', 'rounds=i')
    && !@ARGV && $opt{store} =~ /^(?:memory|file|redis|sentinel|cluster)$/
    && $opt{loss} =~ /^(?:seconds|all|flush)$/ && $opt{load} =~ /^(?:perl|fast)$/
    or die "usage: chaos.pl [--seconds N] [--seed S] [--store memory|file|redis|sentinel|cluster] [--keep]\n";
$opt{seed} //= int rand 1_000_000_000;
exit Rounds::play(abs_path(__FILE__), @opt{qw(rounds seed)}, @arguments) if $opt{rounds} > 1;

my $is_fast = $opt{load} eq 'fast';
$opt{rate} //= $is_fast ? 1000 : 25;
# The small zone is to be full only when the nemesis fills it.
$ROUTES{small}{share} = 1 if $is_fast;

my $until_red = defined $opt{'until-red'};
my $rules = $opt{'until-red'} || ($until_red ? '1234' : '12348');

my @also = split /,/, $opt{also} // '';
my @strange = grep { !$Workload::ALSO{$_} } @also;
die "--also takes: ", join(', ', map {"$_ ($Workload::ALSO{$_})"} sort keys %Workload::ALSO), "\n" if @strange;
Workload::add_routes(@also);

$opt{durability} //= $opt{store} eq 'cluster' ? 'replicas:1' : 'replicas:2';
Network::enter(abs_path(__FILE__), @arguments) if $opt{store} eq 'sentinel';

# What is promised of a failover is promised where unknown outcomes are held.
if ($opt{store} =~ /^(?:sentinel|cluster)$/) {
    for my $route (grep { $_->{unknown} eq 'release' } values %ROUTES) {
        $route->{unknown} = 'hold';
        $route->{conf} =~ s/idempotency_unknown_outcome release;//;
    }
}

# Where all is lost, a host is to know of all that it has ever run.
my $REASSERT = $opt{loss} eq 'all' ? $opt{seconds} + 120 : 30;

$| = 1;
exit(eval { main() } // do { print STDERR "chaos: $@"; 255 });

sub main {
    my $world = World->new(store => $opt{store}, seed => $opt{seed},
        durability => $opt{durability}, instances => $opt{instances},
        params => "reassert=${REASSERT}s connect_timeout=400ms",
        faketime => can_fake_time() ? 1 : undef,
        programs => $is_fast ? $ENV{CHAOS_PROGRAMS} // die "CHAOS_PROGRAMS is not set\n" : undef);
    print "chaos: --seed $opt{seed} --store $opt{store} --seconds $opt{seconds}, in ",
        $world->folder, "\n";
    my $checker = play($world);
    my $code = report($world, $checker);
    $world->stop;
    if ($opt{keep} || $code == $FAIL && !$until_red) { print "kept: ", $world->folder, "\n" }
    else                              { $world->remove }
    return $code;
}

# Sanitizers want to be the first library, and are not with this one.
sub can_fake_time { return ($ENV{TEST_NGINX_BINARY} // '') !~ m{/asan/} }

# ---- the play -------------------------------------------------------------

sub play ($world) {
    $world->start;
    my $before = Idle::before($world);
    my $nemesis = ($opt{store} eq 'cluster' ? 'ClusterNemesis' : 'Nemesis')->new(world => $world,
        seconds => $opt{seconds}, grace => $World::GRACE + 0.2, hosts_live => $opt{'hosts-live'},
        loss => $opt{loss}, cut_off => $opt{'cut-off'},
        small_limits => $opt{'small-limits'});
    my $began = now();
    my @clients = $world->start_clients($opt{clients}, began => $began,
        until => $began + $opt{seconds}, rate => $opt{rate});
    push @clients, $world->start_operator(until => $began + $opt{seconds});
    $nemesis->{progress} = Progress->new(world => $world, nemesis => $nemesis,
        seconds => $opt{seconds}, until_red => $until_red, rules => $rules,
        check => sub { make_checker($world) });
    $nemesis->strike($began);
    my $is_red = $nemesis->{progress}->is_over;
    $nemesis->end;
    if ($is_red) { $world->end_process($_) for @clients }
    my $in_time = $world->wait_for(20, @clients);
    $nemesis->wait_for_fillers;
    ask_last($world);
    my @idle = $is_red ? () : (Idle::after($world, $nemesis, $before),
        { who => 'clients', what => 'end in time', is => $in_time ? 1 : 0, want => 1 });
    my $checker = make_checker($world, idle => \@idle, handed_on => handed_on($world),
        logs => [map { split /\n/, Nginx::slurp($_) } $world->site->logs]);
    @$checker{qw(faults began failovers)} = ({ $nemesis->faults }, @$nemesis{qw(began failovers)});
    return $checker;
}

# Each key once more, until it is clear what became of it.
sub ask_last ($world) {
    my @keys = keys_used($world);
    my @probers = $is_fast ? fast_prober($world, @keys) : map {
        my $number = $_;
        $world->spawn(sub {
            my $client = $world->client("p$number");
            for my $i (grep { $_ % $PROBERS == $number } 0 .. $#keys) {
                $client->probe($keys[$i], $LONG_RUN + 3 * $LEASE);
            }
        });
    } 0 .. $PROBERS - 1;
    $world->wait_for(60 + @keys / 20, @probers);
}

sub fast_prober ($world, @keys) {
    my $path = $world->path('keys');
    open my $file, '>', $path or die "$path: $!\n";
    print {$file} map {"$_->{name}\n"} @keys;
    close $file;
    return $world->start_fast_clients('p0', probe => $path, seconds => $LONG_RUN + 3 * $LEASE);
}

# Those of the small zone that have lapsed would be new ones.
sub keys_used ($world) {
    my (%ended, %route);
    each_line(sub ($text) {
        my $line = Lines::parse($text);
        my $key = $line->{key};
        return if $line->{phase} ne 'load' || ($ended{$key} // 0) > $line->{ended};
        ($ended{$key}, $route{$key}) = @$line{qw(ended route)};
    }, $world->history_files);
    my @names = sort grep {
        my $ttl = $ROUTES{ $route{$_} }{ttl};
        !defined $ttl || $ended{$_} > now() - $ttl;
    } keys %ended;
    return map { { name => $_, route => $route{$_} } } @names;
}

# Of what is written down by now.
sub make_checker ($world, %more) {
    return Batches->new(
        folder => $world->folder, files => $world->lines_of_keys,
        routes => \%ROUTES, store => $world->{shared} // $opt{store}, lease => $LEASE,
        read_timeout => $READ_TIMEOUT, reassert => $REASSERT, grace => $World::GRACE,
        $opt{'small-limits'} ? (budget => $Nemesis::BUDGET, longest_late => $Nemesis::LONGEST_LATE) : (),
        fence => $opt{durability} eq 'none' ? $World::FENCE : undef,
        events => [read_lines($world->path('events'))], %more);
}

# The keys of which nginx says that it has sent something to an application.
sub handed_on ($world) {
    my %keys;
    each_line(sub ($line) {
        my @word = split / /, $line;
        $keys{ $word[9] } = 1 if $word[5] eq 'NEW' && $word[12] =~ /[1-9]/;
    }, $world->site->access_logs);
    return \%keys;
}

# ---- the verdict ----------------------------------------------------------

sub report ($world, $checker) {
    my @violations = $checker->violations;
    tell_counts('faults', $checker->{faults});
    tell_counts('seen', $checker->counts);
    printf "records were lost of %d keys that were asked for again\n", $checker->lost_and_asked;
    tell_failovers($checker->{failovers}) if $checker->{failovers};
    my $complaints = $world->complaints;
    print "the harness itself complains:\n$complaints" if $complaints ne '';
    tell_violations($checker, @violations);
    tell_forgiven($checker->forgiven);
    return tell_verdict($checker, $complaints ne '', @violations);
}

sub tell_verdict ($checker, $complains, @violations) {
    if (@violations || $complains) {
        print 'FAIL: ' . @violations . ' violations' . first_of($checker, @violations), ", --seed $opt{seed}\n";
        return $FAIL;
    }
    if (my @rules = $checker->says_little) {
        printf "SAYS LITTLE: no violation, but more than %g %% of the keys were forgiven: %s\n",
            100 * $Forgiven::SMALL_SHARE, join ', ', map { $_->{name} } @rules;
        return $SAYS_LITTLE;
    }
    print "PASS\n";
    return $PASS;
}

sub tell_forgiven (@rules) {
    printf "forgiven: %s: %d keys (%.1f %%); %s\n", $_->{name}, $_->{keys}, 100 * $_->{share}, $_->{says}
        for @rules;
}

sub first_of ($checker, @violations) {
    my ($first) = sort { $a->{at} <=> $b->{at} } Progress::timed($rules, @violations) or return '';
    return sprintf ', the first after %.1f s by rule %d', $first->{at} - $checker->{began}, $first->{rule};
}

sub tell_counts ($title, $count) {
    print "$title: ", join(', ', map {"$count->{$_} $_"} sort keys %$count), "\n";
}

sub tell_failovers ($failovers) {
    printf "failovers: %d; claims were granted again in time by an nginx: %d times, after %.2f s"
        . " at most; late: %d times\n", $failovers->count, $failovers->granted;
}

sub tell_violations ($checker, @violations) {
    my %shown;
    for my $violation (@violations) {
        print "rule $violation->{rule}: $violation->{key}: $violation->{text}\n";
        next if $shown{ $violation->{rule} }++ >= $SHOWN;
        print "    $_\n" for $checker->history_of($violation->{key});
    }
}
