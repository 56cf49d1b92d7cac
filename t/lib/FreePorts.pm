package FreePorts;

# Free TCP ports on 127.0.0.1, below the range from which the kernel takes
# the local ports of outgoing connections.

use v5.36;

use Exporter 'import';
use IO::Socket::INET;
use IO::Socket::UNIX;

our @EXPORT_OK = qw(free_ports);

my $FIRST = 20000;
my $SLOTS = 600;
my $WIDTH = 20;

my ($next, @ports, @locks);

# Consecutive ports. Test files that run side by side would find the same ports
# free, and nginx would even share them, where it listens with reuseport: so
# each process takes slots of ports that are its own as long as it lives. A name
# of a socket that begins with a zero byte is in no folder: tests in a chroot see
# it too.
sub free_ports ($count = 1) {
    while (1) {
        take_slot() if @ports < $count;
        my @some = splice @ports, 0, $count;
        return @some if !grep { !is_free($_) } @some;
    }
}

sub take_slot {
    $next //= $$ % $SLOTS;
    for (1 .. $SLOTS) {
        my $slot = $next++ % $SLOTS;
        push @locks, IO::Socket::UNIX->new(
            Local => "\0nginx-test-ports-$slot", Listen => 1,
        ) // next;
        @ports = map { $FIRST + $slot * $WIDTH + $_ } 0 .. $WIDTH - 1;
        return;
    }
    die "no free ports\n";
}

sub is_free ($port) {
    return defined IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => $port, Proto => 'tcp',
        Listen => 1, ReuseAddr => 1,
    );
}

1;
