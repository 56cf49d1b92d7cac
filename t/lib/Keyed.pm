package Keyed;

# Requests with a key, what they are told, and what became of them.
#
#   is said(post($port, 'k')), '201 #1';
#   is said(post($port, 'k')), '201 #1 replayed';
#   is said(post($port, 'k', body => 'other')), '422 key_reused';
#
#   my ($gate, $conn) = start_run($port, 'k');    # runs until its gate opens
#   $gate->open;
#   is said($conn->response), '201 #2';
#
# Where many claims share one nginx each has a key of its own, and counts what
# the application executed:
#
#   retry_against($ng);                # where write_to() goes
#   claim 'title' => sub {             # a subtest
#       my $first = write_to('/x', do => 'status=422');
#       is_rerun(write_to('/x'));
#       is(executions(), 2);
#   };
#   ends('/x', do => 'die=before', first => 502, then => 'unknown');
#
# What the application is to do goes into a header, as the query string belongs
# to the fingerprint.

use v5.36;

use Exporter 'import';
use IO::Select;
use IO::Socket::INET;
use JSON::PP ();
use POSIX ();
use Socket qw(INADDR_LOOPBACK SOCK_STREAM AF_INET pack_sockaddr_in
    unpack_sockaddr_in);
use Test::More;

use Ledger qw(ledger_count ledger_lines);
use Nginx;

our @EXPORT = qw(
    post send_post post_args write_to start_write connection_to
    said wait_said tally header member pid_of
    retry_against claim claim_key ends is_replay is_refused is_rerun
    executions begun start_run take_over attempts_of runs_by_key ledger_of
    under_way wait_parked finish cpu_time lines_in
    start_nginx closed_port full_port lua_modules write_file);

our $BODY = 'body';

my ($claim_port, $claim_key, @bound);
my $claims = 0;

# ---- requests -------------------------------------------------------------

