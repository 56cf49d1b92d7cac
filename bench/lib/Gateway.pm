package Gateway;

# An nginx of one process, whose CPU time can be read, and the load it gets.
#
#   my $gateway = Gateway->start(http => 'server { listen %%PORT%%; ... }');
#   my $report = $gateway->load(requests => 1000, keys => 100);
#   $gateway->cpu                      # nanoseconds so far
#   $gateway->stop;
#
# In the configuration %%PORT%% becomes a free port and %%DIR%% a directory of
# its own, in memory.

use v5.36;

use File::Temp ();
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep time);

use FreePorts qw(free_ports);
use Running qw(started ended catch_signals);

my $BINARY = $ENV{TEST_NGINX_BINARY} // '/usr/sbin/nginx';

# http, main: configuration text; modules => [paths]; cpu => the one it is
# bound to; under => [a command to run it with].
sub start ($class, %opt) {
    my $self = bless { modules => [], under => [], %opt }, $class;
    $self->{tmp} = File::Temp->newdir('bench-XXXXXX', DIR => '/dev/shm');
    ($self->{port}) = free_ports(1);
    $self->write_conf;
    catch_signals();
    $self->launch;
    return $self;
}

# Also starts again what was stopped.
sub launch ($self) {
    my @command = ($BINARY, '-p', $self->dir, '-e', 'error.log', '-c', 'nginx.conf');
    unshift @command, @{ $self->{under} };
    unshift @command, 'taskset', '-c', $self->{cpu} if defined $self->{cpu};
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        delete $ENV{NGINX};
        chdir $self->dir;
        open STDOUT, '>>', $self->dir . '/output';
        open STDERR, '>>', $self->dir . '/output';
        exec {$command[0]} @command or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    started($pid, sub { $self->stop });
    for (1 .. 600) {
        return if IO::Socket::INET->new(PeerAddr => "127.0.0.1:$self->{port}");
        last if waitpid($pid, POSIX::WNOHANG()) > 0;
        sleep 0.05;
    }
    die "nginx does not start:\n" . $self->text('error.log') . $self->text('output');
}

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    kill QUIT => $pid;
    # A connection that is still open is not worth waiting for.
    for (1 .. 40) {
        if (waitpid($pid, POSIX::WNOHANG()) > 0) {
            ended($pid);
            return;
        }
        sleep 0.05;
    }
    kill KILL => $pid;
    waitpid $pid, 0;
    ended($pid);
}

sub write_conf ($self) {
    my ($dir, $port) = ($self->dir, $self->{port});
    my $modules = join '', map {"load_module $_;\n"} @{ $self->{modules} };
    my $user = $> == 0 ? 'user root;' : '';
    my $temp = join ' ', map {"${_}_temp_path $dir/$_;"}
        qw(client_body proxy fastcgi uwsgi scgi);
    my $conf = <<"END";
$modules
daemon off; master_process off; pid nginx.pid; error_log error.log warn; $user
@{[ $self->{main} // '' ]}
events { worker_connections 25000; }
http {
    access_log off;
    keepalive_requests 1000000000;
    $temp
    $self->{http}
}
END
    $conf =~ s/%%PORT%%/127.0.0.1:$port/g;
    $conf =~ s/%%DIR%%/$dir/g;
    open my $file, '>', "$dir/nginx.conf" or die "nginx.conf: $!\n";
    print {$file} $conf;
}

# Of all its threads, in nanoseconds.
sub cpu ($self) {
    return cpu_of($self->{pid});
}

sub cpu_of ($pid) {
    my $sum = 0;
    for my $path (glob "/proc/$pid/task/*/schedstat") {
        open my $file, '<', $path or next;
        my ($on) = split ' ', readline($file) // next;
        $sum += $on;
    }
    return $sum;
}

# Options of bench/load.cpp; a list: one that is given several times. Returns what
# it says, by name.
sub load ($self, %opt) {
    return send_load($self->{port}, %opt);
}

sub send_load ($port, %opt) {
    my @command = ($ENV{BENCH_LOAD}, '--port', $port);
    push @command, '--http2' if delete $opt{http2};
    for my $name (sort keys %opt) {
        push @command, map { ("--$name", $_) } ref $opt{$name} ? @{ $opt{$name} } : $opt{$name};
    }
    open my $out, '-|', @command or die "$command[0]: $!\n";
    my %said = split ' ', readline($out) // '';
    close $out or die "the load on port $port failed\n";
    return \%said;
}

sub port ($self) { return $self->{port} }

sub pid ($self) { return $self->{pid} }

sub dir ($self) { return "$self->{tmp}" }

sub text ($self, $name) {
    open my $file, '<', $self->dir . "/$name" or return '';
    local $/;
    return readline($file) // '';
}

1;
