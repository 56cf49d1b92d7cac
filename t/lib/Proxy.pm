package Proxy;

# Stands between the two sides of connections and is the bad network between
# them. One process for some links, each of a port and a target, which is a port
# or the path of a socket. Near is who connects.
#
#   my $proxy = Proxy->to($redis->path('redis.sock'));    # one link
#   $proxy->port;  $proxy->url;
#   $proxy->mode('stall');             # in force when this returns
#
#   my $proxy = Proxy->start(links => { app => [$port, $target], ... },
#       watch => $watch);              # several; see Proxy::Watch below
#   $proxy->tell('stall app 2.5');     # for so many seconds
#   $proxy->tell('reset app');         # all connections, once
#   $proxy->tell("move app $port");    # its address is another machine's from now on:
#                                      # as strand, new connections go to that port
#   $proxy->tell('pass');              # all is well again
#
#   pass     bytes go through
#   stall    connections are accepted, no byte goes anywhere, nobody is told
#   mute     bytes go to the far side, none come back
#   slow     as pass, about 3 megabytes a second
#   strand   connections there are hold their bytes, new ones pass them
#   drop     the far side is reset, the near side learns of it at the end
#   cut      all connections are reset, new ones too
#   refuse   all connections are reset, new ones are refused
#   old      as pass, to a Redis before 7.0
#   crawl    as pass, to a Redis that takes 95 commands a second, or as many as
#            start() is told
#
# Bytes that were held go through when the mode allows it again.

use v5.36;

use Errno qw(EAGAIN EINPROGRESS ECONNREFUSED);
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Socket qw(AF_INET AF_UNIX PF_UNSPEC SOCK_STREAM SOL_SOCKET SO_ERROR IPPROTO_TCP
    TCP_NODELAY INADDR_LOOPBACK pack_sockaddr_in unpack_sockaddr_in);
use Time::HiRes qw(sleep clock_gettime CLOCK_MONOTONIC);

use FreePorts qw(free_ports);
use OldRedis qw(old_commands);
use Running qw(run_aside end_process);
use Sockets qw(reset_socket);

my $MOST = 1 << 22;    # bytes on their way to one side

# ---- the test's side ------------------------------------------------------