# uri => '/x', body => $BODY, do => 'status=500', headers => [...], method, and
# what Http1 takes. No key: undef.
sub post_args ($port, $key, %opt) {
    my @headers = @{ delete $opt{headers} // [] };
    push @headers, 'Idempotency-Key' => $key if defined $key;
    push @headers, 'X-Behaviour' => $opt{do} if defined $opt{do};
    return ($port, delete $opt{method} // 'POST', delete $opt{uri} // '/x',
        body => $BODY, %opt, headers => \@headers);
}

sub post ($port, $key, %opt) { return request(post_args($port, $key, %opt)) }

# The connection, which answers by response().
sub send_post ($port, $key, %opt) { return send_request(post_args($port, $key, %opt)) }

# The same for the claim's own key; key and port can be others.
sub write_to ($uri, %opt) { return request(claim_args($uri, %opt)) }

sub start_write ($uri, %opt) { return send_request(claim_args($uri, %opt)) }

sub claim_args ($uri, %opt) {
    my $key = exists $opt{key} ? delete $opt{key} : $claim_key;
    return post_args(delete $opt{port} // $claim_port, $key, %opt, uri => $uri);
}

# A kept connection to this worker. Needs `listen ... reuseport`, which spreads
# connections evenly, and `location = /pid { return 200 $pid; }`.
sub connection_to ($port, $pid) {
    for (1 .. 500) {
        my $conn = Http1->new($port);
        $conn->send('GET', '/pid', headers => [Connection => 'keep-alive']);
        return $conn if $conn->response->{body} eq $pid;
        $conn->close;
    }
    die "no connection gets to worker $pid\n";
}

# ---- answers --------------------------------------------------------------

# A response in one line. number => 0: without the number of its execution.
sub said ($response, %opt) {
    return $response->{timeout} ? 'nothing, timed out' : 'nothing'
        if !$response->{status};
    my ($code) = $response->{body} =~ /"code":\s*"(\w+)"/;
    my $n = $opt{number} // 1 ? header($response, 'X-Execution') : undef;
    return join ' ', $response->{status}, $code // (),
        defined $n ? "#$n" : (),
        header($response, 'Idempotent-Replayed') ? 'replayed' : (),
        $response->{complete} ? () : 'cut';
}

# Asks until the answer is this one, or looks like it; returns the last answer.
sub wait_said ($wanted, $ask, $seconds = 10) {
    my $got = '';
    my $pattern = ref $wanted ? $wanted : qr/^\Q$wanted\E\z/;
    wait_until(sub { ($got = said($ask->())) =~ $pattern }, $seconds, $wanted);
    return $got;
}

# {answer => how often}
sub tally (@responses) {
    my %count;
    $count{ said($_) }++ for @responses;
    return \%count;
}

sub header ($response, $name) {
    my @values = @{ $response->{headers}{ lc $name } // [] };
    return @values ? join(', ', @values) : undef;
}

# Of the JSON object that the body is.
sub member ($response, $name) {
    my $object = eval { JSON::PP::decode_json($response->{body}) } // {};
    return $object->{$name};
}

# Needs `add_header X-Pid $pid always;`.
sub pid_of ($response) { return header($response, 'X-Pid') }

# ---- claims ---------------------------------------------------------------

sub retry_against ($ng) { $claim_port = $ng->port }

sub claim ($title, $check) {
    $claim_key = 'claim-' . ++$claims;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return subtest($title, $check);
}

sub claim_key { return $claim_key }

# A write that ends by "first", and a healthy retry of it. then => replayed,
# unknown or runs; executed => how often in all.
sub ends ($uri, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($status, $then, $executed) = delete @opt{qw(first then executed)};
    my $do = delete $opt{do};
    my @once = @{ delete $opt{once} // [] };

    my $first = write_to($uri, %opt, do => $do, headers => \@once);
    is($first->{status}, $status, "the client gets $status");
    my $retry = write_to($uri, %opt);
    if    ($then eq 'replayed') { is_replay($retry, $first) }
    elsif ($then eq 'unknown')  { is_refused($retry, 'outcome_unknown') }
    else                        { is_rerun($retry) }
    is(executions(), $executed // ($then eq 'runs' ? 2 : 1), 'executions');
    return $first;
}

sub is_replay ($response, $first) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(header($response, 'Idempotent-Replayed'), 'true', 'it is a replay');
    is($response->{status}, $first->{status}, 'the status is the first one');
    ok($response->{body} eq $first->{body}, 'the body is the first one')
        or diag(map { length($_) . ' bytes: ' . printable($_) . "\n" }
            $response->{body}, $first->{body});
}

sub printable ($body) {
    return substr($body, 0, 200) =~ s/[^ -~]/./gr;
}

sub is_refused ($response, $code, $status = 409) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is($response->{status}, $status, "refused by $status");
    is(member($response, 'code'), $code, "the reason is $code");
}

sub is_rerun ($response) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is($response->{status}, 201, 'the retry is run');
    is(header($response, 'Idempotent-Replayed'), undef, 'it is no replay');
}

# ---- runs -----------------------------------------------------------------

# The numbers of a key's executions; as a scalar, how many there were.
sub executions ($key = $claim_key) {
    return map { /^(\d+) / ? $1 : () } ledger_of($key);
}

sub ledger_of ($key = $claim_key) { return grep {/ key=\Q$key\E /} ledger_lines() }

sub attempts_of ($key = $claim_key) { return map { / attempt=(\d+)/ ? $1 : () } ledger_of($key) }

# {key => [numbers]}
sub runs_by_key {
    my %runs;
    for (ledger_lines()) {
        push @{ $runs{$2} }, $1 if /^(\d+) .* key=(\S+) /;
    }
    return \%runs;
}

# True once the application works on this key.
sub begun ($key, $times = 1) {
    return wait_until(sub { ledger_count(key => $key) >= $times }, 10,
        "execution $times of $key");
}

# A run that waits at a gate, and its connection. conn => the one to use.
sub start_run ($port, $key, %opt) {
    my $gate = Keyed::Gate->new;
    my $conn = delete $opt{conn} // Http1->new($port);
    my (undef, @arguments) = post_args($port, $key, %opt,
        do => join '&', $gate->closed, $opt{do} || ());
    $conn->send(@arguments);
    begun($key) or die "$key does not run\n";
    return ($gate, $conn);
}

# Sends until the lease is over and a second run has begun. $send returns a
# connection, and so does this one: that of the run.
sub take_over ($key, $send) {
    my $conn;
    wait_until(sub {
        $conn = $send->();
        # Refused at once, or under way.
        wait_until(sub {
            ledger_count(key => $key) == 2 || IO::Select->new($conn->sock)->can_read(0);
        }, 10, 'an answer or a run');
        return 1 if ledger_count(key => $key) == 2;
        $conn->response;
        return 0;
    }, 10, 'a successor') or die "nobody takes over $key\n";
    return $conn;
}

# ---- workers --------------------------------------------------------------

# How many requests nginx works on. Needs a `stub_status` at this port.
sub under_way ($port) {
    my ($writing) = request($port, 'GET', '/stub')->{body} =~ /Writing: (\d+)/;
    return $writing - 1;
}

# So many requests are in nginx's hands, hence parked if they are duplicates.
# Needs `stub_status` at port 3.
sub wait_parked ($ng, $count) {
    return wait_until(sub { under_way($ng->port(3)) >= $count }, 20,
        "$count requests under way");
}

# signal => 'TERM' where a worker may have to see to something yet; killed => 1
# where a worker was; allow => what may be in the logs. Needs `stub_status` at
# port 3.
sub finish ($ng, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok($opt{killed} || wait_until(sub { under_way($ng->port(3)) == 0 }, 5, 'the rest'),
        'no request is left over');
    ok($ng->stop(%opt{grep { exists $opt{$_} } 'signal'}), 'stops');
    $ng->check_logs(%opt{allow});
}

sub cpu_time ($pid) {
    my @fields = split ' ', Nginx::slurp("/proc/$pid/stat") =~ s/^.*\) //sr;
    return ($fields[11] + $fields[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

# Of the error log.
sub lines_in ($ng, $pattern) {
    return grep {/$pattern/} split /\n/, $ng->error_log;
}

# ---- surroundings ---------------------------------------------------------

# An nginx for what may happen to a run. lines: in http{}; and what
# Nginx->start() takes. Port 1 has
#
#   /         protected
#   /open     the response is passed on while it is captured
#   /pid      which worker answers
#
# port 2 has the same over HTTP/2, port 3 has stub_status.
sub start_nginx ($lines, %opt) {
    my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
    return Nginx->start(%opt, http => <<"CONF");
    idempotency_scope none;
    idempotency_scope_route host method path;
    proxy_set_header X-Attempt \$idempotency_attempt;
    proxy_set_header X-Token \$idempotency_token;
    add_header X-Fingerprint \$idempotency_fingerprint always;
    add_header X-Pid \$pid always;
    # Else answered requests count, and keep a worker that quits, until their
    # clients hang up.
    lingering_close off;
    $lines
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        listen 127.0.0.1:%%PORT2%% http2;
        location / { idempotency on; $pass }
        location /open { idempotency on; idempotency_hold off; $pass }
        location = /pid { return 200 \$pid; }
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        location / { stub_status; access_log off; }
    }
CONF
}

# A port that refuses connections and that nobody else can take.
sub closed_port {
    socket(my $sock, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    bind($sock, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\n";
    push @bound, $sock;
    return (unpack_sockaddr_in(getsockname $sock))[0];
}

# A port whose queue is full: a connection to it is neither made nor refused.
sub full_port {
    my $listener = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', Listen => 1) or die "listen: $@\n";
    listen($listener, 0) or die "listen: $!\n";
    push @bound, $listener, map {
        IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $listener->sockport, Blocking => 0)
    } 1 .. 4;
    return $listener->sockport;
}

# For Nginx->start(main => ...); empty where Lua is not to be had.
sub lua_modules {
    return join '', map {"load_module $_;\n"}
        split ' ', $ENV{TEST_NGINX_LUA_MODULES} // '';
}

sub write_file ($path, $text) {
    open my $file, '>', $path or die "$path: $!\n";
    print {$file} $text;
}

package Keyed::Gate;

use File::Temp ();

sub new ($class) {
    my $dir = File::Temp->newdir('gate-XXXXXX', TMPDIR => 1);
    return bless { dir => $dir, file => "$dir/open" }, $class;
}

# How a request says that it waits here.
sub closed ($self) { return "barrier=$self->{file}" }

sub open ($self) {
    CORE::open my $file, '>', $self->{file} or die "$self->{file}: $!\n";
}

1;
