package Http2;

# A small HTTP/2 client with prior knowledge, for streams that are left half
# sent, reset or unread. Debian's Protocol::HTTP2 sends requests only whole, has
# no call that resets a stream, opens windows by itself and mixes trailers with
# headers.
#
#   my $h2 = Http2->new($port);
#   my $response = $h2->request('POST', '/x', headers => [...], body => '...');
#
#   my $id = $h2->send('POST', '/x', headers => [...], end => 0);
#   $h2->data($id, 'part', 0); $h2->data($id, 'rest', 1);
#   $h2->rst($id);
#   $response = $h2->response($id);

use v5.36;

use IO::Select;
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use Hpack;
use Sockets qw(write_all reset_socket);

use constant {
    DATA => 0, HEADERS => 1, RST_STREAM => 3, SETTINGS => 4, PING => 6,
    GOAWAY => 7, WINDOW_UPDATE => 8, CONTINUATION => 9,
    END_STREAM => 1, ACK => 1, END_HEADERS => 4, PADDED => 8, PRIORITY => 32,
    CANCEL => 8, INITIAL_WINDOW_SIZE => 4, ENABLE_PUSH => 2,
};

my $TIMEOUT   = 10;
my $MAX_FRAME = 16384;

# window => bytes the server may send per stream; with it the client never
# asks for more, which makes it a slow reader.
sub new ($class, $port, %opt) {
    my $sock = IO::Socket::INET->new(
        PeerAddr => $opt{host} // '127.0.0.1', PeerPort => $port,
        Proto => 'tcp', Timeout => $TIMEOUT,
    ) or die "cannot connect to port $port: $@\n";
    setsockopt($sock, IPPROTO_TCP, TCP_NODELAY, 1);
    return $class->on($sock, %opt);
}

