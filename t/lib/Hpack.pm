package Hpack;

# Header compression of HTTP/2 (RFC 7541): writes plain literals, reads all.

use v5.36;

my @STATIC = (
    [':authority', ''], [':method', 'GET'], [':method', 'POST'], [':path', '/'],
    [':path', '/index.html'], [':scheme', 'http'], [':scheme', 'https'],
    (map { [':status', $_] } qw(200 204 206 304 400 404 500)),
    ['accept-charset', ''], ['accept-encoding', 'gzip, deflate'],
    (map { [$_, ''] } qw(accept-language accept-ranges accept
        access-control-allow-origin age allow authorization cache-control
        content-disposition content-encoding content-language content-length
        content-location content-range content-type cookie date etag expect
        expires from host if-match if-modified-since if-none-match if-range
        if-unmodified-since last-modified link location max-forwards
        proxy-authenticate proxy-authorization range referer refresh retry-after
        server set-cookie strict-transport-security transfer-encoding
        user-agent vary via www-authenticate)),
);

# Bits per symbol, as "bits x repetitions". The code is canonical: the bits
# themselves follow from their number.
my @LENGTHS = map { my ($bits, $times) = split /x/; ($bits) x ($times // 1) } qw(
    13 23 28x7 24 30 28x2 30 28x8 30 28x9
    6 10x2 12 13 6 8 11 10x2 8 11 8 6x3 5x3 6x7 7 8 15 6 12 10
    13 6 7x22 8 7 8 13 19 13 14 6
    15 5 6 5 6 5 6x3 5 7x2 6x3 5 6 7 6 5x2 6 7x5 15 11 14 13 28
    20 22 20x2 22x3 23 22 23x5 24 23 24x2 22 23 24 23x4 21 22 23 22 23x2 24
    22 21 20 22x2 23x2 21 23 22x2 24 21 22 23x2 21x2 22 21 23 22 23x2 20 22x3
    23 22x2 23 26x2 20 19 22 23 22 25 26x3 27x2 26 24 25 19 21 26 27x2 26 27
    24 21x2 26x2 28 27x3 20 24 20 21 22 21x2 23 22x2 25x2 24x2 26 23 26 27
    26x2 27x5 28 27x5 26 30
);

my %SYMBOL = huffman_codes();

sub huffman_codes {
    my ($code, $width, %symbol) = (0, 0);
    for my $symbol (sort { $LENGTHS[$a] <=> $LENGTHS[$b] || $a <=> $b } 0 .. 256) {
        $code <<= $LENGTHS[$symbol] - $width;
        $width = $LENGTHS[$symbol];
        $symbol{ sprintf '%0*b', $width, $code++ } = $symbol;
    }
    return %symbol;
}

sub new ($class) {
    return bless { dynamic => [], limit => 4096 }, $class;
}

# ---- writing --------------------------------------------------------------

# A flat list of names and values.
sub encode (@fields) {
    my $block = '';
    while (my ($name, $value) = splice @fields, 0, 2) {
        $block .= "\0" . encode_string(lc $name) . encode_string($value);
    }
    return $block;
}

sub encode_string ($text) {
    return encode_integer(length $text, 7) . $text;
}

sub encode_integer ($value, $bits) {
    my $max = (1 << $bits) - 1;
    return chr $value if $value < $max;
    my $bytes = chr $max;
    for ($value -= $max; $value >= 128; $value >>= 7) {
        $bytes .= chr($value & 127 | 128);
    }
    return $bytes . chr $value;
}

# ---- reading --------------------------------------------------------------

# [[name, value], ...]
sub decode ($self, $block) {
    my ($at, @fields) = (0);
    while ($at < length $block) {
        my $first = ord substr($block, $at, 1);
        if ($first & 0x80) {
            push @fields, $self->entry(integer(\$block, \$at, 7));
        } elsif (($first & 0xe0) == 0x20) {
            $self->{limit} = integer(\$block, \$at, 5);
            $self->evict;
        } else {
            my $keep = $first & 0x40;
            push @fields, $self->literal(\$block, \$at, $keep ? 6 : 4);
            $self->remember($fields[-1]) if $keep;
        }
    }
    return \@fields;
}

sub literal ($self, $block, $at, $bits) {
    my $index = integer($block, $at, $bits);
    my $name = $index ? $self->entry($index)->[0] : string($block, $at);
    return [$name, string($block, $at)];
}

sub entry ($self, $index) {
    my $field = $index <= @STATIC ? $STATIC[$index - 1]
        : $self->{dynamic}[$index - @STATIC - 1];
    return $field // die "HPACK: no entry $index\n";
}

sub remember ($self, $field) {
    unshift @{ $self->{dynamic} }, $field;
    $self->evict;
}

sub evict ($self) {
    my $size = 0;
    for my $i (0 .. $#{ $self->{dynamic} }) {
        my ($name, $value) = @{ $self->{dynamic}[$i] };
        $size += 32 + length($name) + length $value;
        next if $size <= $self->{limit};
        splice @{ $self->{dynamic} }, $i;
        last;
    }
}

sub integer ($block, $at, $bits) {
    my $max = (1 << $bits) - 1;
    my $value = ord(substr($$block, $$at++, 1)) & $max;
    return $value if $value < $max;
    for (my $shift = 0;; $shift += 7) {
        my $byte = ord substr($$block, $$at++, 1);
        $value += ($byte & 127) << $shift;
        return $value if $byte < 128;
    }
}

sub string ($block, $at) {
    my $packed = ord(substr($$block, $$at, 1)) & 0x80;
    my $length = integer($block, $at, 7);
    my $text = substr($$block, $$at, $length);
    $$at += $length;
    return $packed ? unpack_huffman($text) : $text;
}

# What remains at the end is padding.
sub unpack_huffman ($bytes) {
    my ($text, $code) = ('', '');
    for my $bit (split //, unpack 'B*', $bytes) {
        $code .= $bit;
        my $symbol = $SYMBOL{$code} // next;
        $text .= chr $symbol;
        $code = '';
    }
    return $text;
}

1;
