#!/usr/bin/env perl

# A stored response that somebody has changed, or that a disk has damaged, is
# not sent: neither what would break the protocol, nor what the module has not
# written.

use v5.36;

use Test::More;

use Keyed;
use Ledger;
use Nginx;
use OnRedis qw(on_redis_nginx);
use RedisServer;
use Status qw(store_counts);

my $HEAD = 70;

memory_only('a zone in memory cannot be changed from outside')
    if !on_redis() && !on_file();
plan(skip_all => 'the same as with one Redis')
    if ($ENV{TEST_IDEMPOTENCY_STORE} // '') =~ /^(?:sentinel|cluster)$/;

my $STATUS = 'server { listen 127.0.0.1:%%PORT4%%; location / { idempotency_status; access_log off; } }';

# ---- the stored form, docs/record-format.md -------------------------------

sub take_apart ($bytes) {
    my %r;
    (@r{qw(version flags status plain headers trailers line type charset length modified body)},
        my $rest) = unpack 'C C v v v v v v v q< q< Q< a*', $bytes;
    my $take = sub ($size) { substr $rest, 0, $size, '' };
    $r{$_} = $take->($r{$_}) for qw(line type charset);
    my $fields = sub ($count) {
        map { my ($n, $v) = unpack 'v V', $take->(6); [$take->($n), $take->($v)] } 1 .. $count;
    };
    $r{headers} = [$fields->($r{headers})];
    $r{body} = $take->($r{body});
    $r{trailers} = [$fields->($r{trailers})];
    return \%r;
}

# size => for the lengths, instead of the true ones: {body => n, name => n}.
sub put_together ($r, %size) {
    my $fields = sub ($list) {
        join '', map { pack('v V', $size{name} // length $_->[0], $size{value} // length $_->[1])
            . $_->[0] . $_->[1] } @$list;
    };
    return pack('C C v v v v v v v q< q< Q<', @$r{qw(version flags status plain)},
        $size{headers} // scalar @{ $r->{headers} }, scalar @{ $r->{trailers} },
        length $r->{line}, length $r->{type}, length $r->{charset}, @$r{qw(length modified)},
        $size{body} // length $r->{body})
        . join('', @$r{qw(line type charset)}) . $fields->($r->{headers}) . $r->{body}
        . $fields->($r->{trailers});
}

# What is done to a response, each on a record of its own.
my @CHANGES = (
    'a line break in a value' => sub ($r) { $r->{headers}[0][1] = "a\r\nX-Evil: 1" },
    'a line feed in a value' => sub ($r) { $r->{headers}[0][1] = "a\nX-Evil: 1" },
    'a zero byte in a value' => sub ($r) { $r->{headers}[0][1] = "a\0b" },
    'a line break in a name' => sub ($r) { $r->{headers}[0][0] = "X: 1\r\nX-Evil" },
    'a zero byte in a name' => sub ($r) { $r->{headers}[0][0] = "X\0" },
    'a colon in a name' => sub ($r) { $r->{headers}[0][0] = 'X-Evil: X' },
    'a space in a name' => sub ($r) { $r->{headers}[0][0] = 'X Evil' },
    'no name' => sub ($r) { $r->{headers}[0][0] = '' },
    'a line break in a trailer' => sub ($r) { $r->{trailers} = [['X', "a\r\nX-Evil: 1"]] },
    'a line break in the type' => sub ($r) { $r->{type} .= "\r\nX-Evil: 1" },
    'a line break in the charset' => sub ($r) { $r->{charset} = "utf-8\r\nX-Evil: 1" },
    'a line break in the status line' => sub ($r) { $r->{line} = "201 OK\r\nX-Evil: 1" },
    'the status line of another status' => sub ($r) { $r->{line} = '204 No Content' },
    'a status line without a status' => sub ($r) { $r->{line} = 'OK' },
    (map { my $s = $_; ("status $s" => sub ($r) { @$r{qw(status line)} = ($s, '') }) }
        0, 99, 100, 101, 199, 1000, 65535),
    'status 204 with a body' => sub ($r) { @$r{qw(status line)} = (204, '204 No Content') },
    'a length that is too small' => sub ($r) { $r->{length} = length($r->{body}) - 1 },
    'a length that is too large' => sub ($r) { $r->{length} = length($r->{body}) + 1 },
    'a length without a body' => sub ($r) { $r->{body} = '' },
    'a negative length' => sub ($r) { $r->{length} = -2 },
    'the smallest length' => sub ($r) { $r->{length} = -2**63 },
    'a date that has no room' => sub ($r) { $r->{modified} = 2**60 },
    'a date before all others' => sub ($r) { $r->{modified} = -2**62 },
    'another version' => sub ($r) { $r->{version} = 2 },
    'an unknown flag' => sub ($r) { $r->{flags} |= 0x80 },
    'a place without its length' => sub ($r) { $r->{flags} |= 2 },
    'a byte too much' => sub ($r) { put_together($r) . 'x' },
    'a byte too few' => sub ($r) { substr put_together($r), 0, -1 },
    'half of it' => sub ($r) { my $all = put_together($r); substr $all, 0, length($all) / 2 },
    'nothing' => sub ($r) { '' },
    'a body length that is too large' => sub ($r) { put_together($r, body => 1 + length $r->{body}) },
    'the largest body length' => sub ($r) { put_together($r, body => ~0) },
    'the largest name length' => sub ($r) { put_together($r, name => 0xffff) },
    'the largest value length' => sub ($r) { put_together($r, value => 0xffffffff) },
    'more headers than there are' => sub ($r) { put_together($r, headers => 0xffff) },
);

# ---- what a retry gets ----------------------------------------------------

# On a connection that is used again: what follows is an answer of its own.
sub is_not_sent ($ng, $key, $what) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $conn = Http1->new($ng->port);
    my $ask = sub ($k) {
        my (undef, @request) = post_args($ng->port, $k, headers => [Connection => 'keep-alive']);
        return $conn->send(@request)->response;
    };
    my $retry = $ask->($key);
    is(said($retry), '409 response_not_kept', "$what: refused");
    is(header($retry, 'X-Evil'), undef, '... nothing of it is sent');
    like(said($ask->("$key-next")), qr/^201 #\d+$/, '... the connection is sound');
    is(ledger_count(key => $key), 1, '... executed once');
    $conn->close;
}

sub is_told ($ng, $count) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(scalar lines_in($ng, qr/\[error\].*idempotency: record [0-9a-f]{32}: the stored response is damaged, or of another version/),
        $count, 'each is logged with the record');
    is(store_counts($ng, 'default', uri => '/')->{responses_damaged}, $count, 'and counted');
}

subtest 'changed in Redis' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, servers => $STATUS);
    my $n = 0;
    while (my ($what, $change) = splice @CHANGES, 0, 2) {
        my $key = sprintf 'changed-%03d', ++$n;
        post($ng->port, $key, do => "h=X-First:$key&type=text/plain");
        my $name = record_of($redis, $key);
        my $record = $redis->command('GET', $name);
        my $response = take_apart(substr $record, $HEAD);
        my $made = $change->($response);
        my $changed = $made =~ /^\x01/ || $what =~ /nothing/ ? $made : put_together($response);
        $redis->command('SET', $name, substr($record, 0, $HEAD) . $changed, 'KEEPTTL');
        is_not_sent($ng, $key, $what);
    }
    is_told($ng, $n);

    # The same, with nothing changed.
    my $first = said(post($ng->port, 'unchanged', do => 'h=X-First:unchanged'));
    my $name = record_of($redis, 'unchanged');
    my $record = $redis->command('GET', $name);
    is(put_together(take_apart(substr $record, $HEAD)), substr($record, $HEAD), 'the form is known');
    is(said(post($ng->port, 'unchanged')), "$first replayed", 'a sound response is replayed');

    # Fields that no record has, and that would change how the body is read.
    my $response = take_apart(substr $record, $HEAD);
    push @{ $response->{headers} }, ['Transfer-Encoding', 'chunked'], ['content-length', 3],
        ['Connection', 'close'];
    $redis->command('SET', $name, substr($record, 0, $HEAD) . put_together($response), 'KEEPTTL');
    my $retry = post($ng->port, 'unchanged');
    is(said($retry), "$first replayed", 'what belongs to the connection is left out');
    is(header($retry, 'Transfer-Encoding'), undef, '... Transfer-Encoding');
    is(header($retry, 'Content-Length'), length $retry->{body}, '... a second length');
    finish($ng);
};

