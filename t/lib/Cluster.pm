package Cluster;

# A Redis Cluster of real servers: masters, each with replicas.
#
#   my $cluster = Cluster->start(masters => 3, replicas => 1);
#   $cluster->url                      # redis+cluster://...
#   $cluster->master_of($slot)         # the RedisServer that has it
#   $cluster->slot_of($name)           # of a key in Redis
#   $cluster->failover($server);       # kills it, waits for its replica
#   $cluster->migrate($slot, $to);     # with its keys, as redis-cli does it
#
# The servers find the whole cluster in their files when they start, so it is
# there as soon as they take writes, which is after two seconds.

use v5.36;

use File::Temp ();

use FreePorts qw(free_ports);
use RedisServer;
use Waiting qw(wait_until);

our $SLOTS = 16384;

# node_timeout => milliseconds; conf => [of the servers]; coverage => 'no': it
# goes on while slots have no master; and what RedisServer takes: tls, password.
sub start ($class, %opt) {
    my $self = bless { masters => 3, replicas => 1, node_timeout => 4000, coverage => 'yes',
        %opt, dir => File::Temp->newdir('cluster-XXXXXX', TMPDIR => 1) }, $class;
    my @plan = $self->plan;
    for my $node (@plan) {
        push @{ $self->{servers} }, $self->start_server($node, \@plan);
    }
    wait_until(sub { $self->is_complete }, 40, 'a cluster') or die "the cluster does not come up\n";
    return $self;
}

# Which slots each will have, or whose replica it will be.
sub plan ($self) {
    my ($masters, $replicas) = @$self{qw(masters replicas)};
    my @ports = map { [free_ports(2)] } 1 .. $masters * (1 + $replicas);
    my @plan = map { { id => sprintf('%040x', $_ + 1), port => $ports[$_][0], bus => $ports[$_][1] } }
        0 .. $#ports;
    for my $i (0 .. $#plan) {
        if ($i >= $masters) {
            $plan[$i]{master} = $plan[$i % $masters]{id};
        }
        else {
            $plan[$i]{slots} = [int($i * $SLOTS / $masters), int(($i + 1) * $SLOTS / $masters) - 1];
            $plan[$i]{epoch} = $i + 1;
        }
    }
    return @plan;
}

sub start_server ($self, $node, $plan) {
    my $file = "$self->{dir}/nodes-$node->{port}.conf";
    open my $out, '>', $file or die "$file: $!\n";
    print {$out} map { node_line($_, $_ == $node) . "\n" } @$plan;
    print {$out} "vars currentEpoch $self->{masters} lastVoteEpoch 0\n";
    close $out;
    return $self->launch($node->{port}, $node->{bus}, $file);
}

sub node_line ($node, $is_itself) {
    my $flags = ($is_itself ? 'myself,' : '') . ($node->{master} ? 'slave' : 'master');
    return join ' ', $node->{id}, "127.0.0.1:$node->{port}\@$node->{bus}", $flags,
        $node->{master} // '-', 0, 0, $node->{epoch} // 0, 'connected',
        $node->{slots} ? join('-', @{ $node->{slots} }) : ();
}

