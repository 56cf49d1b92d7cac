package Ledger;

# Starts the test application once per test file and asks it what it really
# executed.
#
#   use Ledger;                       # ports are in the environment from here on
#
#   ledger_count(uri => '/x', key => 'k', method => 'POST')
#   ledger_lines()   ledger_reset()   upstream_port()
#   upstream_stop()  upstream_start() # same ports, same ledger
#
# Sets TEST_NGINX_UPSTREAM_PORT, _FASTCGI_PORT, _SCGI_PORT and _UWSGI_PORT.
#
# In Test::Nginx files the ledger is emptied before each block, and a block may
# say how often the application must have run:
#
#   --- executions: 1

use v5.36;

use Cwd qw(abs_path);
use Exporter ();
use File::Basename qw(dirname);
use File::Temp ();
use IO::Socket::INET;
use POSIX ();
use Test::More ();

use FreePorts qw(free_ports);
use Running qw(started end_process);
use Store ();
use Waiting qw(wait_quietly);

our @ISA    = ('Exporter');
our @EXPORT = qw(ledger_count ledger_lines ledger_reset upstream_port
    upstream_start upstream_stop);
our @EXPORT_OK = qw(escape);

my $PROGRAM = dirname(abs_path(__FILE__)) . '/upstream.pl';
my @PROTOCOLS = qw(UPSTREAM FASTCGI SCGI UWSGI);

my ($dir, $pid, @ports);

sub import ($class, @names) {
    start_on_free_ports() if !$pid;
    join_test_nginx();
    $class->export_to_level(1, $class, @names);
}

# ---- application ----------------------------------------------------------

sub upstream_port { return $ports[0] }

sub upstream_start {
    return 1 if $pid;
    unlink "$dir/ready";
    $pid = fork // die "fork: $!\n";
    exec_upstream() if !$pid;
    started($pid, \&upstream_stop);
    return 1 if wait_ready();
    upstream_stop();
    return 0;
}

sub upstream_stop {
    return if !$pid;
    end_process($pid);
    undef $pid;
}

sub start_on_free_ports {
    $dir = File::Temp->newdir('ledger-XXXXXX', TMPDIR => 1);
    for (1 .. 10) {
        @ports = free_ports(scalar @PROTOCOLS);
        next if !upstream_start();
        @ENV{ map {"TEST_NGINX_${_}_PORT"} @PROTOCOLS } = @ports;
        return;
    }
    die "the test application does not start\n";
}

sub exec_upstream {
    # TAP consumers wait until the last holder of standard output is gone.
    open STDOUT, '>', '/dev/null';
    exec($^X, $PROGRAM, '--quiet', '--port', $ports[0], '--parent', getppid(),
        '--ledger', "$dir/ledger", '--ready', "$dir/ready")
        or POSIX::_exit(127);
}

sub wait_ready {
    wait_quietly(sub { -e "$dir/ready" || waitpid($pid, POSIX::WNOHANG()) == $pid }, 10);
    return -e "$dir/ready";
}

# ---- ledger ---------------------------------------------------------------

sub ledger_count (%filter) {
    my $query = join '&', map { "$_=" . escape($filter{$_}) } sort keys %filter;
    my $count = ask('GET', "/count?$query");
    chomp $count;
    return $count;
}

sub ledger_lines {
    return split /\n/, ask('GET', '/ledger');
}

sub ledger_reset {
    ask('POST', '/reset');
    return;
}

# As part of a query string.
sub escape ($text) {
    return $text =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger;
}

sub ask ($method, $uri) {
    my $sock = IO::Socket::INET->new(
        PeerAddr => '127.0.0.1', PeerPort => $ports[0], Timeout => 5,
    ) or die "the test application is not there: $@\n";
    print {$sock} "$method $uri HTTP/1.0\r\n\r\n";
    local $/;
    my (undef, $body) = split /\r\n\r\n/, readline($sock) // '', 2;
    return $body // '';
}

# ---- Test::Nginx ----------------------------------------------------------

my $joined;

sub join_test_nginx {
    return if $joined || !$INC{'Test/Nginx/Util.pm'};
    $joined = 1;
    Test::Nginx::Util::add_block_preprocessor(\&prepare_block);
    Test::Nginx::Util::add_test_cleanup_handler(\&check_executions);
}

sub prepare_block ($block) {
    ledger_reset();
    my $http = $block->http_config // '';
    my $store = Store::default_line($http, Store::new_prefix(), $block->config // '');
    $block->set_value(http_config => "$http\n$store") if $store;
}

sub check_executions ($block) {
    my $wanted = $block->executions;
    return if !defined $wanted;
    $wanted =~ s/\s+//g;
    Test::More::is(ledger_count(), $wanted, $block->name . ' - executions')
        or Test::More::diag(join "\n", ledger_lines());
}

1;
