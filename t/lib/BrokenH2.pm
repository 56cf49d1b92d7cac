package BrokenH2;

# An HTTP/2 server that answers by a header and one message, and then ends the
# answer in its own way: goaway, reset, nonsense or close. Or "refused": it
# answers nothing, and says that it has done nothing. Or "short": it ends with
# the header, which has promised a body. One connection, one request.

use v5.36;

use IO::Socket::INET;
use Running qw(run_aside);

# Returns its port.
sub start ($class, $end) {
    my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 16)
        or die "no port: $@\n";
    run_aside(sub {
        while (my $sock = $listener->accept) { serve($sock, $end) }
    });
    return $listener->sockport;
}

sub serve ($sock, $end) {
    # nginx sends all of a short request in one go.
    sysread $sock, my $request, 65536;
    frame($sock, 4, 0, 0, '');
    frame($sock, 4, 1, 0, '');
    if ($end eq 'refused') {
        frame($sock, 3, 0, 1, pack('N', 7));
    } elsif ($end eq 'short') {
        frame($sock, 1, 5, 1, "\x88\x0f\x0d\x015");
    } else {
        frame($sock, 1, 4, 1, "\x88\x0f\x10\x10application/grpc");
        frame($sock, 0, 0, 1, pack('CN', 0, 5) . 'hello');
    }
    select undef, undef, undef, 0.2;
    frame($sock, 7, 0, 0, pack('NN', 0, 2)) if $end eq 'goaway';
    frame($sock, 3, 0, 1, pack('N', 2)) if $end eq 'reset';
    frame($sock, 0, 8, 1, "\xff") if $end eq 'nonsense';
    select undef, undef, undef, 0.3 if $end ne 'close';
    close $sock;
}

sub frame ($sock, $type, $flags, $id, $payload) {
    syswrite $sock, substr(pack('N', length $payload), 1) . pack('CCN', $type, $flags, $id)
        . $payload;
}

1;
