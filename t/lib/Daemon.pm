package Daemon;

# An nginx whose parent is gone, as that of a daemon is: nginx ignores USR2 as
# long as the process lives that started it. Otherwise as Nginx.
#
#   my $ng = Daemon->start(http => $conf);
#   $ng->upgrade;         # the new binary runs, and so does the old one
#   $ng->end_upgrade;     # the old one is asked to leave

use v5.36;

use POSIX qw(WNOHANG);

use Nginx ();
use Running qw(started ended);
use Waiting qw(wait_quietly);

our @ISA = ('Nginx');

# The process in between lives until nginx has seen it. With "daemon on" nginx
# itself is another process than the one that was started.
sub spawn ($self) {
    pipe my $in, my $out or die "pipe: $!\n";
    my $parent = fork // die "fork: $!\n";
    if (!$parent) {
        my $child = fork // POSIX::_exit(1);
        Nginx::exec_nginx($self) if !$child;
        syswrite $out, $child if !$self->{daemon};
        my $left;
        wait_quietly(sub {
            $left ||= waitpid $child, WNOHANG;
            return -s $self->path('nginx.pid') || $left && ($? || !$self->{daemon});
        }, 20);
        syswrite $out, ($self->read('nginx.pid') =~ /^(\d+)/)[0] // $child if $self->{daemon};
        POSIX::_exit(0);
    }
    CORE::close $out;
    my $child = readline $in // die "nginx was not started\n";
    waitpid $parent, 0;
    return $child;
}

sub has_ended ($self, $child) { return !grep { !Nginx::is_gone($_) } $child, $self->{before} // () }

sub masters ($self) {
    my $before = $self->{before};
    return ($self->master_pid, defined $before && !Nginx::is_gone($before) ? $before : ());
}

# True when the new binary accepts requests beside the old one.
sub upgrade ($self) {
    my $old = $self->master_pid;
    return 0 if defined $self->{before} && !Nginx::is_gone($self->{before});
    kill USR2 => $old;
    wait_quietly(sub {
        -s $self->path('nginx.pid.oldbin') && $self->master_pid != $old
            && $self->worker_pids >= $self->{workers};
    }, 20) or return 0;
    ended($old);
    @$self{qw(before child)} = ($old, $self->master_pid);
    started($self->{child}, sub { $self->kill_all });
    return 1;
}

sub end_upgrade ($self) { kill QUIT => $self->{before} }

1;
