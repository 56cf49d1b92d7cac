#!/usr/bin/env perl

# Clients that leave, at every moment and in every way: the operation runs
# once, to its end, and a retry gets the stored answer.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use Nginx;
use Http2;
use Keyed;

# ---- the table ------------------------------------------------------------

my %PASS = (
    proxy      => 'proxy_pass http://app;',
    memory     => 'proxy_pass http://app; proxy_max_temp_file_size 0;',
    unbuffered => 'proxy_pass http://app; proxy_buffering off;',
    streamed   => 'proxy_pass http://app; proxy_request_buffering off;',
    keepalive  => 'proxy_pass http://kept;',
    variable   => 'proxy_pass http://127.0.0.1:$app_port;',
    fastcgi    => 'fastcgi_pass 127.0.0.1:$TEST_NGINX_FASTCGI_PORT;',
    scgi       => 'scgi_pass 127.0.0.1:$TEST_NGINX_SCGI_PORT;',
    uwsgi      => 'uwsgi_pass 127.0.0.1:$TEST_NGINX_UWSGI_PORT;',
    grpc       => 'grpc_pass grpc://127.0.0.1:%%PORT3%%;',
);
my @BACKENDS = sort keys %PASS;

my %MODE = (
    held  => '',
    open  => 'idempotency_hold off;',
    large => 'idempotency_max_response 10k;',
);

# How the client leaves; each has its protocol.
my %LEAVE = (
    'fin'        => sub ($client) { $client->{conn}->close },
    'rst'        => sub ($client) { $client->{conn}->reset },
    'half-close' => sub ($client) { $client->{conn}->half_close },
    'h2 stream'  => sub ($client) { $client->{conn}->rst($client->{id}) },
    'h2 fin'     => sub ($client) { $client->{conn}->close },
    'h2 rst'     => sub ($client) { $client->{conn}->reset },
    'h2 goaway'  => sub ($client) { $client->{conn}->goaway; $client->{conn}->close },
);
my @WAYS = sort keys %LEAVE;

sub locations {
    my $text = '';
    for my $backend (@BACKENDS) {
        for my $mode (sort keys %MODE) {
            $text .= "location /$backend/$mode { $MODE{$mode} $PASS{$backend} }\n";
        }
    }
    return $text;
}

sub params ($kind) {
    return join "\n", map { "${kind}_param $_;" } 'REQUEST_METHOD $request_method',
        'REQUEST_URI $request_uri', 'CONTENT_LENGTH $content_length';
}

