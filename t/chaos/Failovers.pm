package Failovers;

# What can go wrong with a master, its replicas and their Sentinels. One thing
# at a time, as what is promised is that one server may be lost; but the next
# one comes as soon as all are there again and every nginx grants claims.
#
# Each is written down: "switched" when there is a master again whose replicas
# are in sync, then for each nginx "granted" with how long it took, or "not
# granted".

use v5.36;

use File::Path qw(remove_tree);
use List::Util qw(max shuffle);

use Lines;
use Sentinels;
use Workload;

# How long after the switch claims have to be granted, besides the grace.
our $GRANTED_WITHIN = 2;

my $LOOK = 0.1;
my $PATIENCE = 90;

# Sentinels that were slow themselves do not trust what they see for half a
# minute. A master that is back by then stays it.
my $MAY_STAY = 10;

# After that no replica is good enough for them: none has heard of its master
# for ten times the time after which it is down. That time is made longer then.
my $NONE_IS_GOOD = 20;
my $LONG_DOWN = 15_000;

# Those that lose what only the master has come more than once.
my @FAULTS = qw(master_kill master_kill master_stop failover_now failover_now copies_stall copies_stall
    one_copy_stalls one_copy_stalls host_cut_off host_cut_off replica_empty sentinels_stop sentinels_kill
    script_flush reload_at_switch start_at_switch);

my @OF_DYING_HOSTS = qw(host_cut_off reload_at_switch start_at_switch);

# world, nemesis, grace (seconds), hosts_live => no host dies or is cut off,
# cut_off => but one is, mostly
sub new ($class, %opt) {
    my $world = $opt{world};
    my $self = bless { %opt, site => $world->{sentinels}, done => {}, granted => [], deck => [] }, $class;
    my %spared = $opt{hosts_live} ? map { $_ => 1 } @OF_DYING_HOSTS : ();
    delete $spared{host_cut_off} if $opt{cut_off};
    my @faults = grep { !$spared{$_} } @FAULTS;
    push @faults, ('host_cut_off') x 8 if $opt{cut_off};
    push @faults, 'all_kill' if $world->{durability} =~ /^disk/;
    # All kinds come before one comes again.
    srand(Workload::dice("$world->{seed} failovers"));
    $self->{plan} = [map { { kind => $_, dice => [map { rand } 1 .. 3] } } map { shuffle(@faults) } 1 .. 200];
    srand();
    return $self;
}

sub faults ($self) { return %{ $self->{done} } }

# What the Sentinels count, also those that nobody has asked for.
sub count ($self) {
    return max(0, map {
        my $told = eval { $_->command('SENTINEL', 'MASTER', $Sentinels::NAME) } // [];
        my %info = @$told;
        $info{'config-epoch'} // 0;
    } $self->{site}->sentinels);
}

