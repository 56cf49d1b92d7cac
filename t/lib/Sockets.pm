package Sockets;

# What every client and the proxy do with a socket.

use v5.36;

use Exporter 'import';
use Socket qw(SOL_SOCKET SO_LINGER);

our @EXPORT_OK = qw(write_all reset_socket);

# False if the peer has hung up. That is no error here: what it said is read.
sub write_all ($sock, $bytes) {
    local $SIG{PIPE} = 'IGNORE';
    my $done = 0;
    while ($done < length $bytes) {
        my $sent = syswrite($sock, $bytes, length($bytes) - $done, $done);
        return 0 if !defined $sent;
        $done += $sent;
    }
    return 1;
}

# Closes a connection so that its peer gets a reset.
sub reset_socket ($sock) {
    setsockopt($sock, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    close $sock;
}

1;
