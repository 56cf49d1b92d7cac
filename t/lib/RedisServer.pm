package RedisServer;

# A real redis-server that tests kill, freeze and start again.
#
#   my $redis = RedisServer->start(conf => ['maxmemory 2mb']);
#   $redis->url                        # redis://127.0.0.1:PORT
#   $redis->command('GET', $key)       # dies when Redis answers with an error
#   $redis->freeze;  $redis->thaw;  $redis->kill;  $redis->restart;
#
# Another program, such as Valkey's, can be named by TEST_REDIS_BINARY.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp ();
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use Time::HiRes qw(sleep time);

use lib dirname(abs_path(__FILE__));
use FreePorts qw(free_ports);

# Debian has the server in redis-tools too, without a service that starts by
# itself: one program, which looks at its name to know what it is.
my $BINARY = '/usr/bin/redis-check-rdb';
my $TIMEOUT = 10;

my $owner = $$;
my %running;

END {
    if ($$ == $owner) {
        local $?;
        $_->kill for values %running;
    }
}

# ---- life -----------------------------------------------------------------

# conf => [lines]; port => 0 for the socket alone; bind => '127.0.0.1';
# password => that of the user default; aof => 'always' or 'everysec', else
# what is stored does not outlive the process; tls => 1, or 'client' where
# clients have to show a certificate; binary => path.
sub start ($class, %opt) {
    my $dir = File::Temp->newdir('redis-XXXXXX', TMPDIR => 1);
    # Workers of nginx may run as another user.
    chmod 0755, "$dir";
    my $self = bless { bind => '127.0.0.1', %opt, dir => $dir }, $class;
    make_certificates($self->dir) if $opt{tls};
    catch_signals();
    for (1 .. 3) {
        $self->{port} = $opt{port} // (free_ports(1))[0];
        return $self if $self->launch;
    }
    die 'redis-server does not start: ' . $self->log;
}

# Also starts again, on the same port and files, what was stopped. early => 1:
# does not wait until it has loaded what it had.
sub launch ($self, %opt) {
    $self->write_conf;
    my $pid = fork // die "fork: $!\n";
    exec_server($self) if !$pid;
    $self->{pid} = $pid;
    $running{$pid} = $self;
    return 1 if $opt{early} || $self->wait_ready;
    $self->kill;
    return 0;
}

# kill: at once. stop: without saving, as by an operator. True if it ran.
sub kill ($self) { return $self->end('KILL') }

sub stop ($self) { return $self->end('TERM') }

sub end ($self, $signal) {
    my $pid = delete $self->{pid} or return 0;
    delete $running{$pid};
    delete $self->{client};
    CORE::kill $signal => $pid;
    CORE::kill CONT => $pid;
    waitpid $pid, 0;
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
    my $until = time + $TIMEOUT;
    while (time < $until) {
        if (waitpid($self->{pid}, POSIX::WNOHANG()) > 0) {
            delete $running{ delete $self->{pid} };
            return 0;
        }
        return 1 if eval { $self->command('PING') eq 'PONG' };
        sleep 0.01;
    }
    return 0;
}

sub exec_server ($self) {
    # TAP consumers wait until the last holder of standard output is gone.
    open STDOUT, '>>', $self->log_path;
    open STDERR, '>>', $self->log_path;
    my $binary = $self->{binary} // $ENV{TEST_REDIS_BINARY} // $BINARY;
    { exec {$binary} 'redis-server', $self->path('redis.conf') }
    print "$binary: $!\n";
    POSIX::_exit(127);
}

# Perl runs no END block when a signal ends it, and Redis would stay behind.
sub catch_signals {
    for my $name (qw(INT TERM HUP)) {
        $SIG{$name} = sub { exit 1 } if !$SIG{$name} || $SIG{$name} eq 'DEFAULT';
    }
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
    my $dir = $self->dir;
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

sub address ($self) { return "127.0.0.1:$self->{port}" }

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
sub command ($self, @words) {
    my $client = $self->{client} //= $self->connect;
    my $reply = eval { $client->command(@words) };
    return $reply if !$@;
    delete $self->{client} if $@ !~ /^redis: /;
    die $@;
}

sub connect ($self) {
    my $client = RedisServer::Client->new($self->path('redis.sock'));
    $client->command('AUTH', $self->{password}) if defined $self->{password};
    return $client;
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
    delete $calls{'config|resetstat'};
    $calls{info} = ($calls{info} // 0) - ($self->{asked}++ // 0);
    return { map { $calls{$_} ? ($_ => $calls{$_}) : () } keys %calls };
}

sub reset_stats ($self) {
    $self->command('CONFIG', 'RESETSTAT');
    $self->{asked} = 0;
}

# Those of the module, by their name.
sub clients ($self) {
    return grep {/ name=idempotency /} split /\n/, $self->command('CLIENT', 'LIST');
}

package RedisServer::Client;

use IO::Socket::UNIX;

sub new ($class, $path) {
    my $sock = IO::Socket::UNIX->new(Peer => $path) or die "$path: $!\n";
    binmode $sock;
    return bless { sock => $sock, buffer => '' }, $class;
}

sub command ($self, @words) {
    local $SIG{PIPE} = 'IGNORE';
    my $bytes = join '', '*' . @words . "\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @words;
    while (length $bytes) {
        my $sent = syswrite($self->{sock}, $bytes) // die "write to Redis: $!\n";
        substr($bytes, 0, $sent, '');
    }
    return $self->reply;
}

sub reply ($self) {
    my ($type, $rest) = $self->line =~ /^(.)(.*)$/s;
    return $rest if $type =~ /[+:]/;
    die "redis: $rest\n" if $type eq '-';
    return undef if $rest < 0;
    return [map { $self->reply } 1 .. $rest] if $type eq '*';
    $self->fill while length $self->{buffer} < $rest + 2;
    my $bulk = substr($self->{buffer}, 0, $rest, '');
    substr($self->{buffer}, 0, 2, '');
    return $bulk;
}

sub line ($self) {
    my $end;
    $self->fill while ($end = index $self->{buffer}, "\r\n") < 0;
    my $line = substr($self->{buffer}, 0, $end + 2, '');
    return substr($line, 0, -2);
}

sub fill ($self) {
    IO::Select->new($self->{sock})->can_read($TIMEOUT) or die "Redis does not answer\n";
    sysread($self->{sock}, $self->{buffer}, 1 << 16, length $self->{buffer})
        or die "Redis hangs up\n";
}

1;