my %PART = (
    STORE     => on_redis() ? '' : 'idempotency_store default memory:256m;',
    LOCATIONS => locations(),
    PARAMS    => join("\n", map { params($_) } qw(fastcgi scgi uwsgi)),
);
my $ng = Nginx->start(http => <<'CONF' =~ s/^ *(STORE|LOCATIONS|PARAMS)$/$PART{$1}/gmr);
STORE
idempotency_scope none;
idempotency_scope_route host method path;
idempotency_wait 15s;
idempotency_max_response 8m;
send_timeout 500ms;
PARAMS
upstream app { server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
upstream kept { server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; keepalive 8; }
map $host $app_port { default $TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%% sndbuf=8k;
    listen 127.0.0.1:%%PORT2%% http2 sndbuf=8k;
    idempotency on;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    LOCATIONS
    location = /ping { idempotency off; return 200 pong; }
}
server {
    listen 127.0.0.1:%%PORT3%% http2;
    location / {
        proxy_http_version 1.1;
        proxy_pass http://app;
    }
}
CONF

# ---- clients --------------------------------------------------------------

my $serial = 0;

# A case: backend, mode, way, and what the request asks for.
sub start_client ($case) {
    $case->{key} = join '-', $case->{backend}, ++$serial;
    $case->{uri} = "/$case->{backend}/$case->{mode}";
    $case->{way} =~ /^h2/ ? start_h2($case) : start_h1($case);
    return $case;
}

sub headers_of ($case) {
    return ('idempotency-key' => $case->{key}, 'x-behaviour' => $case->{do} // '');
}

sub start_h1 ($case) {
    $case->{conn} = Http1->new($ng->port);
    my @length = $case->{partial} ? ('content-length' => 1000) : ();
    $case->{conn}->send('POST', $case->{uri}, headers => [headers_of($case), @length],
        body => 'body');
}

sub start_h2 ($case) {
    $case->{conn} = Http2->new($ng->port(2), %$case{ grep { exists $case->{$_} } 'window' });
    $case->{id} = $case->{conn}->send('POST', $case->{uri}, headers => [headers_of($case)],
        body => 'body', end => $case->{partial} ? 0 : 1);
}

sub leave ($case) { $LEAVE{ $case->{way} }->($case) }

# nginx has one worker: when it has answered this, it has seen what came before.
sub let_it_see {
    request($ng->port, 'GET', '/ping') for 1 .. 2;
}

# Something of the response has come.
sub wait_answering ($case) {
    if (my $id = $case->{id}) {
        my $stream = $case->{conn}{streams}{$id};
        my $until = time + 10;
        while (!$stream->{status} && $case->{conn}->step($until)) { }
        return;
    }
    sysread $case->{conn}->sock, my $bytes, 1 << 20;
}

sub retry_all (@cases) {
    return parallel(scalar @cases, sub ($i) {
        my $case = $cases[$i];
        return ($ng->port, 'POST', $case->{uri}, headers => [headers_of($case)],
            body => 'body');
    }, timeout => 30);
}

sub title ($case) { return "$case->{backend}, $case->{mode}, $case->{way}" }

# After this every key has run exactly once; $wanted may ask for more.
sub check_retries ($cases, $wanted) {
    my @retries = retry_all(@$cases);
    my $runs = runs_by_key();
    for my $i (0 .. $#$cases) {
        my $case = $cases->[$i];
        my @numbers = @{ $runs->{ $case->{key} } // [] };
        my $said = said($retries[$i]);
        $said .= ' of ' . length $retries[$i]{body} if $case->{size} && $said =~ /^201/;
        is(@numbers . " executed, $said", '1 executed, ' . $wanted->($case, $numbers[0] // 0),
            title($case));
    }
}

sub stored ($case, $n) {
    return '409 response_not_kept' if $case->{mode} eq 'large';
    return "201 #$n replayed" . ($case->{size} ? " of $case->{size}" : '');
}

sub cases ($modes, $ways, %more) {
    my @cases;
    for my $backend (@BACKENDS) {
        for my $mode (@$modes) {
            push @cases, map { { backend => $backend, mode => $mode, way => $_, %more } } @$ways;
        }
    }
    return map { start_client($_) } @cases;
}

# ---- moments --------------------------------------------------------------

subtest 'during the body: nothing runs, and the key is free' => sub {
    my @cases = cases(['held'], \@WAYS, partial => 1);
    let_it_see();
    leave($_) for @cases;
    let_it_see();
    my $runs = runs_by_key();
    is_deeply([grep { $runs->{ $_->{key} } } @cases], [], 'nothing was executed');
    check_retries(\@cases, sub ($case, $n) {"201 #$n"});
};

subtest 'right after the request: it runs once, by then or by the retry' => sub {
    my @cases;
    for (1 .. 3) {
        push @cases, map { leave($_); $_ } cases(['held'], \@WAYS);
    }
    my @retries = retry_all(@cases);
    my $runs = runs_by_key();
    for my $i (0 .. $#cases) {
        my ($n, @more) = @{ $runs->{ $cases[$i]{key} } // [] };
        $n //= 0;
        like(said($retries[$i]), qr/^201 #$n(?: replayed)?$/, title($cases[$i]));
        is(scalar @more, 0, title($cases[$i]) . ', no second run');
    }
};

subtest 'during the run: it ends, and its answer is stored' => sub {
    my $gate = Keyed::Gate->new;
    my @cases = cases(['held', 'open'], \@WAYS, do => $gate->closed);
    wait_until(sub {
        my $runs = runs_by_key();
        return !grep { !$runs->{ $_->{key} } } @cases;
    }, 20, 'all to run');
    leave($_) for @cases;
    let_it_see();
    $gate->open;
    check_retries(\@cases, \&stored);
};

# The answer comes in five parts over half a second, each of which leaves
# nginx's buffers at once.
for my $what (
    ['an answer that is passed on', 'open', 40_000, 'application/json'],
    ['an event stream', 'held', 40_000, 'text/event-stream'],
    ['an answer that is too large to keep', 'large', 100_000, 'application/json'],
    )
{
    my ($name, $mode, $size, $type) = @$what;
    subtest "during $name: the rest is read without the client" => sub {
        my @cases = cases([$mode], \@WAYS,
            size => $size, do => "size=$size&type=$type&pieces=5&gap=0.12");
        wait_answering($_) for @cases;
        leave($_) for @cases;
        check_retries(\@cases, \&stored);
    };
}

# Its window closes after some kilobytes, and send_timeout runs out.
for my $what (
    ['an answer that is passed on', 'open', 'application/json'],
    ['an event stream', 'held', 'text/event-stream'],
    ['an answer that is too large to keep', 'large', 'application/json'],
    )
{
    my ($name, $mode, $type) = @$what;
    subtest "a client that stops reading $name" => sub {
        my $size = 500_000;
        my @cases = cases([$mode], ['fin', 'h2 stream'],
            size => $size, do => "size=$size&type=$type", window => 1000);
        wait_answering($_) for @cases;
        check_retries(\@cases, \&stored);
        leave($_) for @cases;
    };

    subtest "a client that stops reading $name and leaves" => sub {
        my $size = 500_000;
        my @cases = cases([$mode], ['fin', 'rst', 'h2 stream', 'h2 fin'],
            size => $size, do => "size=$size&type=$type", window => 1000);
        wait_answering($_) for @cases;
        let_it_see();
        leave($_) for @cases;
        check_retries(\@cases, \&stored);
    };
}

ok($ng->stop, 'stops');
$ng->check_logs;

done_testing();