# A place follows the charset, after two bytes for its length.
sub with_place ($r, $place) {
    $r->{flags} |= 2;
    my $all = put_together($r);
    substr $all, 40 + length "$r->{line}$r->{type}$r->{charset}", 0, pack('v', length $place) . $place;
    return $all;
}

subtest 'a place without a content handler' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    my $redis = RedisServer->start;
    my $ng = on_redis_nginx($redis->url, servers => <<"CONF");
    server {
        listen 127.0.0.1:%%PORT4%%;
        idempotency_methods POST GET;
        location / { idempotency on; proxy_pass http://application; }
        location /files/ { internal; root %%DIR%%; }
    }
CONF
    mkdir $ng->path('files') or die "mkdir: $!\n";
    write_file($ng->path('files/x'), 'not for clients');
    for my $method (qw(GET POST)) {
        my @request = ($ng->port(4), "place-$method", method => $method, uri => '/x');
        post(@request, do => "h=X-First:place-$method");
        my $name = record_of($redis, "place-$method");
        my $record = $redis->command('GET', $name);
        my $response = take_apart(substr $record, $HEAD);
        $redis->command('SET', $name, substr($record, 0, $HEAD)
            . with_place($response, "//other/\0\0/files/x\0"), 'KEEPTTL');
        my $retry = post(@request);
        is(said($retry), '409 response_not_kept', "$method: refused");
        unlike($retry->{body}, qr/not for clients/, '... nothing of a file is sent');
        is(ledger_count(key => "place-$method"), $method eq 'POST' ? 1 : 0, '... no second execution');
    }
    finish($ng);
};

