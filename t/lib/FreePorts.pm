package FreePorts;

# Free TCP ports on 127.0.0.1, below the range from which the kernel takes
# the local ports of outgoing connections.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Exporter 'import';
use IO::Socket::INET;

our @EXPORT_OK = qw(free_ports);

my $FIRST = 20000;
my $SLOTS = 600;
my $WIDTH = 20;
my $next;

# Consecutive ports. Each process starts in a slot of its own, as test files
# that run side by side would otherwise find the same ports free.
sub free_ports ($count = 1) {
    $next //= ($$ % $SLOTS) * $WIDTH;
    for (1 .. $SLOTS * $WIDTH) {
        my $base = $FIRST + $next;
        $next = ($next + $count) % ($SLOTS * $WIDTH - $count);
        my @ports = $base .. $base + $count - 1;
        return @ports if !grep { !is_free($_) } @ports;
    }
    die "no $count free ports in a row\n";
}

sub is_free ($port) {
    return defined IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => $port, Proto => 'tcp',
        Listen => 1, ReuseAddr => 1,
    );
}

1;
