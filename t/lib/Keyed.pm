package Keyed;

# Requests with a key, and their answers in one line each.
#
#   is said(post($port, 'k')), '201 #1';
#   is said(post($port, 'k')), '201 #1 replayed';
#   is said(post($port, 'k', body => 'other')), '422 key_reused';
#
#   my $gate = Keyed::Gate->new;       # a run that ends when it is told to
#   my $conn = send_post($port, 'k', behaviour => $gate->closed);
#   begun('k');                        # ... and surely runs
#   $gate->open;

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use POSIX ();

use lib dirname(abs_path(__FILE__));
use Ledger qw(ledger_count ledger_lines);
use Nginx;

our @EXPORT = qw(post send_post post_args connection_to said wait_said
    executions begun under_way cpu_time);

# ---- requests -------------------------------------------------------------

# uri => '/x', body => 'body', behaviour => 'status=500', headers => [...]
sub post_args ($port, $key, %opt) {
    my @headers = ('Idempotency-Key' => $key, @{ $opt{headers} // [] });
    push @headers, 'X-Behaviour' => $opt{behaviour} if defined $opt{behaviour};
    return ($port, $opt{method} // 'POST', $opt{uri} // '/x',
        body => 'body', %opt, headers => \@headers);
}

sub post ($port, $key, %opt) {
    return request(post_args($port, $key, %opt));
}

sub send_post ($port, $key, %opt) {
    return send_request(post_args($port, $key, %opt));
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

sub said ($response) {
    return $response->{timeout} ? 'nothing, timed out' : 'nothing'
        if !$response->{status};
    my $headers = $response->{headers};
    my ($code) = $response->{body} =~ /"code":\s*"(\w+)"/;
    my ($n) = @{ $headers->{'x-execution'} // [] };
    return join ' ', $response->{status}, $code // (),
        defined $n ? "#$n" : (),
        $headers->{'idempotent-replayed'} ? 'replayed' : (),
        $response->{complete} ? () : 'cut';
}

# Asks until the answer is this one; returns the last answer.
sub wait_said ($wanted, $ask, $seconds = 10) {
    my $got = '';
    wait_until(sub { ($got = said($ask->())) eq $wanted }, $seconds, $wanted);
    return $got;
}

# ---- the ledger -----------------------------------------------------------

# The numbers of a key's executions.
sub executions ($key) {
    return map { /^(\d+) .* key=\Q$key\E / ? $1 : () } ledger_lines();
}

# True once the application works on this key.
sub begun ($key, $times = 1) {
    return wait_until(sub { ledger_count(key => $key) >= $times }, 10,
        "execution $times of $key");
}

# ---- workers --------------------------------------------------------------

# How many requests nginx works on. Needs a `stub_status` at this address.
sub under_way ($port) {
    my ($writing) = request($port, 'GET', '/stub')->{body} =~ /Writing: (\d+)/;
    return $writing - 1;
}

sub cpu_time ($pid) {
    my @fields = split ' ', Nginx::slurp("/proc/$pid/stat") =~ s/^.*\) //sr;
    return ($fields[11] + $fields[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
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
