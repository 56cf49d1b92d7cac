package RedisServer;

# A real redis-server that tests kill, freeze and start again.
#
#   my $redis = RedisServer->start(conf => ['maxmemory 2mb']);
#   $redis->url                        # redis://127.0.0.1:PORT
#   $redis->command('GET', $key)       # dies when Redis answers with an error
#   $redis->freeze;  $redis->thaw;  $redis->kill;  $redis->restart;
#
# Another program, such as Valkey's, can be named by TEST_REDIS_BINARY.

use v5.36;

use File::Temp ();
use IO::Socket::UNIX;
use POSIX ();
use Redis;

use FreePorts qw(free_ports);
use Running qw(started ended catch_signals);
use Waiting qw(wait_quietly);

# Debian has the server in redis-tools too, without a service that starts by
# itself: one program, which looks at its name to know what it is.
my $BINARY = '/usr/bin/redis-check-rdb';
my $TIMEOUT = 10;
my $SETNS = (POSIX::uname())[4] eq 'x86_64' ? 308 : 268;

# ---- life -----------------------------------------------------------------

# conf => [lines]; port => 0 for the socket alone; bind => '127.0.0.1';
# password => that of the user default; aof => 'always' or 'everysec', else
# what is stored does not outlive the process; tls => 1, or 'client' where
# clients have to show a certificate; sentinel => 1: it is a Sentinel;
# certificates => the folder of another server that has made some; host => its
# address, netns => a process in whose network it is.
sub start ($class, %opt) {
    my $dir = File::Temp->newdir('redis-XXXXXX', TMPDIR => 1, CLEANUP => !$ENV{TEST_NGINX_NO_CLEAN});
    # Workers of nginx may run as another user.
    chmod 0755, "$dir";
    my $self = bless { bind => $opt{host} // '127.0.0.1', %opt, dir => $dir }, $class;
    $self->{certificates} //= $self->dir;
    make_certificates($self->dir) if $opt{tls} && !$opt{certificates};
    catch_signals();
    for (1 .. 3) {
        $self->{port} = $opt{port} // (free_ports(1))[0];
        return $self if $self->launch;
    }
    die 'redis-server does not start: ' . $self->log;
}

# Also starts again, on the same port and files, what was stopped. early => 1:
# does not wait until it has loaded what it had. rewritten => 1: with what it has
# made of its configuration.
sub launch ($self, %opt) {
    $self->write_conf if !$opt{rewritten};
    my $pid = fork // die "fork: $!\n";
    exec_server($self) if !$pid;
    $self->{pid} = $pid;
    started($pid, sub { $self->kill });
    return 1 if $opt{early} || $self->wait_ready;
    $self->kill;
    return 0;
}

# kill: at once. stop: without saving, as by an operator. True if it ran.
sub kill ($self) { return $self->end('KILL') }

sub stop ($self) { return $self->end('TERM') }

sub end ($self, $signal) {
    my $pid = delete $self->{pid} or return 0;
    delete $self->{client};
    # One that stands still would not hear of it.
    CORE::kill $signal => $pid;
    CORE::kill CONT => $pid;
    waitpid $pid, 0;
    ended($pid);
    return 1;
}

# Empty, unless it has an AOF.
sub restart ($self) {
    $self->stop;
    $self->launch or die 'redis-server does not start again: ' . $self->log;
}

# Connections stay and are accepted; nobody answers.
sub freeze ($self) { CORE::kill STOP => $self->{pid} }

sub thaw ($self) { CORE::kill CONT => $self->{pid} }

sub wait_ready ($self) {
    my $has_ended;
    my $up = wait_quietly(sub {
        $has_ended = waitpid($self->{pid}, POSIX::WNOHANG()) > 0;
        $has_ended || eval { $self->command('PING') eq 'PONG' };
    }, $TIMEOUT);
    ended(delete $self->{pid}) if $has_ended;
    return $up && !$has_ended;
}

sub exec_server ($self) {
    # TAP consumers wait until the last holder of standard output is gone.
    open STDOUT, '>>', $self->log_path;
    open STDERR, '>>', $self->log_path;
    enter_network($self->{netns}) if $self->{netns};
    become_server($self->path('redis.conf'), $self->{sentinel} ? '--sentinel' : ());
}

# Of another process. What setns() has for a number Perl does not know.
sub enter_network ($pid) {
    open my $file, '<', "/proc/$pid/ns/net" or die "no network of process $pid: $!\n";
    syscall($SETNS, fileno $file, 0) == 0 or die "setns: $!\n";
}

# Never returns.
sub become_server (@arguments) {
    my $binary = $ENV{TEST_REDIS_BINARY} // $BINARY;
    { exec {$binary} 'redis-server', @arguments }
    print STDERR "$binary: $!\n";
    POSIX::_exit(127);
}

# Whether it is one before 7.0, which does not know SET ... NX GET.
sub is_old {
    state $old = do {
        my $child = open(my $out, '-|') // die "fork: $!\n";
        become_server('--version') if !$child;
        my $text = do { local $/; readline $out } // '';
        CORE::close $out;
        $text =~ /^Redis server v=[0-6]\./ ? 1 : 0;
    };
    return $old;
}

# ---- configuration --------------------------------------------------------

sub write_conf ($self) {
    open my $file, '>', $self->path('redis.conf') or die "redis.conf: $!\n";
    print {$file} map {"$_\n"} $self->conf;
    CORE::close $file;
}

sub conf ($self) {
    my $dir = $self->dir;
    return ("dir $dir", "unixsocket $dir/redis.sock", 'unixsocketperm 777',
        "bind $self->{bind}", 'protected-mode no', 'save ""', 'databases 16',
        $self->{aof} ? ('appendonly yes', "appendfsync $self->{aof}") : (),
        defined $self->{password} ? "requirepass $self->{password}" : (),
        $self->{tls} ? $self->tls_conf : "port $self->{port}",
        @{ $self->{conf} // [] });
}

sub tls_conf ($self) {
    my $dir = $self->{certificates};
    return ('port 0', "tls-port $self->{port}", "tls-cert-file $dir/server.crt",
        "tls-key-file $dir/server.key", "tls-ca-cert-file $dir/ca.crt",
        'tls-auth-clients ' . ($self->{tls} eq 'client' ? 'yes' : 'no'));
}

# In the directory: ca, foreign-ca, server and client, each .crt and .key.
sub make_certificates ($dir) {
    my @new = (qw(openssl req -x509 -newkey ec -pkeyopt),
        qw(ec_paramgen_curve:prime256v1 -nodes -days 2));
    my @by_ca = ('-CA' => "$dir/ca.crt", '-CAkey' => "$dir/ca.key");
    my $names = 'subjectAltName=DNS:redis.test,DNS:localhost,IP:127.0.0.1';
    my %more = (server => [@by_ca, '-addext' => $names], client => \@by_ca);
    for my $name (qw(ca foreign-ca server client)) {
        my @command = (@new, '-subj' => "/CN=$name", '-keyout' => "$dir/$name.key",
            '-out' => "$dir/$name.crt", @{ $more{$name} // [] });
        my $said = run_quietly(@command);
        die "openssl makes no certificate: $said" if $?;
    }
}

sub run_quietly (@command) {
    my $child = open(my $out, '-|') // die "fork: $!\n";
    if (!$child) {
        open STDERR, '>&', \*STDOUT;
        exec(@command) or POSIX::_exit(127);
    }
    my $text = do { local $/; readline $out } // '';
    CORE::close $out;
    return $text;
}

# ---- addresses and files --------------------------------------------------

sub port ($self) { return $self->{port} }

sub pid ($self) { return $self->{pid} }

sub dir ($self) { return "$self->{dir}" }

sub path ($self, $name) { return "$self->{dir}/$name" }

sub host ($self) { return $self->{host} // '127.0.0.1' }

sub address ($self) { return $self->host . ":$self->{port}" }

sub url ($self) {
    return ($self->{tls} ? 'rediss' : 'redis') . '://' . $self->address;
}

sub unix_url ($self) { return 'redis+unix:' . $self->path('redis.sock') }

sub log_path ($self) { return $self->path('log') }

sub log ($self) {
    open my $file, '<', $self->log_path or return '';
    local $/;
    return readline($file) // '';
}

# ---- commands -------------------------------------------------------------

# Through the socket, which is never encrypted. Status and bulk replies are
# strings, arrays are references, nothing is undef.
sub command ($self, $name, @words) {
    local $SIG{PIPE} = 'IGNORE';
    my $client = $self->{client} //= Redis->new(sock => $self->path('redis.sock'),
        password => $self->{password}, read_timeout => $TIMEOUT, write_timeout => $TIMEOUT);
    # The methods in small letters make something else of some replies.
    my $method = uc $name;
    my $reply = eval { $client->$method(@words) };
    return $reply if !$@;
    # An error that Redis answered with leaves the connection as it is.
    delete $self->{client} if $@ !~ /^\[/;
    die $@;
}

sub info_field ($self, $name) {
    my ($value) = $self->command('INFO', 'everything') =~ /^\Q$name\E:([^\r]*)/m;
    $self->{asked}++;
    return $value;
}

# How often each command was executed, by clients and by scripts, since the
# statistics began anew; without those that ask for them.
sub command_stats ($self) {
    my $text = $self->command('INFO', 'commandstats');
    my %calls = $text =~ /^cmdstat_(\S+?):calls=(\d+)/mg;
    delete @calls{qw(config|resetstat config)};
    $calls{info} = ($calls{info} // 0) - ($self->{asked}++ // 0);
    return { map { $calls{$_} ? ($_ => $calls{$_}) : () } keys %calls };
}

sub reset_stats ($self) {
    $self->command('CONFIG', 'RESETSTAT');
    $self->{asked} = 0;
}

# The commands about records that clients send while this runs. Those of a
# worker that connects meanwhile are about other keys.
sub commands_during ($self, $code) {
    my $socket = IO::Socket::UNIX->new($self->path('redis.sock')) // die "redis.sock: $!\n";
    print {$socket} "MONITOR\r\n";
    readline $socket;
    $code->();
    $self->command('ECHO', 'that was all');
    my @lines;
    while (defined(my $line = readline $socket)) {
        return grep { /"idem:[0-9a-f]{32}"/ && !/ \[\d+ lua\] / } @lines if $line =~ /"that was all"/;
        push @lines, $line;
    }
    die "Redis has left\n";
}

# Those of the module, by their name.
sub clients ($self) {
    return grep {/ name=idempotency /} split /\n/, $self->command('CLIENT', 'LIST');
}

1;
