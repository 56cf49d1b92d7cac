package Idle;

# Looks for what a run has left over: connections, files, memory.

use v5.36;

use IO::Socket::INET;
use List::Util qw(max);
use Time::HiRes qw(sleep);

use Http1 ();
use Lines;
use Nginx ();
use Site;
use Waiting qw(wait_quietly);
use Workload;

my $PATIENCE = 12;
my $SMALL_KEYS = 600;

# States in /proc/net/tcp; no process holds those in TIME_WAIT and CLOSE, and
# a listening one is nobody's connection.
my $CLOSE_WAIT = '08';
my %NOBODYS = map { $_ => 1 } qw(06 07 0A);

# ---- before ---------------------------------------------------------------

# How much is there when nobody has come yet.
sub before ($world) {
    my @instances = $world->site->instances;
    return {
        files => max(map { files_of($_) } map { Site::workers_of($_) } @instances),
        capacity => capacity($world, $instances[0], 'before'),
    };
}

# ---- after ----------------------------------------------------------------

# What there is now and what there should be, for the checker.
sub after ($world, $nemesis, $before) {
    my @seen;
    for my $instance ($world->site->instances) {
        my $who = "nginx $instance->{number}";
        push @seen, connections($who, $instance);
        push @seen, counted_connections($who, $instance)
            if !$nemesis || !$nemesis->has_killed_worker($instance);
        push @seen, files($who, $instance, $world, $before);
    }
    push @seen, { who => 'all', what => 'connections in CLOSE_WAIT', want => 0,
        is => settled(0, sub { close_waits($world) }) };
    push @seen, redis_clients($world) if $world->{redis_port};
    push @seen, capacities($world, $before);
    push @seen, { who => 'all', what => 'nginx that do not leave when asked', want => 0,
        is => $nemesis ? $nemesis->still_quitting($PATIENCE) : 0 };
    push @seen, map { leaves($_) } $world->site->instances;
    return @seen;
}

# The value when it is as wanted, or what it is after some patience.
sub settled ($want, $look) {
    my $is;
    wait_quietly(sub { ($is = $look->()) eq $want }, $PATIENCE);
    return $is;
}

sub connections ($who, $instance) {
    my %own = map { $_ => 1 } @{ $instance->{port} }{qw(h1 h2 stub)};
    return { who => $who, what => 'connections of clients', want => 0, is => settled(0, sub {
        scalar grep { $own{ $_->{local} } && !$NOBODYS{ $_->{state} } } sockets();
    }) };
}

# As nginx counts them; those of a killed worker it counts for ever. The one
# that asks is one.
sub counted_connections ($who, $instance) {
    return { who => $who, what => 'active connections', want => 1, is => settled(1, sub {
        my $text = Http1::request($instance->{port}{stub}, 'GET', '/')->{body};
        return $text =~ /Active connections: (\d+)/ ? $1 : '?';
    }) };
}

sub files ($who, $instance, $world, $before) {
    # Connections to servers and Sentinels come and go.
    my $want = $before->{files} + ($world->{redis_port} ? 2 : $world->{sentinels} || $world->{cluster} ? 5 : 0);
    return map {
        my $pid = $_;
        my $is;
        wait_quietly(sub { ($is = files_of($pid)) <= $want }, $PATIENCE);
        { who => "$who, worker $pid", what => 'open files', is => $is, want => $want, most => 1 };
    } Site::workers_of($instance);
}

sub files_of ($pid) {
    my @files = glob "/proc/$pid/fd/*";
    return scalar @files;
}

sub close_waits ($world) {
    my %ours = map { $_ => 1 } map { values %{ $_->{port} } } $world->site->instances;
    return scalar grep {
        $_->{state} eq $CLOSE_WAIT && ($ours{ $_->{local} } || $ours{ $_->{remote} })
    } sockets();
}

sub sockets {
    my @sockets;
    for (split /\n/, Nginx::slurp('/proc/net/tcp')) {
        my ($local, $remote, $state) = /^\s*\d+: \w+:(\w+) \w+:(\w+) (\w+)/ or next;
        push @sockets, { local => hex $local, remote => hex $remote, state => $state };
    }
    return @sockets;
}

# Each worker has one connection to the store, those of one nginx have two; the
# one that asks is one more.
sub redis_clients ($world) {
    my $want = ($world->{instances} + 1) * $Site::WORKERS;
    return { who => 'redis', what => 'clients', want => $want, most => 1,
        is => settled($want, sub {
            my @clients = ask_redis($world, 'CLIENT LIST') =~ /^id=/mg;
            return @clients - 1;
        }) };
}

sub ask_redis ($world, $command) {
    my $sock = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $world->{redis_port},
        Timeout => 2) or return '';
    print {$sock} "$command\r\nQUIT\r\n";
    local $/;
    return readline($sock) // '';
}

# ---- memory ---------------------------------------------------------------

# Once everything in it has lapsed, the small zone takes as many keys as when
# it was new: not a block of it was lost.
sub capacities ($world, $before) {
    sleep $SMALL_TTL + 0.5;
    return map {
        my $is = capacity($world, $_, 'after');
        defined $is && defined $before->{capacity}
            ? { who => "nginx $_->{number}", what => 'room in the small zone',
                want => $before->{capacity}, is => $is } : ();
    } $world->site->instances;
}

# How many keys it takes until it says that it is full. Nobody can tell if that
# takes so long that the first of them lapse meanwhile.
sub capacity ($world, $instance, $when) {
    my $port = $instance->{port}{h1};
    my $began = now();
    for my $i (0 .. $SMALL_KEYS - 1) {
        my $response = Http1::request($port, 'POST', '/small', body => 'x', headers => [
            'Idempotency-Key' => "room-$when-$instance->{number}-$i", 'X-Do' => 'size=10']);
        return $i if ($response->{status} // 0) == 503;
        return undef if now() - $began > $SMALL_TTL - 1;
    }
    return "over $SMALL_KEYS";
}

# ---- the end --------------------------------------------------------------

sub leaves ($instance) {
    my $left = $instance->{nginx}->stop(timeout => $PATIENCE);
    return { who => "nginx $instance->{number}", what => 'leaves when asked', want => 1,
        is => $left ? 1 : 0 };
}

1;
