#!/usr/bin/env perl

# The application of the chaos runs. Whatever it does is in the ledger first,
# on the disk, so that a kill at any moment leaves no execution uncounted.
#
#   upstream.pl --port N --ledger FILE --name A1 --parent PID
#
# Lines of the ledger, with id= and key= of the run:
#
#   what=run      a request has arrived; does=executes|refuses|
#                 releases|unread
#   what=answer   the answer, before its first byte goes out; sha1 of its body
#   what=end      the last byte of it went out, or how=died as it was wished
#   what=cut      the other side hung up before that
#
# How a run goes is in the request header X-Do: sleep=1.5 size=N chunked=1
# pieces=N refuse=500|word status=502 discard=1 rst=1
# die=unread|executed|header|body

use v5.36;

use Cwd qw(abs_path);
use Digest::SHA qw(sha1_hex);
use File::Basename qw(dirname);
use Getopt::Long qw(GetOptions);
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);

use lib dirname(abs_path(__FILE__));
use Lines;
use Workload qw(response_body);

my %opt;
GetOptions(\%opt, 'port=i', 'ledger=s', 'name=s', 'parent=i')
    && $opt{port} && $opt{ledger} && $opt{name}
    or die "usage: upstream.pl --port N --ledger FILE --name NAME [--parent PID]\n";

my $PIECE_GAP = 0.08;

my $write_line = append_to($opt{ledger}, sync => 1);
my $runs = 0;
my (%conns, @timers);

$SIG{PIPE} = 'IGNORE';
main();

# ---- loop -----------------------------------------------------------------

sub main {
    my $listener = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => $opt{port}, Proto => 'tcp',
        Listen => 1024, ReuseAddr => 1, Blocking => 0,
    ) or die "cannot listen on $opt{port}: $@\n";

    while (!$opt{parent} || getppid() == $opt{parent}) {
        my ($readable, $writable) = wait_for_events($listener);
        take_in($listener) if vec($readable, fileno $listener, 1);
        for my $fd (keys %conns) {
            my $conn = $conns{$fd};
            receive($conn) if vec($readable, $fd, 1);
            flush_out($conn) if vec($writable, $fd, 1) && $conn->{sock};
        }
        run_timers();
    }
}

sub wait_for_events ($listener) {
    my ($readable, $writable) = ('', '');
    vec($readable, fileno $listener, 1) = 1;
    for my $fd (keys %conns) {
        vec($readable, $fd, 1) = 1;
        vec($writable, $fd, 1) = 1 if $conns{$fd}{out} ne '';
    }
    my $timeout = @timers ? $timers[0]{at} - now() : 0.5;
    $timeout = $timeout < 0 ? 0 : $timeout > 0.5 ? 0.5 : $timeout;
    my $found = select($readable, $writable, undef, $timeout);
    return $found > 0 ? ($readable, $writable) : ('', '');
}

sub take_in ($listener) {
    while (my $sock = $listener->accept) {
        $sock->blocking(0);
        setsockopt($sock, IPPROTO_TCP, TCP_NODELAY, 1);
        $conns{ fileno $sock } = { sock => $sock, in => '', out => '', peer => $sock->peerport };
    }
}

sub receive ($conn) {
    my $read = sysread($conn->{sock}, $conn->{in}, 1 << 16, length $conn->{in});
    return if !defined $read && $!{EAGAIN};
    return hung_up($conn) if !$read;
    start_request($conn) if !$conn->{run};
}

# The application goes on with what it has begun, as applications do.
sub hung_up ($conn) {
    my $run = $conn->{run};
    say_line($run, what => 'cut') if $run && !$run->{over};
    $run->{over} = 1 if $run;
    drop($conn);
}

sub drop ($conn) {
    delete $conns{ fileno $conn->{sock} };
    close $conn->{sock};
    $conn->{sock} = undef;
}

sub after ($seconds, $action) {
    @timers = sort { $a->{at} <=> $b->{at} }
        @timers, { at => now() + $seconds, action => $action };
}

sub run_timers {
    while (@timers && $timers[0]{at} <= now()) {
        (shift @timers)->{action}->();
    }
}

# ---- a run ----------------------------------------------------------------

