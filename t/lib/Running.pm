package Running;

# Processes that a test has started. They end with it, whatever ends it.
#
#   started($pid, sub { ... });        # how to end it, unless ended($pid) was said
#   my $pid = run_aside(sub { ... });  # code in a process of its own
#   end_process($pid);

use v5.36;

use Exporter 'import';
use POSIX ();

our @EXPORT_OK = qw(started ended run_aside end_process catch_signals);

# Whoever is forked from the test must not end what belongs to the test.
my $owner = $$;
my %end;

END {
    if ($$ == $owner) {
        local $?;
        $_->() for values %end;
    }
}

sub started ($pid, $end) { $end{$pid} = $end }

sub ended ($pid) { delete $end{$pid} }

sub run_aside ($what) {
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        # TAP consumers wait until the last holder of standard output is gone.
        open STDOUT, '>', '/dev/null';
        eval { $what->(); 1 } or print STDERR "$$: $@";
        # No END blocks and destructors: they are the parent's.
        POSIX::_exit(0);
    }
    started($pid, sub { end_process($pid) });
    return $pid;
}

sub end_process ($pid, $signal = 'TERM') {
    ended($pid);
    kill $signal => $pid;
    waitpid $pid, 0;
}

# Perl runs no END block when a signal ends it, and processes would stay behind.
sub catch_signals {
    for my $name (qw(INT TERM HUP)) {
        $SIG{$name} = sub { exit 1 } if !$SIG{$name} || $SIG{$name} eq 'DEFAULT';
    }
}

1;