# The record whose response names this key.
sub record_of ($redis, $key) {
    my @found = grep { $redis->command('GET', $_) =~ /\Q$key\E/ } @{ $redis->command('KEYS', 'idem:*') };
    is(scalar @found, 1, "$key has a record");
    return $found[0];
}

subtest 'changed in a file' => sub {
    plan(skip_all => 'about a zone in a file') if !on_file();
    my $dir = File::Temp->newdir('zones-XXXXXX', TMPDIR => 1);
    my $ng = Nginx->start(http => <<"CONF");
    idempotency_store default memory:1m file=$dir/zone;
    idempotency_scope none;
    lingering_close off;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { idempotency on; proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
    }
    server { listen 127.0.0.1:%%PORT3%%; location / { stub_status; access_log off; } }
    $STATUS
CONF
    my %change = (
        'a line break in a value' => [value => "a\r\nX-Evil:1"],
        'a zero byte in a value' => [value => "zero-zero-\0"],
        'a line break in a name' => [name => "X\r\nX-Evil:1"],
        'a space in a name' => [name => 'X-Name is me'],
    );
    my $n = 0;
    for my $what (sort keys %change) {
        my ($part, $bytes) = @{ $change{$what} };
        my $key = 'changed-' . ++$n;
        my $mark = sprintf 'X-M%0*d', length($bytes) - 3, $n;
        my $header = $part eq 'name' ? "$mark:v" : "X-Name:$mark";
        post($ng->port, $key, do => "h=$header");
        overwrite("$dir/zone", $mark, $bytes);
        is_not_sent($ng, $key, $what);
    }
    is_told($ng, $n);
    finish($ng);
};

# In the file of a store in use, which sees it at once.
sub overwrite ($path, $from, $to) {
    open my $file, '+<:raw', $path or die "$path: $!\n";
    my $all = do { local $/; readline $file };
    my $at = index $all, $from;
    die "no $from in $path\n" if $at < 0 || length $from != length $to;
    seek $file, $at, 0;
    print {$file} $to;
    close $file;
}

done_testing();
