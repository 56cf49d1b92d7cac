package Upstream;

# The application that contenders stand before: answers at once, and knows how
# often it was asked.
#
#   my $upstream = Upstream->start;
#   $upstream->port('large')           # small: 300 bytes, large: 64 KiB
#   $upstream->executions
#
# Upstream::answers() is what makes such answers in any nginx.

use v5.36;

use IO::Socket::INET;

use FreePorts qw(free_ports);
use Gateway;

our %SIZE = (small => 300, large => 65536);

sub start ($class, %opt) {
    my %port;
    @port{qw(small large)} = free_ports(2);
    my $servers = join '', map {
        "server { listen 127.0.0.1:$port{$_}; location / { return 200 \$$_; } }\n"
    } sort keys %port;
    my $gateway = Gateway->start(%opt, http => answers() . $servers
        . 'server { listen %%PORT%%; location / { stub_status; } }');
    return bless { gateway => $gateway, port => \%port }, $class;
}

# Variables: nginx takes no word of more than 4 KiB.
sub answers {
    my ($small, $piece) = ('x' x $SIZE{small}, 'x' x 2048);
    my $large = '$piece' x 32;
    return <<"END";
    geo \$small { default $small; }
    geo \$piece { default $piece; }
    map "" \$large { volatile; default "$large"; }
END
}

sub port ($self, $size) { return $self->{port}{$size} }

sub gateway ($self) { return $self->{gateway} }

sub stop ($self) { $self->{gateway}->stop }

# Without those that ask.
sub executions ($self) {
    my $port = $self->{gateway}->port;
    my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") or die "stub_status: $!\n";
    print {$socket} "GET / HTTP/1.0\r\n\r\n";
    local $/;
    my ($requests) = readline($socket) =~ /^ \d+ \d+ (\d+)/m or die "no stub_status\n";
    return $requests - ++$self->{asked};
}

1;
