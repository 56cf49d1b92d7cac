package Daemon;

# An nginx that runs as a daemon, as it does in production: nginx ignores USR2
# as long as the process lives that started it. Otherwise as Nginx.
#
#   my $ng = Daemon->start(http => $conf);
#   $ng->upgrade;         # the new binary runs, and so does the old one
#   $ng->end_upgrade;     # the old one is asked to leave

use v5.36;

use Nginx ();
use Running qw(started ended);
use Waiting qw(wait_quietly);

our @ISA = ('Nginx');

sub daemon ($self) { return 'on' }

# The process that is started leaves when the configuration is good; the one
# that stays is its child.
sub spawn ($self) {
    my $parent = fork // die "fork: $!\n";
    Nginx::exec_nginx($self) if !$parent;
    waitpid $parent, 0;
    wait_quietly(sub { -s $self->path('nginx.pid') }, 20) if $? == 0;
    return $self->master_pid // $parent;
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
