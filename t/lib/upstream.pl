#!/usr/bin/env perl

# The application behind nginx in tests and in the demo. It keeps a ledger of
# what it really executed, so that "at most once" can be counted instead of
# believed, and misbehaves exactly as the request asks.
#
#   upstream.pl --port N --ledger FILE [--host ADDR] [--parent PID]
#               [--ready FILE] [--quiet]
#
# N speaks HTTP/1.1, N+1 FastCGI, N+2 SCGI, N+3 uwsgi.
#
# Behaviour comes from the query string or from the request header
# X-Behaviour, which is written the same way and wins. The header exists since
# the query string belongs to a request's identity: a retry that has to behave
# differently cannot say so there.
#
#   status=422      h=Name:Value    type=text/plain   nocontenttype=1  lm=1
#   body=text       size=100000     echo=1            dump=1           gone=1
#   chunked=1       trailer=N:V     nolength=1        pieces=5&gap=0.2
#   presleep=0.5    (ledger line)   barrier=FILE      sleep=0.5        early=1
#   die=read|before|header          truncate=1        rst=1
#   bad=1 (no status line)          bad=header (broken header line)
#   bad=chunk (with chunked=1: no chunk after the first half)
#
# GET /ledger, GET /count[?uri=/x][&key=K] and POST /reset are about the
# ledger and never count as executions.

use v5.36;

use Digest::SHA qw(sha1_hex);
use Fcntl qw(:DEFAULT :flock :seek);
use Getopt::Long qw(GetOptions);
use IO::Select;
use IO::Socket::INET;
use POSIX qw(WNOHANG strftime);
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

my %opt = (host => '127.0.0.1');
GetOptions(\%opt, 'port=i', 'ledger=s', 'host=s', 'parent=i', 'ready=s', 'quiet')
    && $opt{port} && $opt{ledger}
    or die "usage: upstream.pl --port N --ledger FILE"
        . " [--host ADDR] [--parent PID] [--ready FILE] [--quiet]\n";

my $BARRIER_SECONDS = 20;
my $PIECE_BYTES     = 16384;
my $SERVER_PID      = $$;

my %REASON = (
    200 => 'OK', 201 => 'Created', 202 => 'Accepted', 204 => 'No Content',
    206 => 'Partial Content', 301 => 'Moved Permanently', 302 => 'Found',
    303 => 'See Other', 304 => 'Not Modified', 400 => 'Bad Request',
    401 => 'Unauthorized', 403 => 'Forbidden', 404 => 'Not Found',
    409 => 'Conflict', 410 => 'Gone', 422 => 'Unprocessable Content',
    425 => 'Too Early', 429 => 'Too Many Requests',
    500 => 'Internal Server Error', 502 => 'Bad Gateway',
    503 => 'Service Unavailable', 504 => 'Gateway Timeout',
);

$| = 1;
$SIG{PIPE} = 'IGNORE';
main();

# ---- server ---------------------------------------------------------------

sub main {
    my @listeners = map { listen_on($_) } 0 .. 3;
    my @serve = (\&serve_http, \&serve_fastcgi, \&serve_scgi, \&serve_uwsgi);
    my %serve_of = map { fileno($listeners[$_]) => $serve[$_] } 0 .. 3;

    close open_ledger();
    tell_ready();
    say_loud("http $opt{port}, fastcgi, scgi, uwsgi on the next three ports");
    accept_loop(\@listeners, \%serve_of);
    exit 0;
}

# A file and not a probe of the port, which somebody else may hold.
sub tell_ready {
    return if !defined $opt{ready};
    open my $file, '>', $opt{ready} or die "$opt{ready}: $!\n";
}

