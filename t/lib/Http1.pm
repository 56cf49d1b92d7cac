package Http1;

# A raw HTTP/1.1 client: requests can be left half sent, unread or reset, and
# many can be under way in one process.

use v5.36;

use Exporter 'import';
use IO::Select;
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use Sockets qw(write_all reset_socket);

our @EXPORT_OK = qw(request send_request parallel collect);

my $TIMEOUT = 10;

# ---- functions ------------------------------------------------------------

# headers => [Name => value, ...], body => bytes, chunked => 1 (the body goes
# out as one chunk), raw => bytes (instead of all that), version => '1.0',
# timeout => seconds, host => address to connect to.
sub request ($port, $method, $uri, %opt) {
    my $conn = send_request($port, $method, $uri, %opt);
    my $response = $conn->response($opt{timeout});
    $conn->close;
    return $response;
}

sub send_request ($port, $method, $uri, %opt) {
    my $conn = Http1->new($port, %opt);
    return $conn->send($method, $uri, %opt);
}

# $make->($i) returns the arguments of send_request(). All connections stand
# before the first byte goes out, so that the requests meet.
sub parallel ($count, $make, %opt) {
    my @calls = map { [$make->($_)] } 0 .. $count - 1;
    my @conns = map { Http1->new($_->[0], @$_[3 .. $#$_]) } @calls;
    for my $i (0 .. $#conns) {
        my (undef, @arguments) = @{ $calls[$i] };
        $conns[$i]->send(@arguments);
    }
    my @responses = collect(\@conns, $opt{timeout} // 60);
    $_->close for @conns;
    return @responses;
}

# The responses of many connections, in the order of the connections.
sub collect ($conns, $timeout = $TIMEOUT) {
    my $until = time + $timeout;
    $_->expect for @$conns;
    my $select = IO::Select->new;
    my %by_sock = map { $_->{sock} => $_ } @$conns;
    for my $conn (@$conns) {
        $select->add($conn->{sock}) if !$conn->finished;
    }
    while ($select->count && (my $left = $until - time) > 0) {
        for my $sock ($select->can_read($left)) {
            my $conn = $by_sock{$sock};
            $conn->absorb;
            $select->remove($sock) if $conn->finished;
        }
    }
    return map { $_->settle } @$conns;
}

# ---- connection -----------------------------------------------------------

sub new ($class, $port, %opt) {
    my $host = $opt{host} // '127.0.0.1';
    my $sock = IO::Socket::INET->new(
        PeerAddr => $host, PeerPort => $port, Proto => 'tcp', Timeout => $TIMEOUT,
    ) or die "cannot connect to $host:$port: $@\n";
    setsockopt($sock, IPPROTO_TCP, TCP_NODELAY, 1);
    binmode $sock;
    return bless { sock => $sock, buffer => '', sent => [] }, $class;
}

sub sock ($self) { return $self->{sock} }

# May be called again on a connection that is kept, before or after reading.
sub send ($self, $method, $uri, %opt) {
    push @{ $self->{sent} }, { method => $method, at => time };
    $self->write($opt{raw} // request_bytes($method, $uri, %opt));
    return $self;
}

sub write ($self, $bytes) { return write_all($self->{sock}, $bytes) }

sub response ($self, $timeout = undef) {
    return (collect([$self], $timeout // $TIMEOUT))[0];
}

sub close ($self) { CORE::close($self->{sock}) if $self->{sock} }

sub half_close ($self) { shutdown($self->{sock}, 1) }

sub reset ($self) { reset_socket($self->{sock}) }

sub request_bytes ($method, $uri, %opt) {
    my @headers = @{ $opt{headers} // [] };
    my $version = $opt{version} // '1.1';
    my ($text, %seen) = ("$method $uri HTTP/$version\r\n");
    while (my ($name, $value) = splice @headers, 0, 2) {
        $seen{ lc $name } = 1;
        $text .= "$name: $value\r\n";
    }
    $text .= "Host: localhost\r\n" if !$seen{host};
    $text .= "Connection: close\r\n" if !$seen{connection};
    return "$text\r\n" . ($opt{body} // '')
        if !defined $opt{body} || $seen{'content-length'}
        || $seen{'transfer-encoding'};
    return $text . body_bytes($opt{body}, $opt{chunked});
}

sub body_bytes ($body, $chunked) {
    return 'Content-Length: ' . length($body) . "\r\n\r\n$body" if !$chunked;
    my $chunk = $body eq '' ? '' : sprintf("%x\r\n%s\r\n", length $body, $body);
    return "Transfer-Encoding: chunked\r\n\r\n${chunk}0\r\n\r\n";
}

# ---- reading --------------------------------------------------------------

sub expect ($self) {
    my $sent = shift @{ $self->{sent} } // { method => 'GET', at => time };
    @$self{qw(request state got)} = ($sent, 'head', { raw => '', body => '' });
    @{ $self->{got} }{qw(headers trailers interim)} = ({}, {}, []);
    $self->advance;
}

sub finished ($self) {
    return $self->{state} eq 'done' || $self->{eof};
}

sub absorb ($self) {
    my $read = sysread($self->{sock}, $self->{buffer}, 1 << 16,
        length $self->{buffer});
    if (!$read) {
        $self->{eof} = 1;
        $self->{got}{error} = "$!" if !defined $read;
    }
    $self->advance;
}

my %STEP = (
    head => \&read_head, length => \&read_length, chunk => \&read_chunk,
    trailers => \&read_trailers, close => \&read_to_end,
);

sub advance ($self) {
    while (my $step = $STEP{ $self->{state} }) {
        last if !$step->($self);
    }
    $self->{took} = time - $self->{request}{at} if $self->finished;
}

sub take ($self, $bytes) {
    my $text = substr($self->{buffer}, 0, $bytes, '');
    $self->{got}{raw} .= $text;
    return $text;
}

sub take_through ($self, $mark) {
    my $at = index($self->{buffer}, $mark);
    return $at < 0 ? undef : $self->take($at + length $mark);
}

sub read_head ($self) {
    my $head = $self->take_through("\r\n\r\n") // return 0;
    my ($first, @lines) = split /\r\n/, $head;
    my (undef, $status, $reason) = split / /, $first, 3;
    if (($status // '') =~ /^1\d\d$/ && $status != 101) {
        push @{ $self->{got}{interim} }, $status;
        return 1;
    }
    my $got = $self->{got};
    @$got{qw(status reason headers)} = ($status, $reason, parse_fields(@lines));
    $self->{state} = $self->body_state($status // 0, $got->{headers});
    return 1;
}

sub body_state ($self, $status, $headers) {
    return 'done'
        if $self->{request}{method} eq 'HEAD' || $status =~ /^(?:204|304)$/;
    return 'chunk' if lc($headers->{'transfer-encoding'}[0] // '') eq 'chunked';
    return 'close' if !defined $headers->{'content-length'};
    $self->{wanted} = $headers->{'content-length'}[0];
    return 'length';
}

sub read_length ($self) {
    my $part = $self->take($self->{wanted});
    $self->{got}{body} .= $part;
    $self->{wanted} -= length $part;
    return 0 if $self->{wanted};
    $self->{state} = 'done';
    return 1;
}

sub read_chunk ($self) {
    my ($line, $hex) = $self->{buffer} =~ /^(([0-9a-fA-F]+)[^\r\n]*\r\n)/
        or return 0;
    my $size = hex $hex;
    if (!$size) {
        $self->take(length $line);
        $self->{state} = 'trailers';
        return 1;
    }
    return 0 if length $self->{buffer} < length($line) + $size + 2;
    $self->take(length $line);
    $self->{got}{body} .= $self->take($size);
    $self->take(2);
    return 1;
}

sub read_trailers ($self) {
    if ($self->{buffer} =~ /^\r\n/) {
        $self->take(2);
        $self->{state} = 'done';
        return 1;
    }
    my $block = $self->take_through("\r\n\r\n") // return 0;
    $self->{got}{trailers} = parse_fields(split /\r\n/, $block);
    $self->{state} = 'done';
    return 1;
}

sub read_to_end ($self) {
    $self->{got}{body} .= $self->take(length $self->{buffer});
    return 0 if !$self->{eof} || $self->{got}{error};
    $self->{state} = 'done';
    return 1;
}

sub parse_fields (@lines) {
    my %fields;
    for my $line (@lines) {
        my ($name, $value) = $line =~ /^([^:]+):[ \t]*(.*?)[ \t]*$/ or next;
        push @{ $fields{ lc $name } }, $value;
    }
    return \%fields;
}

sub settle ($self) {
    my $got = $self->{got};
    $got->{complete} = $self->{state} eq 'done' ? 1 : 0;
    $got->{timeout}  = $self->finished ? 0 : 1;
    $got->{time}     = $self->{took} // time - $self->{request}{at};
    $got->{raw} .= $self->{buffer} if !$got->{complete};
    return $got;
}

1;