# hold: how many bytes are read from a side while they cannot go on. With some,
# the end of a connection is seen at the time it comes; with none, whoever
# writes meets a network that takes no more.
sub start ($class, %opt) {
    my $self = bless { hold => $MOST, watch => Proxy::Watch->new, crawl => 95, %opt, sides => {} },
        $class;
    $self->{links} = { map { $_ => new_link($_, @{ $opt{links}{$_} }) } keys %{ $opt{links} } };
    $_->{crawl} = $self->{crawl} for values %{ $self->{links} };
    socketpair(my $test, my $control, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!\n";
    $self->{pid} = run_aside(sub {
        close $test;
        $self->serve($control);
    });
    # The process alone listens, as it may have to refuse connections.
    close delete $_->{listener} for values %{ $self->{links} };
    $self->{test} = $test;
    return $self;
}

sub to ($class, $target) {
    return $class->start(links => { it => [undef, $target] }, hold => 0);
}

sub new_link ($name, $port, $target) {
    my $listener = listen_on($port);
    return { name => $name, target => $target, listener => $listener,
        port => $listener->sockport, mode => 'pass', pairs => {} };
}

sub listen_on ($wanted) {
    for (1 .. 10) {
        my $sock = IO::Socket::INET->new(
            LocalAddr => '127.0.0.1', LocalPort => $wanted // (free_ports(1))[0],
            Proto => 'tcp', Listen => 1024, ReuseAddr => 1, Blocking => 0);
        return $sock if $sock;
    }
    die 'the proxy cannot listen on ' . ($wanted // 'any port') . ": $@\n";
}

sub port ($self) { return $self->{links}{it}{port} }

sub url ($self) { return 'redis://127.0.0.1:' . $self->port }

sub tell ($self, $command) { syswrite($self->{test}, "$command\n") }

sub mode ($self, $mode) {
    $self->tell($mode eq 'pass' ? "pass\nsync" : "$mode it\nsync");
    sysread($self->{test}, my $done, 1) or die "the proxy is gone\n";
}

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    end_process($pid);
}

# ---- the process ----------------------------------------------------------

sub now { return clock_gettime(CLOCK_MONOTONIC) }

sub serve ($self, $control) {
    $SIG{PIPE} = 'IGNORE';
    my $last = now();
    while (1) {
        my ($readable, $writable) = $self->wait_for_events($control);
        $self->{watch}->woke($last);
        $last = now();
        $self->obey($control) if vec($readable, fileno $control, 1);
        for my $link (values %{ $self->{links} }) {
            $self->heal($link) if defined $link->{until} && now() >= $link->{until};
            $self->take_in($link) if $link->{listener} && vec($readable, fileno $link->{listener}, 1);
        }
        for my $fd (keys %{ $self->{sides} }) {
            my $side = $self->{sides}{$fd} or next;
            $self->let_through($side) if $side->{in} ne '';
            $self->pour($side) if vec($writable, $fd, 1);
            $self->fill($side) if vec($readable, $fd, 1) && $side->{sock};
        }
    }
}

sub wait_for_events ($self, $control) {
    my ($readable, $writable) = ('', '');
    vec($readable, fileno $_, 1) = 1
        for $control, map { $_->{listener} // () } values %{ $self->{links} };
    for my $fd (keys %{ $self->{sides} }) {
        my $side = $self->{sides}{$fd};
        vec($readable, $fd, 1) = 1 if $self->has_to_fill($side);
        vec($writable, $fd, 1) = 1
            if $side->{connecting} || flows($side) && has_to_pour($side);
    }
    # Commands that wait for their turn are no event.
    my $crawls = grep { $_->{mode} eq 'crawl' } values %{ $self->{links} };
    my $found = select($readable, $writable, undef, $crawls ? 0.005 : 0.05);
    return $found > 0 ? ($readable, $writable) : ('', '');
}

sub has_to_fill ($self, $side) {
    return 0 if $side->{ended} || $side->{connecting};
    return length($side->{other}{out}) + length($side->{in})
        < (flows($side->{other}) ? $MOST : $self->{hold});
}

sub has_to_pour ($side) {
    return $side->{out} ne '' || $side->{other}{ended} && !$side->{shut};
}

# Whether bytes may go out to this side.
sub flows ($side) {
    my $mode = $side->{pair}{link}{mode};
    return 0 if $side->{pair}{stranded};
    return $side->{name} eq 'far' if $mode eq 'mute';
    return $mode =~ /^(?:pass|slow|strand|old|crawl)$/;
}

# ---- commands -------------------------------------------------------------

sub obey ($self, $control) {
    sysread($control, my $text, 4096) or POSIX::_exit(0);
    for (split /\n/, $text) {
        my ($command, $name, $seconds) = split / /;
        my $link = $self->{links}{ $name // '' };
        if    ($command eq 'sync')  { syswrite($control, '.') }
        elsif ($command eq 'pass')  { $self->heal($_) for values %{ $self->{links} } }
        elsif ($command eq 'reset') { $self->reset_all($link) }
        elsif ($command eq 'move')  { $link->{target} = $seconds; $self->change($link, 'strand', undef) }
        else                        { $self->change($link, $command, $seconds) }
    }
}

sub change ($self, $link, $mode, $seconds) {
    @$link{qw(mode until)} = ($mode, defined $seconds ? now() + $seconds : undef);
    if ($mode eq 'refuse') { close $link->{listener} if $link->{listener}; undef $link->{listener} }
    else                   { listen_again($link) }
    for my $pair (values %{ $link->{pairs} }) {
        $pair->{stranded} = $mode eq 'strand';
        $self->end_pair($pair, 'reset') if $mode =~ /^(?:cut|refuse)$/;
        next if $mode ne 'drop';
        $pair->{dropped} = 1;
        $self->hang_up($pair->{far}, reset => 1);
    }
}

sub heal ($self, $link) {
    @$link{qw(mode until)} = ('pass', undef);
    listen_again($link);
    for my $pair (values %{ $link->{pairs} }) {
        $pair->{stranded} = 0;
        $self->end_pair($pair, 'reset') if $pair->{dropped};
    }
}

sub listen_again ($link) {
    $link->{listener} //= listen_on($link->{port});
}

# But for those of which it is not known yet what they carry.
sub reset_all ($self, $link) {
    for my $pair (values %{ $link->{pairs} }) {
        $self->end_pair($pair, 'reset') if $self->{watch}->knows($pair);
    }
}

# ---- connections ----------------------------------------------------------

sub take_in ($self, $link) {
    while (my $sock = $link->{listener}->accept) {
        my $far = $link->{mode} eq 'cut' ? undef : connect_to($link->{target});
        if ($far) { $self->pair_up($link, $sock, $far) }
        else      { reset_socket($sock) }
    }
}

sub pair_up ($self, $link, $sock, $far) {
    $sock->blocking(0);
    my $pair = { link => $link };
    my ($near_side, $far_side) =
        map { { sock => $_, in => '', out => '', pair => $pair } } $sock, $far;
    $far_side->{connecting} = 1;
    @$near_side{qw(other name)} = ($far_side, 'near');
    @$far_side{qw(other name)} = ($near_side, 'far');
    @$pair{qw(near far)} = ($near_side, $far_side);
    $pair->{port} = (unpack_sockaddr_in(getsockname $far))[0] if !is_path($link->{target});
    setsockopt($_, IPPROTO_TCP, TCP_NODELAY, 1) for $sock, $far;
    $self->{sides}{ fileno $_->{sock} } = $_ for $near_side, $far_side;
    $link->{pairs}{$pair} = $pair;
}

sub is_path ($target) { return $target =~ m{^/} }

sub connect_to ($target) {
    return IO::Socket::UNIX->new(Peer => $target, Blocking => 0) if is_path($target);
    socket(my $sock, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    IO::Handle::blocking($sock, 0);
    connect($sock, pack_sockaddr_in($target, INADDR_LOOPBACK))
        or $! == EINPROGRESS or $! == ECONNREFUSED or die "connect: $!\n";
    return $sock;
}

sub fill ($self, $side) {
    my ($pair, $to) = @$side{qw(pair other)};
    my $read = sysread($side->{sock}, my $bytes, 1 << 16);
    return if !defined $read && $! == EAGAIN;
    if ($read) {
        $self->{watch}->saw($side, $bytes);
        return $self->end_pair($pair, 'far refused') if $pair->{refused};
        $to->{out} .= passed_on($side, $bytes) if $to->{sock};
        $self->pour($to) if $to->{sock} && !$to->{connecting} && flows($to);
        return;
    }
    $side->{ended} = 1;
    $self->{watch}->ended($pair, defined $read ? "$side->{name} closed" : "$side->{name} reset");
    return $self->end_pair($pair, 'far refused') if $pair->{refused};
    return if $pair->{dropped};
    # A reset is passed on at once, as nothing can follow it.
    return $self->end_pair($pair, 'passed on') if !defined $read && flows($to);
    $self->pour($to) if flows($to) && !$to->{connecting};
}

sub passed_on ($side, $bytes) {
    $side->{in} .= $bytes;
    my $mode = $side->{name} eq 'near' ? $side->{pair}{link}{mode} : 'pass';
    return old_commands(\$side->{in}) if $mode eq 'old';
    return slow_commands($side) if $mode eq 'crawl';
    return substr($side->{in}, 0, length $side->{in}, '');
}

# Those commands whose turn it is, of all connections one after the other.
sub slow_commands ($side) {
    my ($link, $out) = ($side->{pair}{link}, '');
    $link->{next} = now() if ($link->{next} // 0) < now() - 0.03;
    while ($link->{next} <= now()) {
        my $command = OldRedis::take_command(\$side->{in}) // last;
        $out .= $command->[0];
        $link->{next} += 1 / $link->{crawl};
    }
    return $out;
}

# What had to wait for its turn, or for the end of it.
sub let_through ($self, $side) {
    my $to = $side->{other};
    return if !$to->{sock} || !flows($to);
    $to->{out} .= passed_on($side, '');
    $self->pour($to) if $to->{out} ne '' && !$to->{connecting};
}

sub pour ($self, $side) {
    if ($side->{connecting}) {
        return $self->refuse($side->{pair})
            if unpack 'i', getsockopt($side->{sock}, SOL_SOCKET, SO_ERROR);
        $side->{connecting} = 0;
    }
    return if !flows($side);
    if ($side->{out} ne '') {
        my $slow = $side->{pair}{link}{mode} eq 'slow';
        my $sent = syswrite($side->{sock}, $side->{out}, $slow ? 1 << 15 : length $side->{out});
        sleep 0.01 if $slow && $side->{name} eq 'far';
        return if !defined $sent && $! == EAGAIN;
        return $self->end_pair($side->{pair}, "$side->{name} reset") if !defined $sent;
        substr($side->{out}, 0, $sent, '');
    }
    $self->finish($side) if $side->{out} eq '' && $side->{other}{ended} && !$side->{shut};
}

# Nobody is there. Who connects has been let in by then, and may have sent
# something: that is read first, as it counts as sent.
sub refuse ($self, $pair) {
    return $self->end_pair($pair, 'far refused')
        if $self->{watch}->knows($pair) || $pair->{near}{ended};
    $pair->{refused} = 1;
    $self->hang_up($pair->{far}, reset => 1);
}

# All that the other side ever said has been passed on.
sub finish ($self, $side) {
    $side->{shut} = 1;
    shutdown($side->{sock}, 1);
    $self->end_pair($side->{pair}, 'closed') if $side->{ended} && $side->{other}{shut};
}

sub end_pair ($self, $pair, $how) {
    $self->{watch}->ended($pair, $how);
    $self->{watch}->closed($pair);
    my $hard = $how eq 'closed' ? 0 : 1;
    $self->hang_up($pair->{$_}, reset => $hard) for qw(near far);
    delete $pair->{link}{pairs}{$pair};
    # They refer to each other, and would never be freed.
    delete @$_{qw(other pair)} for @$pair{qw(near far)};
}

sub hang_up ($self, $side, %opt) {
    my $sock = delete $side->{sock} or return;
    $side->{sock} = undef;
    delete $self->{sides}{ fileno $sock };
    if ($opt{reset}) { reset_socket($sock) }
    else             { close $sock }
}

package Proxy::Watch;

# Is told what happens, in the process of the proxy. This one does not care; a
# chaos run has one that writes it down.

sub new ($class, %opt) { return bless {%opt}, $class }

# The proxy goes on, and was last awake then.
sub woke ($self, $since) { }

# Bytes came from a side.
sub saw ($self, $side, $bytes) { }

# A connection has ended, by whom. The first time is the one that counts.
sub ended ($self, $pair, $how) { }

sub closed ($self, $pair) { }

# Whether it is known what a connection carries.
sub knows ($self, $pair) { return 1 }

1;
