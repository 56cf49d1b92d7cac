package Nginx;

# A real nginx with master and workers for tests that reload, kill and crash.
#
#   my $ng = Nginx->start(http => <<'CONF', workers => 2);
#   server {
#       listen 127.0.0.1:%%PORT%%;
#       location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
#   }
#   CONF
#
# In the configuration %%PORT%%, %%PORT2%%, ... become free ports, %%DIR%% the
# directory of this nginx, and $TEST_NGINX_* the environment variable.

use v5.36;

use Exporter 'import';
use File::Temp ();
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use Test::More ();
use Time::HiRes qw(sleep time);

use FreePorts qw(free_ports);
use Http1 qw(request send_request parallel collect);
use Running qw(started ended catch_signals);
use Store;
use Waiting qw(wait_until wait_quietly);

our @EXPORT = qw(request send_request parallel collect wait_until is_gone
    nginx_has_reached memory_only redis_only on_redis on_file);

# ---- life -----------------------------------------------------------------

# http, main, events: configuration text; preamble: what stands before the
# line that loads the module; workers => 1; debug => 1;
# env => {NAME => value}, also handed on to the workers; user => of the workers.
sub start ($class, %opt) {
    my $self = $class->prepare(%opt);
    catch_signals();
    for my $attempt (1 .. 3) {
        return $self if $self->launch;
        last if $self->error_log !~ /bind\(\) .* failed \(98/;
        # Somebody else took a port that was free a moment ago.
        $self->{ports} = {};
        unlink map { $self->path($_) } 'error.log', 'stderr';
        unlink glob $self->path('sanitizer*');
    }
    die 'nginx does not start: ' . $self->error_log . $self->read('stderr');
}

sub prepare ($class, %opt) {
    my $dir = File::Temp->newdir('nginx-XXXXXX', TMPDIR => 1,
        CLEANUP => !$ENV{TEST_NGINX_NO_CLEAN});
    # Workers may run as another user.
    chmod 0755, "$dir";
    return bless { workers => 1, http => '', prefix => Store::new_prefix(), %opt,
        dir => $dir, ports => {} }, $class;
}

# Also starts again, on the same ports and files, what was stopped.
sub launch ($self) {
    unlink $self->path('nginx.pid');
    $self->write_conf;
    my $child = $self->{child} = $self->spawn;
    started($child, sub { $self->kill_all });

    my $up = wait_quietly(sub { $self->reaped || $self->is_up }, 20);
    return 1 if $up && $self->{child};
    $self->kill_all;
    return 0;
}

sub spawn ($self) {
    my $child = fork // die "fork: $!\n";
    exec_nginx($self) if !$child;
    return $child;
}

sub daemon ($self) { return 'off' }

# QUIT lets requests finish. True if nginx left by itself in time.
sub stop ($self, %opt) {
    return 1 if !$self->{child};
    kill $opt{signal} // 'QUIT', $self->masters;
    my $gone = wait_quietly(sub { $self->reaped }, $opt{timeout} // 10);
    $self->kill_all if !$gone;
    return $gone;
}

# As when the machine loses its power: nobody says goodbye. A master that still
# runs could start a worker that nobody kills. Returns what was killed.
sub kill_whole ($self) {
    kill STOP => $self->masters;
    sleep 0.01;
    my @pids = $self->processes;
    kill KILL => @pids;
    wait_quietly(sub { $self->reaped && !grep { !is_gone($_) } @pids }, 5);
    return @pids;
}

sub restart ($self, %opt) {
    $self->stop(%opt);
    return $self->launch;
}

# True when only new workers accept requests; false if nginx refused.
sub reload ($self) {
    my %old = map { $_ => 1 } $self->worker_pids;
    my $mark = length $self->error_log;
    kill HUP => $self->master_pid;
    my $refused;
    my $done = wait_quietly(sub {
        $refused = substr($self->error_log, $mark) =~ /\[emerg\]/;
        my @pids = $self->worker_pids;
        return $refused || @pids >= $self->{workers} && !grep { $old{$_} } @pids;
    }, 20);
    return $done && !$refused;
}

sub reload_config ($self, $http, %opt) {
    %$self = (%$self, %opt, http => $http);
    $self->write_conf;
    return $self->reload;
}

sub kill_all ($self) {
    return if !$self->{child};
    my @masters = $self->masters;
    my @workers = map { children_of($_) } @masters;
    kill TERM => @masters;
    return if wait_quietly(sub { $self->reaped }, 3);
    kill KILL => @masters, @workers, $self->{child};
    wait_quietly(sub { $self->reaped }, 3);
}

sub reaped ($self) {
    my $child = $self->{child} or return 1;
    return 0 if !$self->has_ended($child);
    ended($child);
    undef $self->{child};
    return 1;
}

sub has_ended ($self, $child) { return waitpid($child, WNOHANG) != 0 }

sub is_up ($self) {
    return $self->worker_pids >= $self->{workers}
        && !grep { !can_connect($_) } values %{ $self->{ports} };
}

sub can_connect ($port) {
    return defined IO::Socket::INET->new(
        PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 1);
}

# ---- processes ------------------------------------------------------------

# From the pid file, since the binary may be a wrapper script.
sub master_pid ($self) {
    my ($pid) = $self->read('nginx.pid') =~ /^(\d+)/;
    return $pid // $self->{child};
}

# More than one during an upgrade.
sub masters ($self) { return $self->master_pid }

# Only workers that accept requests: none that shuts down, no cache manager.
sub worker_pids ($self) {
    my ($pid) = $self->read('nginx.pid') =~ /^(\d+)/;
    my @pids = grep { slurp("/proc/$_/cmdline") =~ /worker process(?! is)/ }
        defined $pid ? children_of($pid) : ();
    return @pids;
}

# Every process of it, those that shut down included.
sub processes ($self) { return map { ($_, children_of($_)) } $self->masters }

sub children_of ($pid) {
    my @children;
    for my $stat (glob '/proc/[0-9]*/stat') {
        my ($child, $state, $parent) =
            slurp($stat) =~ /^(\d+) \(.*\) (\S) (\d+)/s or next;
        push @children, $child if $parent == $pid && $state ne 'Z';
    }
    return @children;
}

# A zombie that nobody waits for has ended too.
sub is_gone ($pid) { return !-e "/proc/$pid/exe" || !kill 0, $pid }

# Whether the nginx under test is this version or a later one.
sub nginx_has_reached ($version) {
    my ($ours) = qx{${\($ENV{TEST_NGINX_BINARY} || 'nginx')} -v 2>&1} =~ m{nginx/([\d.]+)};
    return version->parse($ours) >= version->parse($version);
}

sub exec_nginx ($self) {
    my %env = (%{ $self->{env} // {} }, sanitizer_env($self->path('sanitizer')));
    @ENV{ keys %env } = values %env;
    # TAP consumers wait until the last holder of standard output is gone.
    open STDOUT, '>', '/dev/null';
    open STDERR, '>>', $self->path('stderr');
    exec(command($self->{dir}))
        or POSIX::_exit(127);
}

sub command ($dir, @more) {
    return ($ENV{TEST_NGINX_BINARY} || 'nginx',
        '-p', "$dir/", '-e', "$dir/error.log", '-c', "$dir/nginx.conf", @more);
}

sub sanitizer_env ($log) {
    return map { $_ => join ':', grep {defined} $ENV{$_}, "log_path=$log" }
        qw(ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS);
}

# ---- configuration --------------------------------------------------------

# (true if nginx accepts it, what nginx said)
sub conf_test ($class, $http, %opt) {
    my $self = $class->prepare(%opt, http => $http);
    $self->write_conf;
    my $child = open(my $out, '-|') // die "fork: $!\n";
    if (!$child) {
        # nginx -t does not free its memory: a leak would decide its status.
        $ENV{ASAN_OPTIONS} = join ',', grep {defined} $ENV{ASAN_OPTIONS}, 'detect_leaks=0';
        open STDERR, '>&', \*STDOUT;
        exec(command($self->{dir}, '-t')) or POSIX::_exit(127);
    }
    my $text = do { local $/; readline $out } // '';
    return (CORE::close($out) ? 1 : 0, $text);
}

sub write_conf ($self) {
    open my $file, '>', $self->path('nginx.conf') or die "nginx.conf: $!\n";
    print {$file} $self->conf;
    CORE::close $file;
}

sub conf ($self) {
    my $level = $self->{debug} ? 'debug' : 'info';
    return $self->expand(join '', map {"$_\n"}
        $self->{preamble} // '',
        (map {"load_module $_;"} split ' ', $ENV{TEST_NGINX_LOAD_MODULES} // ''),
        $> == 0 ? 'user ' . ($self->{user} // 'root') . ';' : (),
        (map {"env $_;"} sort keys %{ $self->{env} // {} }),
        'daemon ' . $self->daemon . ';', 'master_process on;', "worker_processes $self->{workers};",
        'pid %%DIR%%/nginx.pid;', 'lock_file %%DIR%%/nginx.lock;',
        "error_log %%DIR%%/error.log $level;",
        may_open(16384) ? 'worker_rlimit_nofile 16384;' : (), $self->{main} // '',
        'events {', 'worker_connections 4096;', $self->{events} // '', '}',
        'http {', 'access_log %%DIR%%/access.log;', 'default_type text/plain;',
        (map {"${_}_temp_path %%DIR%%/$_;"} qw(client_body proxy fastcgi scgi uwsgi)),
        Store::default_line($self->{http}, $self->{prefix}), $self->{http}, '}');
}

# Beyond the hard limit nginx would log an alert.
sub may_open ($files) {
    my ($limit) = slurp('/proc/self/limits') =~ /^Max open files\s+\S+\s+(\w+)/m;
    return 0 if !defined $limit;
    return $limit eq 'unlimited' || $limit >= $files;
}

sub expand ($self, $text) {
    $text =~ s/%%DIR%%/$self->{dir}/g;
    $text =~ s/%%PORT(\d*)%%/$self->port($1 || 1)/ge;
    $text =~ s/\$(TEST_NGINX_[A-Z0-9_]+)/$ENV{$1} \/\/ die "$1 is not set\n"/ge;
    return $text;
}

sub port ($self, $number = 1) {
    return $self->{ports}{$number} //= (free_ports(1))[0];
}

# ---- files ----------------------------------------------------------------

sub dir ($self) { return "$self->{dir}" }

sub path ($self, $name) { return "$self->{dir}/$name" }

sub read ($self, $name) { return slurp($self->path($name)) }

sub error_log ($self) { return $self->read('error.log') }

sub access_log ($self) { return $self->read('access.log') }

sub slurp ($path) {
    open my $file, '<', $path or return '';
    local $/;
    return readline($file) // '';
}

my $TROUBLE = join '|', '\[(?:alert|emerg)\]', 'exited on signal',
    'exited with code [1-9]', '(?:Address|Leak|Thread|Memory)Sanitizer',
    'UndefinedBehaviorSanitizer', 'runtime error:';

# Best after stop(), as much is reported only then. allow => regex of lines
# that are expected.
sub check_logs ($self, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $allow = $opt{allow};
    my @lines = map { split /\n/, $_ } $self->error_log, $self->read('stderr'),
        map { slurp($_) } glob $self->path('sanitizer*');
    my @bad = grep { /$TROUBLE/ && !($allow && /$allow/) } @lines;
    return Test::More::ok(!@bad, $opt{name} // 'nothing alarming in the logs')
        || Test::More::diag(join "\n", @bad);
}

1;
