package TcpProxy;

# A process between nginx and Redis whose network fails as the test says.
#
#   my $proxy = TcpProxy->start($redis->path('redis.sock'));
#   $proxy->port
#   $proxy->mode('stall');
#
#   pass     bytes go through
#   stall    connections are accepted, no byte goes anywhere
#   mute     commands go through, answers do not
#   slow     as pass, about 3 megabytes a second
#   strand   connections there are hold their bytes, new ones pass them
#   drop     all connections are reset, new ones too
#   refuse   all connections are reset, new ones are refused
#   old      as pass, with a Redis before 7.0: it does not know SET ... NX GET
#
# Bytes that were held go through when the mode allows it again.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC SOL_SOCKET SO_LINGER IPPROTO_TCP
    TCP_NODELAY);

use lib dirname(abs_path(__FILE__));
use FreePorts qw(free_ports);

my $owner = $$;
my %running;

END {
    if ($$ == $owner) {
        local $?;
        $_->stop for values %running;
    }
}

# The proxy ends with its test, however that ends: nobody can write to it then.
sub start ($class, $path, %opt) {
    socketpair(my $test, my $control, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "$!\n";
    my ($listener, $port) = listen_on($opt{port} // ());
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        close $test;
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        open STDOUT, '>', '/dev/null';
        my $self = bless { path => $path, port => $port, listener => $listener,
            control => $control, mode => 'pass', links => {} }, $class;
        eval { $self->run; 1 } or print STDERR "proxy: $@";
        POSIX::_exit(0);
    }
    close $control;
    my $self = bless { port => $port, pid => $pid, test => $test }, $class;
    $running{$pid} = $self;
    return $self;
}

sub port ($self) { return $self->{port} }

sub address ($self) { return "127.0.0.1:$self->{port}" }

sub url ($self) { return 'redis://' . $self->address }

# Returns when the mode is in force.
sub mode ($self, $mode) {
    syswrite($self->{test}, "$mode\n");
    sysread($self->{test}, my $done, 1) or die "the proxy is gone\n";
}

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    delete $running{$pid};
    kill TERM => $pid;
    waitpid $pid, 0;
}

sub listen_on ($wanted = undef) {
    for (1 .. 10) {
        my $port = $wanted // (free_ports(1))[0];
        my $sock = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port,
            Proto => 'tcp', Listen => 128, ReuseAddr => 1);
        return ($sock, $port) if $sock;
    }
    die "the proxy has no port: $@\n";
}

# ---- the process ----------------------------------------------------------

sub run ($self) {
    while (1) {
        my $readers = IO::Select->new($self->{control}, $self->{listener} // ());
        my $writers = IO::Select->new;
        for my $end ($self->ends) {
            next if $self->{mode} eq 'stall' || $end->{stranded};
            $readers->add($end->{sock}) if length $end->{peer}{out} < 1 << 20;
            $writers->add($end->{sock}) if length $end->{out} && $self->gives($end);
        }
        my ($read, $write) = IO::Select->select($readers, $writers, undef, 5);
        for my $sock (@{ $read // [] }) {
            if    ($sock == $self->{control}) { $self->obey or return }
            elsif ($sock == ($self->{listener} // 0)) { $self->accept }
            else                                      { $self->receive($sock) }
        }
        $self->flush($_) for @{ $write // [] };
    }
}

sub ends ($self) { return values %{ $self->{links} } }

sub gives ($self, $end) { return $self->{mode} ne 'mute' || $end->{server} }

sub obey ($self) {
    sysread($self->{control}, my $mode, 64) or return 0;
    chomp($self->{mode} = $mode);
    $_->{stranded} = $self->{mode} eq 'strand' for $self->ends;
    if ($self->{mode} =~ /^(?:drop|refuse)$/) {
        $self->reset($_) for $self->ends;
    }
    close delete $self->{listener} if $self->{mode} eq 'refuse' && $self->{listener};
    ($self->{listener}) = listen_on($self->{port})
        if $self->{mode} ne 'refuse' && !$self->{listener};
    syswrite($self->{control}, '.');
    return 1;
}

sub accept ($self) {
    my $client = $self->{listener}->accept or return;
    return hard_close($client) if $self->{mode} eq 'drop';
    my $server = IO::Socket::UNIX->new(Peer => $self->{path}) or return hard_close($client);
    setsockopt($client, IPPROTO_TCP, TCP_NODELAY, 1);
    my ($near, $far) = ({ sock => $client }, { sock => $server, server => 1 });
    @$near{qw(peer in out)} = ($far, '', '');
    @$far{qw(peer in out)}  = ($near, '', '');
    for my $end ($near, $far) {
        $end->{sock}->blocking(0);
        binmode $end->{sock};
        $self->{links}{ fileno $end->{sock} } = $end;
    }
}

sub receive ($self, $sock) {
    my $end = $self->{links}{ fileno($sock) // -1 } or return;
    my $read = sysread($sock, $end->{in}, 1 << 16, length $end->{in});
    return if !defined $read && $!{EAGAIN};
    return $self->reset($end) if !$read;
    $end->{peer}{out} .= $self->{mode} eq 'old' && !$end->{server}
        ? old_commands($end) : substr($end->{in}, 0, length $end->{in}, '');
    $self->flush($end->{peer}{sock}) if length $end->{peer}{out} && $self->gives($end->{peer});
}

sub flush ($self, $sock) {
    my $end = $self->{links}{ fileno($sock) // -1 } or return;
    my $sent = syswrite($sock, $end->{out}, $self->{mode} eq 'slow' ? 1 << 15 : length $end->{out});
    select undef, undef, undef, 0.01 if $self->{mode} eq 'slow' && $end->{server};
    return $self->reset($end) if !defined $sent && !$!{EAGAIN};
    substr($end->{out}, 0, $sent // 0, '');
}

sub reset ($self, $end) {
    for my $each ($end, $end->{peer}) {
        delete $self->{links}{ fileno($each->{sock}) // next };
        hard_close($each->{sock});
    }
}

sub hard_close ($sock) {
    setsockopt($sock, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    close $sock;
}

# ---- an old Redis ---------------------------------------------------------

# The whole commands that came, with the word GET made one that Redis does not
# know either: its refusal comes in its turn and in its words.
sub old_commands ($end) {
    my $out = '';
    while (defined(my $command = take_command(\$end->{in}))) {
        my ($bytes, @words) = @$command;
        if (uc $words[0] eq 'SET' && (grep { uc eq 'NX' } @words[3 .. $#words])
            && grep { uc eq 'GET' } @words[3 .. $#words])
        {
            $words[$_] =~ s/^GET$/GOT/i for 3 .. $#words;
            $bytes = join '', '*' . @words . "\r\n",
                map { '$' . length($_) . "\r\n$_\r\n" } @words;
        }
        $out .= $bytes;
    }
    return $out;
}

# [bytes, words...], undef while it is not whole.
sub take_command ($buffer) {
    my ($count) = $$buffer =~ /\A\*(\d+)\r\n/ or return;
    my ($at, @words) = (length("*$count\r\n"));
    for (1 .. $count) {
        pos($$buffer) = $at;
        my ($length) = $$buffer =~ /\G\$(\d+)\r\n/ or return;
        $at += length("\$$length\r\n");
        return if length $$buffer < $at + $length + 2;
        push @words, substr($$buffer, $at, $length);
        $at += $length + 2;
    }
    return [substr($$buffer, 0, $at, ''), @words];
}

1;