sub accept_loop ($listeners, $serve_of) {
    my ($stop, %children);
    local $SIG{TERM} = local $SIG{INT} = local $SIG{HUP} = sub { $stop = 1 };
    local $SIG{CHLD} = sub { };    # only to interrupt select()

    my $select = IO::Select->new(@$listeners);
    while (!$stop && !orphaned()) {
        for my $listener ($select->can_read(0.25)) {
            my $sock = $listener->accept or next;
            my $pid = start_child($sock, $listeners,
                $serve_of->{ fileno $listener });
            $children{$pid} = 1 if $pid;
        }
        while ((my $pid = waitpid(-1, WNOHANG)) > 0) {
            delete $children{$pid};
        }
    }
    kill TERM => keys %children;
}

sub start_child ($sock, $listeners, $serve) {
    my $pid = fork;
    warn "fork: $!\n" if !defined $pid;
    return $pid if !defined $pid || $pid;

    $SIG{$_} = 'DEFAULT' for qw(TERM INT HUP CHLD);
    close $_ for @$listeners;
    setsockopt($sock, IPPROTO_TCP, TCP_NODELAY, 1);
    my $conn = { sock => $sock, buffer => '' };
    eval { $serve->($conn); 1 } or complain($@);
    hang_up($conn);
    # No destructors or END blocks: they belong to the parent.
    POSIX::_exit(0);
}

sub listen_on ($offset) {
    my $port = $opt{port} + $offset;
    return IO::Socket::INET->new(
        LocalAddr => $opt{host}, LocalPort => $port, Proto => 'tcp',
        Listen => 4096, ReuseAddr => 1, Blocking => 1,
    ) || die "cannot listen on $opt{host}:$port: $@\n";
}

sub orphaned {
    return $opt{parent} && getppid() != $opt{parent};
}

# A server killed the hard way cannot stop its children, so they look.
sub check_server {
    die "gone\n" if getppid() != $SERVER_PID;
}

sub say_loud ($text) {
    print "upstream: $text\n" if !$opt{quiet};
}

sub complain ($error) {
    print STDERR "upstream: $error" if $error !~ /^(?:gone|leave)$/;
}

# ---- connection -----------------------------------------------------------

sub leave ($conn, $reset = 0) {
    $conn->{reset} = $reset;
    die "leave\n";
}