sub start_request ($conn) {
    my $end = index($conn->{in}, "\r\n\r\n");
    return if $end < 0;
    my %header = map { /^([^:]+):\s*(.*)$/ ? (lc $1, $2) : () }
        split /\r\n/, substr($conn->{in}, 0, $end);
    my %do = map { split /=/, $_, 2 } split /&/, $header{'x-do'} // '';
    my $unread = ($do{die} // '') eq 'unread';
    my $length = $header{'content-length'} // 0;
    return if !$unread && length($conn->{in}) < $end + 4 + $length;

    my $body = substr($conn->{in}, $end + 4, $length);
    $conn->{in} = '';
    my $run = begin($conn, \%header, \%do, $body);
    return leave($conn) if $unread;
    after($do{sleep} // 0, sub { answer($conn, $run) });
}

sub begin ($conn, $header, $do, $body) {
    my $run = $conn->{run} = {
        id => "$opt{name}." . ++$runs, do => $do,
        key => $header->{'idempotency-key'}, body => sha1_hex($body),
    };
    my $does = ($do->{die} // '') eq 'unread' ? 'unread'
        : !$do->{refuse} ? 'executes' : $do->{refuse} eq 'word' ? 'releases' : 'refuses';
    say_line($run, what => 'run', does => $does, body => $run->{body}, port => $conn->{peer},
        map { ($_ => $header->{"x-$_"}) } qw(attempt token life worker route do));
    return $run;
}

sub say_line ($run, %fields) {
    $write_line->(id => $run->{id}, key => $run->{key}, app => $opt{name}, %fields);
}

sub leave ($conn) {
    my $run = $conn->{run};
    say_line($run, what => 'end', how => 'died') if !$run->{over};
    $run->{over} = 1;
    setsockopt($conn->{sock}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0)) if $run->{do}{rst};
    drop($conn);
}

sub answer ($conn, $run) {
    return if !$conn->{sock};
    my $do = $run->{do};
    my $die = $do->{die} // '';
    return leave($conn) if $die eq 'executed';

    my ($status, @headers) = status_of($run);
    my $body = response_body(@$run{qw(id key body)}, $do->{size} // 0);
    say_line($run, what => 'answer', status => $status, sha => sha1_hex($body));
    my $head = head_of($status, length $body, $do->{chunked},
        "X-Execution: $run->{id}", "Location: /orders/$run->{id}", @headers);

    return send_part($conn, substr($head, 0, length($head) / 2)) if $die eq 'header';
    return send_part($conn, $head . substr($body, 0, length($body) / 2)) if $die eq 'body';
    send_pieces($conn, pieces_of($head, $body, $do));
}

sub status_of ($run) {
    my $do = $run->{do};
    my $refuse = $do->{refuse} // '';
    return (502, 'X-Accel-Idempotency: release') if $refuse eq 'word';
    return $refuse if $refuse;
    return $do->{status} if $do->{status};
    return (201, $do->{discard} ? 'X-Accel-Idempotency: discard' : ());
}

sub head_of ($status, $length, $chunked, @headers) {
    return join "\r\n", "HTTP/1.1 $status Whatever", 'Content-Type: application/json',
        $chunked ? 'Transfer-Encoding: chunked' : "Content-Length: $length",
        @headers, 'Connection: close', '', '';
}

sub pieces_of ($head, $body, $do) {
    my $size = $do->{pieces} ? int(length($body) / $do->{pieces}) + 1 : length $body;
    my @pieces = unpack "(a$size)*", $body;
    if ($do->{chunked}) {
        $_ = sprintf("%x\r\n%s\r\n", length $_, $_) for @pieces;
        $pieces[-1] .= "0\r\n\r\n";
    }
    $pieces[0] = $head . $pieces[0];
    return @pieces;
}

sub send_part ($conn, $bytes) {
    $conn->{dies} = 1;
    $conn->{out} = $bytes;
    flush_out($conn);
}

sub send_pieces ($conn, $piece, @rest) {
    return if !$conn->{sock};
    $conn->{more} = @rest;
    $conn->{out} .= $piece;
    flush_out($conn);
    after($PIECE_GAP, sub { send_pieces($conn, @rest) }) if @rest;
}

sub flush_out ($conn) {
    if ($conn->{out} ne '') {
        my $sent = syswrite($conn->{sock}, $conn->{out});
        return if !defined $sent && $!{EAGAIN};
        return hung_up($conn) if !defined $sent;
        substr($conn->{out}, 0, $sent, '');
    }
    return if $conn->{out} ne '' || $conn->{more};
    return leave($conn) if $conn->{dies};
    say_line($conn->{run}, what => 'end', how => 'answered');
    $conn->{run}{over} = 1;
    drop($conn);
}
