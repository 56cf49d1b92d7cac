package Node;

# The contender from the npm registry. It has the methods of Gateway that a
# contender needs.

use v5.36;

use FindBin;
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep);

use FreePorts qw(free_ports);
use Gateway;
use Running qw(started ended);

my $DIR = "$ENV{BENCH_OUT}/node";

# Empty, with a line that says why, where it cannot be had.
sub contender ($class, $application) {
    my $why = missing();
    if ($why) {
        print STDERR "SKIPPED: the contender on Node: $why\n";
        return ();
    }
    my $self = bless { port => free_ports(1) }, $class;
    $self->launch($application);
    return { name => 'Node: express-idempotency', id => 'node', gateway => $self, slow => 1 };
}

sub missing {
    return 'there is no npm' if system('command -v npm node > /dev/null 2>&1');
    return '' if -d "$DIR/node_modules/express-idempotency";
    system('mkdir', '-p', $DIR);
    return system("cd '$DIR' && npm install --silent --no-audit --no-fund --prefix . "
            . 'express@4 express-idempotency > npm.log 2>&1')
        ? "npm install failed, see $DIR/npm.log" : '';
}

sub launch ($self, $application) {
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        $ENV{NODE_PATH} = "$DIR/node_modules";
        $ENV{NODE_ENV} = 'production';
        # It tells of each refusal.
        open STDERR, '>', "$DIR/node.log";
        exec('node', "$FindBin::Bin/contenders/node.js", $self->{port},
            map { $application->port($_) } qw(small large)) or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    started($pid, sub { $self->stop });
    for (1 .. 200) {
        return if IO::Socket::INET->new(PeerAddr => "127.0.0.1:$self->{port}");
        sleep 0.05;
    }
    die "node does not start\n";
}

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    kill TERM => $pid;
    waitpid $pid, 0;
    ended($pid);
}

sub cpu ($self) { return Gateway::cpu_of($self->{pid}) }

sub load ($self, %opt) { return Gateway::send_load($self->{port}, %opt) }

1;