sub hang_up ($conn) {
    my $sock = $conn->{sock};
    if ($conn->{reset}) {
        setsockopt($sock, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    } else {
        # With unread input a bare close() would be a reset; the peer has to
        # see the end of the stream first.
        shutdown($sock, 1);
    }
    close $sock;
}

sub fill ($conn) {
    my $select = IO::Select->new($conn->{sock});
    check_server() until $select->can_read(0.5);
    my $got = sysread($conn->{sock}, $conn->{buffer}, 65536,
        length $conn->{buffer});
    die "gone\n" if !$got;
}

sub take ($conn, $bytes) {
    fill($conn) while length $conn->{buffer} < $bytes;
    return substr($conn->{buffer}, 0, $bytes, '');
}

sub take_through ($conn, $mark) {
    my $at;
    fill($conn) while ($at = index($conn->{buffer}, $mark)) < 0;
    return substr($conn->{buffer}, 0, $at + length $mark, '');
}

sub put ($conn, $bytes) {
    my $done = 0;
    while ($done < length $bytes) {
        my $sent = syswrite($conn->{sock}, $bytes, length($bytes) - $done, $done);
        die "gone\n" if !defined $sent;
        $done += $sent;
    }
}

sub nap ($seconds) {
    my $until = time + ($seconds || 0);
    while ((my $left = $until - time) > 0) {
        select(undef, undef, undef, $left < 0.5 ? $left : 0.5);
        check_server();
    }
}

# ---- HTTP/1.1 -------------------------------------------------------------

sub serve_http ($conn) {
    while (1) {
        my $req = parse_http_head(take_through($conn, "\r\n\r\n"));
        $req->{read_body} = sub { read_http_body($conn, $req) };
        $req->{put}       = sub ($bytes) { put($conn, $bytes) };
        handle($conn, $req);
        return if !$req->{keep};
    }
}

sub parse_http_head ($text) {
    my ($first, @lines) = split /\r\n/, $text;
    my ($method, $uri, $version) = split / /, $first;
    my @headers = map { /^([^:]+):[ \t]*(.*?)[ \t]*$/ ? [lc $1, $2] : () } @lines;
    my $req = {
        method => $method, uri => $uri // '/', headers => \@headers,
        status_prefix => 'HTTP/1.1 ', can_chunk => 1,
    };
    my $connection = lc(header($req, 'connection') // '');
    $req->{keep} = ($version // '') eq 'HTTP/1.1'
        ? $connection !~ /close/ : $connection =~ /keep-alive/;
    return $req;
}

sub read_http_body ($conn, $req) {
    put($conn, "HTTP/1.1 100 Continue\r\n\r\n")
        if lc(header($req, 'expect') // '') eq '100-continue';
    return read_chunked($conn)
        if lc(header($req, 'transfer-encoding') // '') eq 'chunked';
    return take($conn, header($req, 'content-length') || 0);
}

sub read_chunked ($conn) {
    my $body = '';
    while (my $size = hex(take_through($conn, "\r\n") =~ s/[;\r].*//sr)) {
        $body .= take($conn, $size);
        take($conn, 2);
    }
    while (take_through($conn, "\r\n") ne "\r\n") { }
    return $body;
}

# ---- FastCGI, SCGI, uwsgi -------------------------------------------------

sub serve_fastcgi ($conn) {
    while (1) {
        my ($id, $flags) = fastcgi_begin($conn);
        my $req = cgi_request(fastcgi_params(fastcgi_stream($conn, 4)));
        $req->{keep}      = $flags & 1;
        $req->{read_body} = sub { fastcgi_stream($conn, 5) };
        $req->{put}       = sub ($bytes) { fastcgi_put($conn, 6, $id, $bytes) };
        $req->{finish}    = sub {
            fastcgi_record($conn, 6, $id, '');
            fastcgi_record($conn, 3, $id, pack('NCx3', 0, 0));
        };
        handle($conn, $req);
        return if !$req->{keep};
    }
}

sub fastcgi_read ($conn) {
    my (undef, $type, $id, $length, $padding) = unpack 'CCnnCx', take($conn, 8);
    my $content = take($conn, $length);
    take($conn, $padding);
    return ($type, $id, $content);
}

sub fastcgi_begin ($conn) {
    while (1) {
        my ($type, $id, $content) = fastcgi_read($conn);
        next if $type != 1;
        my (undef, $flags) = unpack 'nC', $content;
        return ($id, $flags);
    }
}

sub fastcgi_stream ($conn, $wanted) {
    my $data = '';
    while (1) {
        my ($type, undef, $content) = fastcgi_read($conn);
        die "gone\n" if $type == 2;
        next if $type != $wanted;
        return $data if $content eq '';
        $data .= $content;
    }
}

sub fastcgi_params ($data) {
    my (%params, $at);
    my $length = sub {
        my $first = ord substr($data, $at, 1);
        my $wide = $first & 0x80;
        my $value = $wide ? unpack('N', substr($data, $at, 4)) & 0x7fffffff : $first;
        $at += $wide ? 4 : 1;
        return $value;
    };
    for ($at = 0; $at < length $data;) {
        my ($name, $value) = ($length->(), $length->());
        $params{ substr($data, $at, $name) } = substr($data, $at + $name, $value);
        $at += $name + $value;
    }
    return \%params;
}

sub fastcgi_put ($conn, $type, $id, $bytes) {
    fastcgi_record($conn, $type, $id, $_) for unpack '(a32768)*', $bytes;
}

sub fastcgi_record ($conn, $type, $id, $content) {
    put($conn, pack('CCnnCx', 1, $type, $id, length $content, 0) . $content);
}

sub serve_scgi ($conn) {
    my $length = take_through($conn, ':');
    chop $length;
    my %params = take($conn, $length) =~ /([^\0]*)\0([^\0]*)\0/g;
    take($conn, 1);
    serve_cgi_once($conn, \%params);
}

sub serve_uwsgi ($conn) {
    my (undef, $length) = unpack 'CvC', take($conn, 4);
    my %params = unpack '(v/a)*', take($conn, $length);
    serve_cgi_once($conn, \%params);
}

sub serve_cgi_once ($conn, $params) {
    my $req = cgi_request($params);
    $req->{read_body} = sub { take($conn, $params->{CONTENT_LENGTH} || 0) };
    $req->{put}       = sub ($bytes) { put($conn, $bytes) };
    handle($conn, $req);
}

sub cgi_request ($params) {
    my @headers;
    for my $name (sort keys %$params) {
        next if $name !~ /^(?:HTTP_(.+)|(CONTENT_(?:TYPE|LENGTH)))$/;
        push @headers, [lc(($1 // $2) =~ tr/_/-/r), $params->{$name}]
            if $params->{$name} ne '';
    }
    return {
        method => $params->{REQUEST_METHOD} // '-',
        uri => $params->{REQUEST_URI} // $params->{SCRIPT_NAME} // '/',
        headers => \@headers, status_prefix => 'Status: ', keep => 0,
    };
}

# ---- application ----------------------------------------------------------

sub handle ($conn, $req) {
    my $do = $req->{do} = behaviour($req);
    my $die = $do->{die} // '';
    leave($conn, $do->{rst}) if $die eq 'read';
    $req->{body} = $req->{read_body}->();
    return if serve_ledger($conn, $req);

    nap($do->{presleep});
    $req->{n} = record($req) if is_execution($req);
    wait_for_file($do->{barrier}) if defined $do->{barrier};
    nap($do->{sleep});
    leave($conn, $do->{rst}) if $die eq 'before';
    respond($conn, $req, answer($req));
}

sub behaviour ($req) {
    my %do = (h => [], trailer => []);
    my ($query) = $req->{uri} =~ /\?(.*)/s;
    for my $source ($query, header($req, 'x-behaviour')) {
        my @pairs = query_pairs($source // '');
        while (my ($name, $value) = splice @pairs, 0, 2) {
            if (ref $do{$name}) { push @{ $do{$name} }, $value }
            else                { $do{$name} = $value }
        }
    }
    return \%do;
}

sub query_pairs ($query) {
    my @pairs;
    for my $pair (split /&/, $query) {
        my ($name, $value) = split /=/, $pair, 2;
        push @pairs, percent_decode($name // ''), percent_decode($value // '');
    }
    return @pairs;
}

sub percent_decode ($text) {
    return $text =~ tr/+/ /r =~ s/%([0-9a-fA-F]{2})/chr hex $1/ger;
}

sub header ($req, $name) {
    my @values = map { $_->[0] eq $name ? $_->[1] : () } @{ $req->{headers} };
    return @values ? join(', ', @values) : undef;
}

sub path_of ($uri) {
    return $uri =~ s/\?.*//sr;
}

sub is_execution ($req) {
    return $req->{method} !~ /^(?:GET|HEAD)$/
        || (header($req, 'x-execute') // '') eq '1'
        || path_of($req->{uri}) =~ m{^/run(?:/|$)};
}

sub wait_for_file ($file) {
    my $until = time + $BARRIER_SECONDS;
    nap(0.01) while !-e $file && time < $until;
}

sub answer ($req) {
    my ($do, $n) = @$req{qw(do n)};
    my $status = $do->{status} // ($do->{gone} ? 410 : defined $n ? 201 : 200);
    my $type = $do->{type} // ($do->{dump} ? 'text/plain' : 'application/json');
    my @headers;
    push @headers, "Content-Type: $type" if !$do->{nocontenttype};
    # One Location only: which of two counts depends on the version of nginx.
    push @headers, "Location: /orders/$n"
        if defined $n && !grep {/^location:/i} @{ $do->{h} };
    push @headers, "X-Execution: $n" if defined $n;
    push @headers, validators($req) if $do->{lm};
    push @headers, map { s/:\s*/: /r } @{ $do->{h} };
    return { status => $status, headers => \@headers, body => answer_body($req) };
}

sub validators ($req) {
    my $time = strftime('%a, %d %b %Y %H:%M:%S GMT', gmtime 1_700_000_000);
    return ("Last-Modified: $time",
        'ETag: "' . substr(sha1_hex($req->{uri}), 0, 12) . '"');
}

sub answer_body ($req) {
    my $do = $req->{do};
    return $req->{body} if $do->{echo};
    return dump_of($req) if $do->{dump};
    return $do->{body} if defined $do->{body};
    return noise($do->{size}) if defined $do->{size};
    return '{"execution":' . ($req->{n} // 'null') . "}\n";
}

sub dump_of ($req) {
    return join '', "$req->{method} $req->{uri}\n",
        map { "$_->[0]: $_->[1]\n" } @{ $req->{headers} };
}

# One megabyte of it repeats, as hashing is too slow for very large answers.
sub noise ($bytes) {
    my $wanted = $bytes < 1 << 20 ? $bytes : 1 << 20;
    my $block = '';
    for (my $i = 0; length $block < $wanted; $i++) {
        $block .= sha1_hex($i);
    }
    substr($block, $wanted) = '';
    return '' if !$wanted;
    return substr($block x (int($bytes / $wanted) + 1), 0, $bytes);
}

# ---- answering ------------------------------------------------------------

sub respond ($conn, $req, $answer) {
    my $do = $req->{do};
    frame($req, $answer);
    my $head = head_of($req, $answer);
    $req->{put}->("HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
        if $do->{early};

    if (($do->{die} // '') eq 'header') {
        $req->{put}->(substr($head, 0, length($head) / 2));
        leave($conn, $do->{rst});
    }
    $req->{put}->($head);
    send_body($req, $answer) if $answer->{has_body};
    leave($conn, $do->{rst}) if $do->{truncate} || $do->{rst};
    $req->{finish}->() if $req->{finish};
}

sub frame ($req, $answer) {
    my $do = $req->{do};
    my $bodiless = $answer->{status} =~ /^(?:1..|204|304)$/;
    $answer->{has_body} = !$bodiless && $req->{method} ne 'HEAD';
    $answer->{chunked} = $do->{chunked} && $req->{can_chunk};

    # nginx reads what it does not understand until the connection ends.
    $req->{keep} = 0 if $do->{bad};

    my $headers = $answer->{headers};
    if ($answer->{chunked} && !$bodiless) {
        push @$headers, 'Transfer-Encoding: chunked';
    } elsif ($do->{nolength}) {
        $req->{keep} = 0 if $req->{can_chunk};
    } elsif (!$bodiless) {
        push @$headers, 'Content-Length: ' . length $answer->{body};
    }
}

sub head_of ($req, $answer) {
    my $status = $answer->{status};
    my @lines = ($req->{status_prefix} . "$status " . ($REASON{$status} // 'Other'),
        @{ $answer->{headers} });
    my $bad = $req->{do}{bad} // '';
    $lines[0] = "NONSENSE\0" if $bad eq '1';
    push @lines, "broken\0header: x" if $bad eq 'header';
    push @lines, 'Connection: ' . ($req->{keep} ? 'keep-alive' : 'close')
        if $req->{can_chunk};
    return join("\r\n", @lines) . "\r\n\r\n";
}

sub send_body ($req, $answer) {
    my ($do, $body) = ($req->{do}, $answer->{body});
    my $no_chunk = ($do->{bad} // '') eq 'chunk';
    $body = substr($body, 0, length($body) / 2) if $do->{truncate} || $no_chunk;

    my $first = 1;
    for my $piece (split_body($body, $do->{pieces}, $answer->{chunked})) {
        nap($do->{gap}) if !$first;
        $first = 0;
        $piece = sprintf("%x\r\n%s\r\n", length $piece, $piece)
            if $answer->{chunked};
        $req->{put}->($piece);
    }
    $req->{put}->("no chunk\r\n"), nap(0.5) if $no_chunk;
    end_chunked($req) if $answer->{chunked} && !$do->{truncate} && !$no_chunk;
}

sub split_body ($body, $pieces, $chunked) {
    return () if $body eq '';
    my $size = length $body;
    if ($pieces) {
        $size = int(($size + $pieces - 1) / $pieces);
    } elsif ($chunked) {
        $size = $PIECE_BYTES;
    }
    return unpack "(a$size)*", $body;
}

sub end_chunked ($req) {
    my @trailers = map { s/:\s*/: /r . "\r\n" } @{ $req->{do}{trailer} };
    $req->{put}->(join '', "0\r\n", @trailers, "\r\n");
}

# ---- ledger ---------------------------------------------------------------

sub open_ledger {
    sysopen(my $file, $opt{ledger}, O_RDWR | O_APPEND | O_CREAT)
        or die "$opt{ledger}: $!\n";
    return $file;
}

sub record ($req) {
    my $file = open_ledger();
    flock($file, LOCK_EX) or die "flock: $!\n";
    my $n = last_number($file) + 1;
    my $line = ledger_line($n, $req);
    syswrite($file, "$line\n") or die "$opt{ledger}: $!\n";
    close $file;
    say_loud($line);
    return $n;
}

# Only the tail is read, else each execution would cost more than the last.
sub last_number ($file) {
    my $size = -s $file;
    return 0 if !$size;
    my $tail = $size < 131072 ? $size : 131072;
    sysseek($file, -$tail, SEEK_END);
    sysread($file, my $text, $tail);
    my ($last) = $text =~ /([^\n]*)\n\z/;
    return $last =~ /^(\d+) / ? $1 : 0;
}

sub ledger_line ($n, $req) {
    my ($key, $token, $attempt) = map { printable(header($req, $_)) }
        qw(idempotency-key x-token x-attempt);
    return join ' ', $n, $req->{method}, $req->{uri} =~ s/[^!-~]/_/gr,
        "key=$key", "token=$token", "attempt=$attempt",
        'body=' . sha1_hex($req->{body}), 'length=' . length $req->{body};
}

# Keys may hold spaces; a line has to stay a list of words.
sub printable ($value) {
    return '-' if !defined $value;
    return $value =~ s/([^!-\$&-~])/sprintf '%%%02X', ord $1/ger;
}

sub ledger_lines {
    my $file = open_ledger();
    flock($file, LOCK_SH);
    seek($file, 0, SEEK_SET);    # perl starts at the end of an O_APPEND file
    return readline $file;
}

sub serve_ledger ($conn, $req) {
    my $path = path_of($req->{uri});
    my $method = $req->{method};
    my $body = $path eq '/reset' && $method eq 'POST' ? reset_ledger()
        : $path eq '/ledger' && $method eq 'GET' ? join('', ledger_lines())
        : $path eq '/count' && $method eq 'GET' ? count_lines($req->{do}) . "\n"
        : return 0;
    $req->{do} = { h => [], trailer => [] };
    respond($conn, $req, {
        status => 200, headers => ['Content-Type: text/plain'], body => $body,
    });
    return 1;
}

sub reset_ledger {
    my $file = open_ledger();
    flock($file, LOCK_EX);
    truncate($file, 0);
    return "empty\n";
}

sub count_lines ($filter) {
    return scalar grep { matches($_, $filter) } ledger_lines();
}

# A filter with arguments means that very URI, one without means the path.
sub matches ($line, $filter) {
    my (undef, $method, $uri, $key) = split / /, $line;
    my ($want_uri, $want_key) = @$filter{qw(uri key)};
    return 0 if defined $filter->{method} && $method ne $filter->{method};
    return 0 if defined $want_key && $key ne 'key=' . printable($want_key);
    return 1 if !defined $want_uri;
    return $want_uri eq ($want_uri =~ /\?/ ? $uri : path_of($uri));
}