# How long each nginx took to grant a claim after a switch: how often it was
# seen in time, the longest, and how often it was late. The checker knows whether
# there was another reason.
sub granted ($self) {
    return (scalar @{ $self->{granted} }, max(0, @{ $self->{granted} }), $self->{late} // 0);
}

# Begins the next one, if the last is over.
sub strike ($self) {
    return if $self->{busy} || !@{ $self->{plan} } || !eval { $self->{site}->is_complete };
    my $master = eval { $self->{site}->master } // return;
    my $fault = shift @{ $self->{plan} };
    my ($method, @dice) = ($fault->{kind}, @{ $fault->{dice} });
    my $instances = $self->{world}->site->{instances};
    $self->{busy} = 1;
    $self->away(8);
    $self->$method($master, $instances->[$dice[0] * @$instances], @dice[1, 2]) or return $self->{busy} = 0;
    $self->{done}{$method}++;
}

sub is_busy ($self) { return $self->{busy} }

# Outcomes do not wait for replicas: those of a host that dies as well are lost.
sub away ($self, $seconds) {
    $self->{nemesis}->store_away($seconds);
    $self->{nemesis}->write_down('outcomes lost', until => now() + $seconds);
}

sub after ($self, $seconds, $action) { $self->{nemesis}->after($seconds, $action) }

sub copies ($self, $master) { return grep { $_->pid && $_ != $master } $self->{site}->servers }

# ---- the end of a fault ---------------------------------------------------

# Whoever was lost comes back when another is the master, as its replica.
sub wait_for_other ($self, $old, $tries = $PATIENCE / $LOOK) {
    my $master = eval { $self->{site}->master };
    my $waited = $PATIENCE - $tries * $LOOK;
    if (!$master || $master == $old && !($old->pid && $waited > $MAY_STAY)) {
        die "the Sentinels elect nobody\n" if $tries <= 0;
        $self->away(3) if $tries % 10 == 0;
        $self->set_down_after($LONG_DOWN) if $waited > $NONE_IS_GOOD && !$self->{lenient};
        return $self->after($LOOK, sub { $self->wait_for_other($old, $tries - 1) });
    }
    if (my $at_switch = delete $self->{at_switch}) { $at_switch->() }
    $self->set_down_after($self->{site}{down_after}) if $self->{lenient};
    Sentinels::set_master($master);
    Sentinels::set_master($_, $master) for grep { $_ != $master } $self->{site}->servers;
    $_->launch(early => 1) for grep { !$_->pid } $self->{site}->servers;
    # For a while it believes that it still is the master.
    $self->after(1, sub { $self->convert; $self->wait_for_copies });
}

sub set_down_after ($self, $milliseconds) {
    $self->{lenient} = $milliseconds != $self->{site}{down_after};
    for my $sentinel ($self->{site}->sentinels) {
        eval { $sentinel->command('SENTINEL', 'SET', $Sentinels::NAME, 'down-after-milliseconds', $milliseconds) };
    }
}

# The Sentinels would take ten seconds to do so.
sub convert ($self) {
    my $master = eval { $self->{site}->master } // return;
    for my $server ($self->copies($master)) {
        my $role = eval { Sentinels::ask($server, 'ROLE') } // next;
        next if $role->[0] eq 'slave' && $role->[2] == $master->port;
        eval {
            Sentinels::ask($server, 'REPLICAOF', $master->host, $master->port);
            Sentinels::ask($server, 'CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        };
    }
}

# Until then nothing can be granted, where all replicas have to have it.
sub wait_for_copies ($self, $tries = $PATIENCE / $LOOK) {
    if (!$self->is_synced) {
        die "the replicas do not follow\n" if !$tries;
        $self->away(3) if $tries % 10 == 0;
        return $self->after($LOOK, sub { $self->wait_for_copies($tries - 1) });
    }
    $self->{nemesis}->write_down('switched');
    $self->away($self->limit + 1);
    $self->{waiting} = { map { $_->{number} => $_ } $self->{world}->site->instances };
    $self->{switched} = now();
    $self->{master} = $self->is_synced;
    $self->wait_for_claims;
}

sub is_synced ($self) {
    my $master = eval { $self->{site}->master } // return 0;
    return (eval { Sentinels::synced($master) } // 0) == $self->{site}{replicas} ? $master->port : 0;
}

sub limit ($self) { return $GRANTED_WITHIN + $self->{grace} }

sub wait_for_claims ($self) {
    my $waiting = $self->{waiting};
    my $nemesis = $self->{nemesis};
    # Nobody asks any more.
    return $self->{busy} = 0 if now() > $nemesis->{began} + $nemesis->{seconds} - 0.5;
    for my $run ($self->new_runs) {
        my ($number) = $run->{life} =~ /^(\d+)/ or next;
        next if $run->{t} < $self->{switched} || !delete $waiting->{$number};
        my $seconds = $run->{t} - $self->{switched};
        $self->say_granted($number, $seconds);
    }
    return $self->after($LOOK, sub { $self->wait_for_claims })
        if %$waiting && now() < $self->{switched} + $self->limit + 0.5;
    # They may have elected another, as a busy machine is slow.
    return $self->wait_for_copies if %$waiting && $self->is_synced != $self->{master};
    $self->say_granted($_, 9e9) for sort keys %$waiting;
    $self->{busy} = 0;
}

sub say_granted ($self, $number, $seconds) {
    my $in_time = $seconds <= $self->limit;
    push @{ $self->{granted} }, $seconds if $in_time;
    $self->{late}++ if !$in_time;
    $self->{nemesis}->write_down($in_time ? 'granted' : 'not granted', instance => $number,
        $in_time ? (after => sprintf '%.2f', $seconds) : (since => $self->{switched}, limit => $self->limit));
}

# Those that the ledger has got since the last look, of keys that are shared.
sub new_runs ($self) {
    my $path = $self->{world}->path('ledger');
    open my $file, '<', $path or return;
    seek $file, $self->{read} // 0, 0;
    my @runs;
    while (my $line = readline $file) {
        last if !chomp $line;
        $self->{read} = tell $file;
        my $run = Lines::parse($line);
        push @runs, $run if $run->{what} eq 'run' && $run->{route} ne '/small' && defined $run->{life};
    }
    return @runs;
}

# ---- servers --------------------------------------------------------------

sub master_kill ($self, $old, @) {
    $old->kill;
    $self->after(1, sub { $self->wait_for_other($old) });
    return 1;
}

# Another is elected meanwhile, and the old one wakes up as a master.
sub master_stop ($self, $old, $instance, $dice, @) {
    $old->freeze;
    $self->after(2 + 2 * $dice, sub { $old->thaw; $self->wait_for_other($old) });
    return 1;
}

sub failover_now ($self, $old, $instance, $dice, @) {
    my @sentinels = $self->{site}->sentinels;
    eval { $sentinels[$dice * @sentinels]->command('SENTINEL', 'FAILOVER', $Sentinels::NAME); 1 } or return 0;
    $self->after(0.5, sub { $self->wait_for_other($old) });
    return 1;
}

# Workers start in the moment in which a majority names another master. Nothing
# is copied before, so that it lacks what the old one has.
sub reload_at_switch ($self, $old, $instance, @) {
    return $self->kill_then($old, sub { $self->{nemesis}->reload($instance) });
}

sub start_at_switch ($self, $old, $instance, $dice, @) {
    return $self->kill_then($old, sub { $self->{nemesis}->worker_kill($instance, $dice) });
}

sub kill_then ($self, $old, $action) {
    my @copies = $self->copies($old);
    $_->freeze for @copies;
    eval { Sentinels::ask($old, 'CLIENT', 'KILL', 'TYPE', 'replica') };
    $self->{at_switch} = $action;
    $self->after(0.5, sub {
        $old->kill;
        $_->thaw for @copies;
        $self->after(0.3, sub { $self->wait_for_other($old) });
    });
    return 1;
}

# Nothing is copied any more, then the master dies, and a host with it: what it
# has run meanwhile nobody knows, unless nothing was granted.
sub copies_stall ($self, $old, $instance, $dice, @) {
    my @copies = $self->copies($old);
    $_->freeze for @copies;
    eval { Sentinels::ask($old, 'CLIENT', 'KILL', 'TYPE', 'replica') };
    $self->after(0.4 + 0.3 * $dice, sub {
        $self->lose_both($old, $instance, $dice);
        $_->thaw for @copies;
    });
    return 1;
}

# The one that lags behind is the one that Sentinels prefer.
sub one_copy_stalls ($self, $old, $instance, $dice, @) {
    my ($slow, $other) = $self->copies($old);
    return 0 if !$other;
    eval {
        $slow->command('CONFIG', 'SET', 'replica-priority', 1);
        $other->command('CONFIG', 'SET', 'replica-priority', 100);
        $slow->command('REPLICAOF', $slow->host, 1);
        1;
    } or return 0;
    $self->after(0.4 + 0.4 * $dice, sub { $self->lose_both($old, $instance, $dice) });
    return 1;
}

# The master, and a host that may have run what only the master knew of.
sub lose_both ($self, $old, $instance, $dice) {
    $old->kill;
    $self->{nemesis}->nginx_kill($instance, $dice) if !$self->{hosts_live};
    $self->after(1, sub { $self->wait_for_other($old) });
}

sub replica_empty ($self, $master, $instance, $dice, @) {
    my ($replica) = $self->copies($master);
    $replica->kill;
    remove_tree($replica->path('appendonlydir'));
    Sentinels::set_master($replica, $master);
    $self->after(0.3 + $dice, sub { $replica->launch(early => 1); $self->wait_for_copies });
    return 1;
}

# What is on their disks is all that there is.
sub all_kill ($self, $master, $instance, $dice, @) {
    my @servers = $self->{site}->servers;
    Sentinels::set_master($_, $_ == $master ? undef : $master) for @servers;
    $_->kill for @servers;
    $self->{nemesis}->nginx_kill($instance, $dice) if !$self->{hosts_live};
    $self->after(0.1 + 0.3 * $dice, sub {
        $_->launch(early => 1) for @servers;
        $self->wait_for_copies;
    });
    return 1;
}

sub script_flush ($self, $master, @) {
    eval { Sentinels::ask($master, 'SCRIPT', 'FLUSH'); 1 } or return 0;
    $self->{busy} = 0;
    return 1;
}

# ---- network --------------------------------------------------------------

# The master and one nginx, mostly with one Sentinel and perhaps with a replica,
# are cut off from all others. Its clients still reach that nginx.
sub host_cut_off ($self, $old, $instance, $dice, $other) {
    my $network = $self->{world}{network} // return 0;
    my @servers = $self->{site}->servers;
    my @group = grep { $_ == $old } @servers;
    push @group, ($self->copies($old))[0] if $other < 0.3;
    my %number = map { $servers[$_] => $_ + 1 } 0 .. $#servers;
    # Where that is what matters, others are to claim before it is over.
    my $seconds = ($self->{cut_off} ? 4 : 2) + 3 * $dice;
    $network->cut_off("host $instance->{number}", (map {"server $number{$_}"} @group),
        $other < 0.8 ? 'sentinel ' . (1 + int(3 * $dice)) : ());
    my %cut = (t => now(), instance => $instance->{number});
    $self->{nemesis}->write_down('cut off', %cut, until => $cut{t} + $seconds);
    $self->after($seconds, sub {
        $network->heal;
        # On a busy machine that is later than was planned.
        $self->{nemesis}->write_down('cut off', %cut, until => now());
        $self->wait_for_other($old);
    });
    return 1;
}

# ---- Sentinels ------------------------------------------------------------

# Nobody is named: nothing is granted, though all servers are there. One that
# has stood still for two seconds would not trust itself for half a minute.
sub sentinels_stop ($self, $master, $instance, $dice, @) {
    my @sentinels = $self->{site}->sentinels;
    $_->freeze for @sentinels;
    $self->after(0.7 + 0.5 * $dice, sub { $_->thaw for @sentinels; $self->wait_for_copies });
    return 1;
}

sub sentinels_kill ($self, $master, $instance, $dice, @) {
    my @sentinels = $self->{site}->sentinels;
    $_->kill for @sentinels;
    $self->after(1 + 2 * $dice, sub {
        $_->launch(early => 1, rewritten => 1) for @sentinels;
        $self->wait_for_copies;
    });
    return 1;
}

1;
