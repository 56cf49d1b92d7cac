package Sentinels;

# A master, its replicas, and Sentinels that watch them: real processes.
#
#   my $site = Sentinels->start(replicas => 2, sentinels => 3);
#   $site->url                         # redis+sentinel://...
#   $site->master                      # the RedisServer that the Sentinels name
#   $site->replicas                    # the others that run
#   $site->failover;                   # kills the master, waits for the next
#
# A server that is killed can be launched again, and becomes a replica.

use v5.36;

use RedisServer;
use Waiting qw(wait_until);

our $NAME = 'payments';

# conf => [of the servers]; sentinel_conf => [of the Sentinels];
# down_after, failover_timeout => milliseconds; network => where they are, a Network; and what
# RedisServer takes: tls, password, aof.
sub start ($class, %opt) {
    my $self = bless { replicas => 2, sentinels => 3, down_after => 1000,
        failover_timeout => 4000, %opt }, $class;
    my %server = map { exists $opt{$_} ? ($_ => $opt{$_}) : () } qw(tls password aof);
    my @conf = (@{ $opt{conf} // [] },
        defined $opt{password} ? "masterauth $opt{password}" : (),
        $opt{tls} ? 'tls-replication yes' : (), 'repl-diskless-sync-delay 0',
        'repl-ping-replica-period 1');
    my $master = RedisServer->start(%server, conf => [@conf], $self->place('server 1'));
    $server{certificates} = $self->{certificates} = $master->dir if $opt{tls};
    my @replicas = map {
        RedisServer->start(%server, conf => [@conf, following($master)], $self->place("server $_"))
    } 2 .. $self->{replicas} + 1;
    $self->{servers} = [$master, @replicas];
    wait_until(sub { synced($master) == @replicas }, 20, 'replicas in sync')
        or die "the replicas do not follow\n";
    $self->{watch} = [map { $self->start_sentinel($master, $_) } 1 .. $self->{sentinels}];
    wait_until(sub { $self->is_complete }, 30, 'Sentinels know each other')
        or die "the Sentinels do not know each other\n";
    return $self;
}

sub place ($self, $name) {
    return $self->{network} ? %{ $self->{network}->place($name) } : ();
}

# Of its configuration: whom it copies.
sub following ($master) { return join ' ', 'replicaof', $master->host, $master->port }

# From its next start on. Without a master it is one.
sub set_master ($server, $master = undef) {
    @{ $server->{conf} } = ((grep { !/^replicaof/ } @{ $server->{conf} }),
        $master ? following($master) : ());
}

sub start_sentinel ($self, $master, $number) {
    my %tls = (tls => $self->{tls}, certificates => $self->{certificates});
    return RedisServer->start(sentinel => 1, $self->{tls} ? %tls : (), $self->place("sentinel $number"), conf => [
        $self->{tls} ? 'tls-replication yes' : (), @{ $self->{sentinel_conf} // [] },
        join(' ', "sentinel monitor $NAME", $master->host, $master->port, $self->quorum),
        "sentinel down-after-milliseconds $NAME $self->{down_after}",
        "sentinel failover-timeout $NAME $self->{failover_timeout}",
        defined $self->{password} ? "sentinel auth-pass $NAME $self->{password}" : (),
    ]);
}

sub quorum ($self) { return int($self->{sentinels} / 2) + 1 }

sub synced ($master) {
    my @online = $master->command('INFO', 'replication') =~ /^slave\d+:.*state=online/mg;
    return scalar @online;
}

# Each has found all others, and all replicas, which know that they are.
sub is_complete ($self) {
    my $master = $self->master // return 0;
    for my $replica (grep { $_ != $master } $self->servers) {
        my $role = eval { ask($replica, 'ROLE') } // return 0;
        return 0 if $role->[0] ne 'slave' || $role->[3] ne 'connected';
    }
    for my $sentinel ($self->sentinels) {
        my %info = @{ $sentinel->command('SENTINEL', 'MASTER', $NAME) };
        return 0 if $info{'num-slaves'} != $self->{replicas}
            || $info{'num-other-sentinels'} != $self->{sentinels} - 1
            || $info{flags} ne 'master';
    }
    return 1;
}

sub servers ($self) { return @{ $self->{servers} } }

sub sentinels ($self) { return @{ $self->{watch} } }

sub url ($self, %opt) {
    my $scheme = $opt{scheme} // 'redis+sentinel';
    return "$scheme://" . join(',', map { $_->address } $self->sentinels) . "/$NAME";
}

# As most of the Sentinels that run see it; undef while they do not agree.
sub master ($self) {
    my %votes;
    for my $sentinel (grep { $_->pid } $self->sentinels) {
        my $address = eval { $sentinel->command('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', $NAME) };
        $votes{ $address->[1] }++ if $address;
    }
    my ($port) = grep { $votes{$_} >= $self->quorum } keys %votes;
    return undef if !defined $port;
    my ($master) = grep { $_->port == $port } $self->servers;
    return $master;
}

sub replicas ($self) {
    my $master = $self->master;
    return grep { $_->pid && $_ != $master } $self->servers;
}

# True once another than this one is the master.
sub wait_switched ($self, $old, $seconds = 30) {
    return wait_until(sub {
        my $master = $self->master;
        $master && $master != $old && eval { $master->command('ROLE')->[0] eq 'master' };
    }, $seconds, 'another master');
}

# A failover ends all connections, also those of the test.
sub ask ($server, @words) {
    eval { $server->command('PING') };
    return $server->command(@words);
}

sub failover ($self) {
    my $old = $self->master;
    $old->kill;
    $self->wait_switched($old) or die "the Sentinels elect nobody\n";
    return $old;
}

1;
