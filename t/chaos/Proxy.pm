package Proxy;

# Stands between two sides of a connection and is the bad network between
# them. One process for the links of one nginx, told what to do by a pipe.
#
#   my $proxy = Proxy->start(links => { app => [$listen, $target], ... },
#       instance => 0, log => $file);
#   $proxy->tell('reset app');         # both sides of all connections
#   $proxy->tell('stall app 2.5');     # nothing passes, nobody is told
#   $proxy->tell('drop app 2.5');      # the far side is reset, the near side
#                                      # learns of it at the end
#   $proxy->tell('pass');              # all is well again
#
# What is read while nothing passes is passed on later, so that the end of a
# connection is seen, and logged, at the time it comes. Near is who connects.
# Lines of the log:
#
#   what=seen     a request with a key is on its way to the application
#   what=ended    a connection, by whom
#   what=late     the far side took so long to answer, whatever the reason, or
#                 this process itself stood still

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Errno qw(EAGAIN EINPROGRESS);
use IO::Socket::INET;
use POSIX ();
use Socket qw(SOL_SOCKET SO_ERROR SO_LINGER IPPROTO_TCP TCP_NODELAY SOCK_STREAM
    AF_INET pack_sockaddr_in unpack_sockaddr_in INADDR_LOOPBACK);

use Lines;

my $MOST = 1 << 22;    # bytes held back on one side
my $LATE = 0.12;       # seconds

# ---- the nemesis' side ----------------------------------------------------

sub start ($class, %opt) {
    my @listeners = map { [$_, listen_on($opt{links}{$_}[0])] } sort keys %{ $opt{links} };
    pipe(my $read, my $write) or die "pipe: $!\n";
    $write->autoflush(1);
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        close $write;
        eval { serve($read, \@listeners, %opt); 1 } or warn "proxy: $@";
        POSIX::_exit(1);
    }
    return bless { pid => $pid, pipe => $write }, $class;
}

sub pid ($self) { return $self->{pid} }

sub tell ($self, $command) { print { $self->{pipe} } "$command\n" }

sub listen_on ($port) {
    return IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => $port, Proto => 'tcp',
        Listen => 1024, ReuseAddr => 1, Blocking => 0,
    ) || die "cannot listen on $port: $@\n";
}

# ---- loop -----------------------------------------------------------------

my (%sides, %links, $say, $instance);

sub serve ($pipe, $listeners, %opt) {
    $SIG{PIPE} = 'IGNORE';
    $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
    $say = append_to($opt{log});
    $instance = $opt{instance};
    $links{ $_->[0] } = {
        name => $_->[0], listener => $_->[1], target => $opt{links}{ $_->[0] }[1],
        mode => 'pass', until => 0, pairs => {},
    } for @$listeners;

    my $last = now();
    while (1) {
        my ($readable, $writable) = wait_for_events($pipe);
        say_late('all', $last) if now() - $last > $LATE;
        $last = now();
        obey($pipe) if vec($readable, fileno $pipe, 1);
        for my $link (values %links) {
            heal($link) if $link->{mode} ne 'pass' && now() >= $link->{until};
            take_in($link) if vec($readable, fileno $link->{listener}, 1);
        }
        for my $fd (keys %sides) {
            my $side = $sides{$fd} or next;
            pour($side) if vec($writable, $fd, 1);
            fill($side) if vec($readable, $fd, 1) && $side->{sock};
        }
    }
}

sub wait_for_events ($pipe) {
    my ($readable, $writable) = ('', '');
    vec($readable, fileno $pipe, 1) = 1;
    vec($readable, fileno $_->{listener}, 1) = 1 for values %links;
    for my $fd (keys %sides) {
        my $side = $sides{$fd};
        vec($readable, $fd, 1) = 1
            if !$side->{ended} && !$side->{connecting} && length $side->{other}{out} < $MOST;
        vec($writable, $fd, 1) = 1
            if $side->{connecting} || $side->{pair}{link}{mode} eq 'pass' && has_to_pour($side);
    }
    my $found = select($readable, $writable, undef, 0.05);
    return $found > 0 ? ($readable, $writable) : ('', '');
}

sub say_late ($name, $since) {
    $say->(what => 'late', link => $name, instance => $instance, t => $since, until => now());
}

sub has_to_pour ($side) {
    return $side->{out} ne '' || $side->{other}{ended} && !$side->{shut};
}

# ---- commands -------------------------------------------------------------

sub obey ($pipe) {
    sysread($pipe, my $text, 4096) or POSIX::_exit(0);
    for (split /\n/, $text) {
        my ($command, $name, $seconds) = split / /;
        if ($command eq 'pass') { heal($_) for values %links }
        elsif ($command eq 'reset') { reset_all($links{$name}) }
        else { stand_still($links{$name}, $command, $seconds) }
    }
}

sub stand_still ($link, $mode, $seconds) {
    @$link{qw(mode until)} = ($mode, now() + $seconds);
    return if $mode ne 'drop';
    for my $pair (values %{ $link->{pairs} }) {
        $pair->{dropped} = 1;
        hang_up($pair->{far}, reset => 1);
    }
}

sub heal ($link) {
    $link->{mode} = 'pass';
    for my $pair (values %{ $link->{pairs} }) {
        end_pair($pair, 'reset') if $pair->{dropped};
    }
}

# But for those of which it is not known yet what they carry.
sub reset_all ($link) {
    for my $pair (values %{ $link->{pairs} }) {
        end_pair($pair, 'reset') if $link->{name} ne 'app' || $pair->{key};
    }
}