# On a connection that was made elsewhere.
sub on ($class, $sock, %opt) {
    my $self = bless {
        sock => $sock, buffer => '', hpack => Hpack->new, streams => {},
        next_id => 1, window => 65535, stream_window => 65535,
        slow => defined $opt{window},
    }, $class;
    my $settings = pack('nN', ENABLE_PUSH, 0)
        . pack('nN', INITIAL_WINDOW_SIZE, $opt{window} // 1 << 20);
    $self->write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    $self->frame(SETTINGS, 0, 0, $settings);
    return $self;
}

# ---- requests -------------------------------------------------------------

sub request ($self, $method, $path, %opt) {
    return $self->response($self->send($method, $path, %opt), $opt{timeout});
}

# Returns the stream's id. end => 0 leaves the stream open for data().
sub send ($self, $method, $path, %opt) {
    my $id = $self->{next_id};
    $self->{next_id} += 2;
    $self->{streams}{$id} = {
        headers => {}, trailers => {}, body => '', interim => [], at => time,
        window => $self->{stream_window},
    };
    my $body = $opt{body} // '';
    my $more = $body ne '' || exists $opt{end} && !$opt{end};
    $self->frame(HEADERS, END_HEADERS | ($more ? 0 : END_STREAM), $id,
        Hpack::encode(':method' => $method, ':scheme' => 'http',
            ':path' => $path, ':authority' => $opt{authority} // 'localhost',
            lower_names(@{ $opt{headers} // [] })));
    $self->data($id, $body, $opt{end} // 1) if $body ne '';
    return $id;
}

# As HTTP/2 wants them.
sub lower_names (@fields) {
    return map { $_ % 2 ? $fields[$_] : lc $fields[$_] } 0 .. $#fields;
}

sub data ($self, $id, $bytes, $end = 0) {
    my $stream = $self->{streams}{$id};
    do {
        my $room = least($MAX_FRAME, $self->{window}, $stream->{window});
        my $part = substr($bytes, 0, $room < 0 ? 0 : $room, '');
        return 0 if $part eq '' && $bytes ne '' && !$self->more($stream);
        if ($part ne '' || $bytes eq '') {
            $self->{window} -= length $part;
            $stream->{window} -= length $part;
            my $last = $end && $bytes eq '';
            $self->frame(DATA, $last ? END_STREAM : 0, $id, $part);
        }
    } while ($bytes ne '');
    return 1;
}

# Waits for room to send; false once nobody wants the rest.
sub more ($self, $stream) {
    return !defined $stream->{reset} && $self->step(time + $TIMEOUT);
}

sub least (@numbers) {
    return (sort { $a <=> $b } @numbers)[0];
}

sub rst ($self, $id, $code = CANCEL) {
    $self->frame(RST_STREAM, 0, $id, pack 'N', $code);
}

sub goaway ($self) {
    $self->frame(GOAWAY, 0, 0, pack 'NN', 0, 0);
}

sub close ($self) { CORE::close($self->{sock}) }

sub reset ($self) { reset_socket($self->{sock}) }

# ---- responses ------------------------------------------------------------

sub response ($self, $id, $timeout = undef) {
    my $stream = $self->{streams}{$id};
    my $until = time + ($timeout // $TIMEOUT);
    while (!$stream->{complete} && !defined $stream->{reset}) {
        last if !$self->step($until);
    }
    $stream->{complete} //= 0;
    $stream->{time}    //= time - $stream->{at};
    $stream->{goaway}  = $self->{goaway};
    $stream->{timeout} = !$stream->{complete} && !defined $stream->{reset}
        && !$self->{eof} ? 1 : 0;
    return $stream;
}

my %ON = (
    DATA, \&on_data, HEADERS, \&on_headers, CONTINUATION, \&on_continuation,
    RST_STREAM, \&on_rst, SETTINGS, \&on_settings, PING, \&on_ping,
    GOAWAY, \&on_goaway, WINDOW_UPDATE, \&on_window,
);

# Handles one frame; false if none came in time or the connection has ended.
sub step ($self, $until) {
    $self->fill(9, $until) or return 0;
    my ($high, $low, $type, $flags, $id) = unpack 'CnCCN', $self->{buffer};
    my $length = $high << 16 | $low;
    $self->fill(9 + $length, $until) or return 0;
    my $payload = substr($self->{buffer}, 0, 9 + $length, '');
    substr($payload, 0, 9, '');

    my $handler = $ON{$type} or return 1;
    $handler->($self, $id & 0x7fffffff, $flags, $payload);
    return 1;
}

sub fill ($self, $bytes, $until) {
    my $select = IO::Select->new($self->{sock});
    while (length $self->{buffer} < $bytes) {
        my $left = $until - time;
        return 0 if $self->{eof} || $left <= 0 || !$select->can_read($left);
        my $got = sysread($self->{sock}, $self->{buffer}, 1 << 16,
            length $self->{buffer});
        $self->{eof} = 1 if !$got;
    }
    return 1;
}

sub on_data ($self, $id, $flags, $payload) {
    my $size = length $payload;
    my $stream = $self->{streams}{$id} or return;
    $stream->{body} .= unpad($payload, $flags);
    $self->give_room($id, $size) if $size && !$self->{slow};
    finish($stream) if $flags & END_STREAM;
}

sub give_room ($self, $id, $size) {
    $self->frame(WINDOW_UPDATE, 0, $_, pack 'N', $size) for 0, $id;
}

sub on_headers ($self, $id, $flags, $payload) {
    $payload = unpad($payload, $flags);
    substr($payload, 0, 5, '') if $flags & PRIORITY;
    $self->{block} = { text => '', end => $flags & END_STREAM };
    $self->on_continuation($id, $flags, $payload);
}

sub on_continuation ($self, $id, $flags, $payload) {
    my $block = $self->{block};
    $block->{text} .= $payload;
    return if !($flags & END_HEADERS);

    # Decoded even for streams nobody knows: the table is the connection's.
    my $fields = $self->{hpack}->decode($block->{text});
    my $stream = $self->{streams}{$id} or return;
    take_fields($stream, $fields);
    finish($stream) if $block->{end};
}

sub take_fields ($stream, $fields) {
    my %got;
    push @{ $got{ $_->[0] } }, $_->[1] for @$fields;
    my $status = delete $got{':status'};
    if (!$status) {
        $stream->{trailers} = \%got;
    } elsif ($status->[0] =~ /^1/) {
        push @{ $stream->{interim} }, $status->[0];
    } else {
        @$stream{qw(status headers)} = ($status->[0], \%got);
    }
}

sub finish ($stream) {
    $stream->{complete} = 1;
    $stream->{time} = time - $stream->{at};
}

sub on_rst ($self, $id, $flags, $payload) {
    my $stream = $self->{streams}{$id} or return;
    $stream->{reset} = unpack 'N', $payload if !$stream->{complete};
}

sub on_settings ($self, $id, $flags, $payload) {
    return if $flags & ACK;
    my %settings = unpack '(nN)*', $payload;
    if (defined(my $size = $settings{ +INITIAL_WINDOW_SIZE })) {
        $_->{window} += $size - $self->{stream_window}
            for values %{ $self->{streams} };
        $self->{stream_window} = $size;
    }
    $self->frame(SETTINGS, ACK, 0, '');
}

sub on_ping ($self, $id, $flags, $payload) {
    $self->frame(PING, ACK, 0, $payload) if !($flags & ACK);
}

sub on_goaway ($self, $id, $flags, $payload) {
    my ($last, $code) = unpack 'NN', $payload;
    $self->{goaway} = { last => $last, code => $code };
}

sub on_window ($self, $id, $flags, $payload) {
    my $target = $id ? $self->{streams}{$id} : $self;
    $target->{window} += unpack('N', $payload) & 0x7fffffff if $target;
}

sub unpad ($payload, $flags) {
    return $payload if !($flags & PADDED);
    my $padding = ord substr($payload, 0, 1, '');
    return substr($payload, 0, length($payload) - $padding);
}

# ---- wire -----------------------------------------------------------------

sub frame ($self, $type, $flags, $id, $payload) {
    my $length = length $payload;
    return $self->write(
        pack('CnCCN', $length >> 16, $length & 0xffff, $type, $flags, $id)
        . $payload);
}

sub write ($self, $bytes) { return write_all($self->{sock}, $bytes) }

1;
