package Retry;

# What became of a write, told by its retries and by the ledger.
#
#   retry_against($ng);                # where write_to() goes
#   claim 'title' => sub {             # a subtest with a key of its own
#       my $first = write_to('/x', do => 'status=422');
#       is_rerun(write_to('/x'));
#       is(executions(), 2);
#   };
#   ends('/x', do => 'die=before', first => 502, then => 'unknown');
#
# What the application is to do goes into a header, as the query string
# belongs to the fingerprint.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use IO::Socket::INET;
use JSON::PP ();
use Socket qw(INADDR_LOOPBACK SOCK_STREAM AF_INET pack_sockaddr_in
    unpack_sockaddr_in);
use Test::More;

use lib dirname(abs_path(__FILE__));
use Http1 ();
use Ledger;

our @EXPORT = qw(retry_against claim claim_key ends write_to start_write executions
    ledger_of header problem is_replay is_refused is_rerun closed_port
    lua_modules);

my ($port, $key, @bound);
my $claims = 0;

sub retry_against ($ng) { $port = $ng->port }

sub claim ($title, $check) {
    $key = 'claim-' . ++$claims;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return subtest($title, $check);
}

sub claim_key { return $key }

# ---- requests -------------------------------------------------------------

# do => behaviour, method => POST, body => '...', key => other than the
# claim's (undef: none), headers => [...], and what Http1 takes.
sub arguments ($uri, %opt) {
    my @headers = @{ delete $opt{headers} // [] };
    my $own = exists $opt{key} ? delete $opt{key} : $key;
    my $do = delete $opt{do};
    push @headers, 'Idempotency-Key' => $own if defined $own;
    push @headers, 'X-Behaviour' => $do if defined $do;
    return (delete $opt{port} // $port, delete $opt{method} // 'POST', $uri,
        headers => \@headers, body => '{"amount":1}', %opt);
}

sub write_to ($uri, %opt) { return Http1::request(arguments($uri, %opt)) }

sub start_write ($uri, %opt) {
    return Http1::send_request(arguments($uri, %opt));
}

# ---- checks ---------------------------------------------------------------

sub executions { return ledger_count(key => $key) }

sub ledger_of {
    return grep {/ key=\Q$key\E /} ledger_lines();
}

sub header ($response, $name) {
    my @values = @{ $response->{headers}{ lc $name } // [] };
    return @values ? join(', ', @values) : undef;
}

sub problem ($response) {
    return eval { JSON::PP::decode_json($response->{body}) } // {};
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
    is(problem($response)->{code}, $code, "the reason is $code");
}

sub is_rerun ($response) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is($response->{status}, 201, 'the retry is run');
    is(header($response, 'Idempotent-Replayed'), undef, 'it is no replay');
}

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

# ---- surroundings ---------------------------------------------------------

# A port that refuses connections and that nobody else can take.
sub closed_port {
    socket(my $sock, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    bind($sock, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\n";
    push @bound, $sock;
    return (unpack_sockaddr_in(getsockname $sock))[0];
}

# For Nginx->start(main => ...); empty where Lua is not to be had.
sub lua_modules {
    return join '', map {"load_module $_;\n"}
        split ' ', $ENV{TEST_NGINX_LUA_MODULES} // '';
}

1;