# ---- connections ----------------------------------------------------------

sub take_in ($link) {
    while (my $sock = $link->{listener}->accept) {
        $sock->blocking(0);
        my $far = connect_to($link->{target});
        my $pair = { link => $link };
        my ($near_side, $far_side) = map { { sock => $_, out => '', pair => $pair } } $sock, $far;
        $far_side->{connecting} = 1;
        @$near_side{qw(other name)} = ($far_side, 'near');
        @$far_side{qw(other name)} = ($near_side, 'far');
        @$pair{qw(near far)} = ($near_side, $far_side);
        $pair->{port} = (unpack_sockaddr_in(getsockname $far))[0];
        setsockopt($_, IPPROTO_TCP, TCP_NODELAY, 1) for $sock, $far;
        $sides{ fileno $_->{sock} } = $_ for $near_side, $far_side;
        $link->{pairs}{$pair} = $pair;
    }
}

sub connect_to ($port) {
    socket(my $sock, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    IO::Handle::blocking($sock, 0);
    connect($sock, pack_sockaddr_in($port, INADDR_LOOPBACK))
        or $! == EINPROGRESS or $! == POSIX::ECONNREFUSED() or die "connect: $!\n";
    return $sock;
}

sub fill ($side) {
    my $to = $side->{other};
    my $read = sysread($side->{sock}, my $bytes, 1 << 16);
    return if !defined $read && $! == EAGAIN;
    if ($read) {
        note_key($side, $bytes) if $side->{name} eq 'near' && !$side->{pair}{key};
        note_time($side) if $side->{pair}{link}{name} eq 'redis';
        return end_pair($side->{pair}, 'far refused') if $side->{pair}{refused};
        $to->{out} .= $bytes if $to->{sock};
        pour($to) if $to->{sock} && !$to->{connecting} && $side->{pair}{link}{mode} eq 'pass';
        return;
    }
    $side->{ended} = 1;
    say_end($side->{pair}, defined $read ? "$side->{name} closed" : "$side->{name} reset");
    return end_pair($side->{pair}, 'far refused') if $side->{pair}{refused};
    return if $side->{pair}{dropped};
    # A reset is passed on at once, as nothing can follow it.
    return end_pair($side->{pair}, 'passed on')
        if !defined $read && $side->{pair}{link}{mode} eq 'pass';
    pour($to) if $side->{pair}{link}{mode} eq 'pass' && !$to->{connecting};
}

# Which keys were ever on their way to the application.
sub note_key ($side, $bytes) {
    my $pair = $side->{pair};
    return if $pair->{link}{name} ne 'app';
    my ($key) = $bytes =~ /^idempotency-key:\s*(\S+)/mi or return;
    $pair->{key} = $key;
    $say->(what => 'seen', link => 'app', key => $key, port => $pair->{port});
}

# How long the far side takes to answer.
sub note_time ($side) {
    my $pair = $side->{pair};
    if ($side->{name} eq 'near') {
        $pair->{asked} //= now();
        return;
    }
    my $asked = delete $pair->{asked} // return;
    say_late($pair->{link}{name}, $asked) if now() - $asked > $LATE;
}

sub pour ($side) {
    if ($side->{connecting}) {
        return refuse($side->{pair})
            if unpack 'i', getsockopt($side->{sock}, SOL_SOCKET, SO_ERROR);
        $side->{connecting} = 0;
    }
    return if $side->{pair}{link}{mode} ne 'pass';
    if ($side->{out} ne '') {
        my $sent = syswrite($side->{sock}, $side->{out});
        return if !defined $sent && $! == EAGAIN;
        return end_pair($side->{pair}, "$side->{name} reset") if !defined $sent;
        substr($side->{out}, 0, $sent, '');
    }
    finish($side) if $side->{out} eq '' && $side->{other}{ended} && !$side->{shut};
}

# Nobody is there. Who connects has been let in by then, and may have sent
# something: that is read first, as it counts as sent.
sub refuse ($pair) {
    return end_pair($pair, 'far refused')
        if $pair->{link}{name} ne 'app' || $pair->{key} || $pair->{near}{ended};
    $pair->{refused} = 1;
    hang_up($pair->{far}, reset => 1);
}

# All that the other side ever said has been passed on.
sub finish ($side) {
    $side->{shut} = 1;
    shutdown($side->{sock}, 1);
    end_pair($side->{pair}, 'closed') if $side->{ended} && $side->{other}{shut};
}

sub end_pair ($pair, $how) {
    say_end($pair, $how);
    say_late($pair->{link}{name}, $pair->{asked})
        if $pair->{asked} && now() - $pair->{asked} > $LATE;
    my $hard = $how eq 'closed' ? 0 : 1;
    hang_up($pair->{$_}, reset => $hard) for qw(near far);
    delete $pair->{link}{pairs}{$pair};
    # They refer to each other, and would never be freed.
    delete @$_{qw(other pair)} for @$pair{qw(near far)};
}

# The first end of a connection is the one that counts.
sub say_end ($pair, $how) {
    return if $pair->{said}++;
    $say->(what => 'ended', link => $pair->{link}{name}, port => $pair->{port}, how => $how,
        key => $pair->{key});
}

sub hang_up ($side, %opt) {
    my $sock = delete $side->{sock} or return;
    $side->{sock} = undef;
    delete $sides{ fileno $sock };
    setsockopt($sock, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0)) if $opt{reset};
    close $sock;
}

1;