sub launch ($self, $port, $bus, $file) {
    my %server = map { exists $self->{$_} ? ($_ => $self->{$_}) : () } qw(tls password aof certificates);
    my $server = RedisServer->start(%server, port => $port, conf => [
        'cluster-enabled yes', "cluster-config-file $file", "cluster-port $bus",
        "cluster-node-timeout $self->{node_timeout}", 'cluster-replica-validity-factor 0',
        "cluster-require-full-coverage $self->{coverage}", 'repl-diskless-sync-delay 0',
        'repl-ping-replica-period 1', 'cluster-allow-replica-migration no',
        $self->{tls} ? ('tls-cluster yes', 'tls-replication yes') : (),
        defined $self->{password} ? "masterauth $self->{password}" : (),
        @{ $self->{conf} // [] },
    ]);
    $self->{certificates} //= $server->dir if $self->{tls};
    return $server;
}

# A master more, without slots.
sub add_master ($self) {
    my ($port, $bus) = free_ports(2);
    my $server = $self->launch($port, $bus, "$self->{dir}/nodes-$port.conf");
    my $known = ($self->running)[0];
    my ($busy) = nodes_of($known)->{ my_id($known) }{bus};
    ask($server, 'CLUSTER', 'MEET', '127.0.0.1', $known->port, $busy);
    push @{ $self->{servers} }, $server;
    wait_until(sub {
        my $all = $self->running;
        my $knows = grep { scalar(grep { $_->{link} eq 'connected' } values %{ nodes_of($_) }) == $all }
            $self->running;
        $knows == $all && ask($server, 'CLUSTER', 'INFO') =~ /cluster_state:ok/;
    }, 20, 'all know the new node') or die "nobody meets the new node\n";
    return $server;
}

# ---- what there is --------------------------------------------------------

sub servers ($self) { return @{ $self->{servers} } }

sub running ($self) { return grep { $_->pid } $self->servers }

sub url ($self, %opt) {
    my $scheme = $opt{scheme} // ($self->{tls} ? 'rediss+cluster' : 'redis+cluster');
    my @servers = @{ $opt{at} // [$self->servers] };
    return "$scheme://" . join ',', map { $_->address } @servers;
}

sub ask ($server, @words) {
    eval { $server->command('PING') };
    return $server->command(@words);
}

sub my_id ($server) { return ask($server, 'CLUSTER', 'MYID') }

# { id => { port, bus, flags, master, link, slots => [[first, last], ...] } }
sub nodes_of ($server) {
    my %nodes;
    for (split /\n/, ask($server, 'CLUSTER', 'NODES')) {
        my ($id, $address, $flags, $master, undef, undef, undef, $link, @slots) = split ' ';
        my ($port, $bus) = $address =~ /:(\d+)\@(\d+)/;
        $nodes{$id} = { port => $port, bus => $bus, flags => $flags, master => $master, link => $link,
            slots => [map { /^(\d+)(?:-(\d+))?$/ ? [$1, $2 // $1] : () } @slots] };
    }
    return \%nodes;
}

# As a majority of those that run see it: the master of a slot, or undef.
sub master_of ($self, $slot) {
    my %votes;
    for my $server ($self->running) {
        my $nodes = eval { nodes_of($server) } // next;
        for my $node (values %$nodes) {
            next if $node->{flags} =~ /fail(?!\?)|slave/;
            $votes{ $node->{port} }++ if grep { $_->[0] <= $slot && $slot <= $_->[1] } @{ $node->{slots} };
        }
    }
    my ($port) = grep { $votes{$_} * 2 > $self->running } keys %votes;
    return undef if !defined $port;
    return (grep { $_->port == $port } $self->servers)[0];
}

sub slot_of ($self, $name) { return ask(($self->running)[0], 'CLUSTER', 'KEYSLOT', $name) }

sub first_slot ($server) {
    my $slots = nodes_of($server)->{ my_id($server) }{slots};
    return $slots->[0][0];
}

sub replicas_of ($self, $master) {
    my $id = my_id($master);
    my $nodes = nodes_of($master);
    my %is = map { $_->{port} => 1 } grep { $_->{master} eq $id } values %$nodes;
    return grep { $_->pid && $is{ $_->port } } $self->servers;
}

# All slots are served, and all replicas are in sync.
sub is_complete ($self) {
    for my $server ($self->running) {
        my $info = eval { ask($server, 'CLUSTER', 'INFO') } // return 0;
        return 0 if $info !~ /cluster_state:ok/ || $info !~ /cluster_slots_ok:$SLOTS\b/;
        my $role = eval { ask($server, 'ROLE') } // return 0;
        return 0 if $role->[0] eq 'slave' && $role->[3] ne 'connected';
        return 0 if $role->[0] eq 'master' && first_slot_or_none($server) && @{ $role->[2] } < $self->{replicas};
    }
    return 1;
}

sub first_slot_or_none ($server) {
    return scalar @{ nodes_of($server)->{ my_id($server) }{slots} };
}

sub wait_complete ($self) {
    return wait_until(sub { $self->is_complete }, 40, 'the cluster is complete');
}

# Another than this one has the slot.
sub wait_switched ($self, $slot, $old, $seconds = 40) {
    return wait_until(sub {
        my $master = $self->master_of($slot);
        $master && $master != $old && eval { ask($master, 'ROLE')->[0] eq 'master' };
    }, $seconds, 'another master');
}

# ---- what happens ---------------------------------------------------------

sub failover ($self, $master) {
    my $slot = first_slot($master);
    $master->kill;
    $self->wait_switched($slot, $master) or die "nobody is elected\n";
    return $self->master_of($slot);
}

# begin: from now on the slot is open. move: all keys that are there.
sub begin_migration ($self, $slot, $to) {
    my $from = $self->master_of($slot);
    ask($to, 'CLUSTER', 'SETSLOT', $slot, 'IMPORTING', my_id($from));
    ask($from, 'CLUSTER', 'SETSLOT', $slot, 'MIGRATING', my_id($to));
    return $from;
}

sub move_keys ($self, $slot, $from, $to) {
    while (my @keys = @{ ask($from, 'CLUSTER', 'GETKEYSINSLOT', $slot, 100) }) {
        ask($from, 'MIGRATE', '127.0.0.1', $to->port, '', 0, 5000, 'KEYS', @keys);
    }
}

sub end_migration ($self, $slot, $from, $to) {
    ask($_, 'CLUSTER', 'SETSLOT', $slot, 'NODE', my_id($to)) for $to, $from;
}

sub migrate ($self, $slot, $to) {
    my $from = $self->begin_migration($slot, $to);
    $self->move_keys($slot, $from, $to);
    $self->end_migration($slot, $from, $to);
}

1;
