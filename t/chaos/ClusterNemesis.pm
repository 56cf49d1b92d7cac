package ClusterNemesis;

# What can go wrong with the nodes of a cluster, besides everything else.

use v5.36;

use parent 'Nemesis';

use Cluster;
use Lines;
use Waiting qw(wait_quietly);

# Each of them waits until all servers are there again.
our @KINDS = qw(node_kill node_stop node_failover copy_stall node_kill slots_move slots_move
    slots_move flush_scripts copy_stall);

sub end ($self) {
    $self->SUPER::end;
    my $cluster = $self->{world}{cluster};
    wait_quietly(sub { eval { $cluster->is_complete } }, 40);
    $self->store_away(4);
    Time::HiRes::sleep(3);
}

# One at a time: what is promised is that one server may be lost.
sub begin ($self, $seconds, $dice) {
    my $cluster = $self->{world}{cluster};
    return if $self->{switching} || !eval { $cluster->is_complete };
    my $slot = int($dice * $Cluster::SLOTS);
    my $old = eval { $cluster->master_of($slot) } // return;
    my ($copy) = eval { $cluster->replicas_of($old) } or return;
    $self->{switching} = 1;
    $self->{switches}++;
    $self->store_away($seconds);
    # Outcomes do not wait for replicas: those of a host that dies as well.
    $self->write_down('outcomes lost', until => now() + $seconds);
    return ($old, Cluster::first_slot($old), $copy);
}

# Whoever was lost comes back when another has its slots, as its replica.
sub finish ($self, $old, $slot, $tries = 200) {
    my $cluster = $self->{world}{cluster};
    my $master = eval { $cluster->master_of($slot) };
    if ($tries && (!$master || $master == $old)) {
        $self->store_away(3);
        $self->write_down('outcomes lost', until => now() + 3);
        return $self->after(0.2, sub { $self->finish($old, $slot, $tries - 1) });
    }
    die "nobody is elected\n" if !$master || $master == $old;
    $old->launch(early => 1) if !$old->pid;
    $self->store_away(4);
    $self->{switching} = 0;
}

sub node_kill ($self, $instance, $dice, @) {
    my ($old, $slot) = $self->begin(8, $dice) or return 0;
    $old->kill;
    $self->after(1, sub { $self->finish($old, $slot) });
    return 1;
}

# Another is elected meanwhile, and the old one wakes up as a master.
sub node_stop ($self, $instance, $dice, $long, @) {
    my ($old, $slot) = $self->begin(10, $dice) or return 0;
    $old->freeze;
    $self->after(4 + 2 * $long, sub { $old->thaw; $self->finish($old, $slot) });
    return 1;
}

sub node_failover ($self, $instance, $dice, @) {
    my ($old, $slot, $copy) = $self->begin(6, $dice) or return 0;
    eval { Cluster::ask($copy, 'CLUSTER', 'FAILOVER') };
    $self->after(1, sub { $self->finish($old, $slot) });
    return 1;
}

# Nothing is copied any more, then the master dies, and a host with it.
sub copy_stall ($self, $instance, $dice, @) {
    my ($old, $slot, $copy) = $self->begin(9, $dice) or return 0;
    $copy->freeze;
    eval { Cluster::ask($old, 'CLIENT', 'KILL', 'TYPE', 'replica') };
    $self->after(0.5 + 0.3 * $dice, sub {
        $old->kill;
        $self->nginx_kill($instance, $dice) if !$self->{hosts_live};
        $copy->thaw;
        $self->after(1, sub { $self->finish($old, $slot) });
    });
    return 1;
}

# Each slot is open for a while. Nobody may notice, so nothing is written down.
sub slots_move ($self, $instance, $dice, $where, @) {
    my $cluster = $self->{world}{cluster};
    return 0 if $self->{switching} || !eval { $cluster->is_complete };
    my $to = eval { $cluster->master_of(int($where * $Cluster::SLOTS)) } // return 0;
    my $first = int($dice * ($Cluster::SLOTS - 1000));
    my $moved = 0;
    for my $slot (map { $first + 50 * $_ } 0 .. 15) {
        my $from = eval { $cluster->master_of($slot) } // next;
        next if $from == $to;
        eval {
            $cluster->begin_migration($slot, $to);
            Time::HiRes::sleep(0.02);
            $cluster->move_keys($slot, $from, $to);
            Time::HiRes::sleep(0.02);
            $cluster->end_migration($slot, $from, $to);
            $moved++;
        };
    }
    return $moved;
}

sub flush_scripts ($self, @) {
    eval { Cluster::ask($_, 'SCRIPT', 'FLUSH') } for $self->{world}{cluster}->running;
    return 1;
}

1;
