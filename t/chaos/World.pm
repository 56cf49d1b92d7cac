package World;

# All processes of a run, in one folder: applications, Redis, nginx with their
# networks, clients. They end with it.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Path qw(remove_tree);
use File::Temp ();
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep);

use Client;
use Disk;
use FreePorts qw(free_ports);
use Idle ();
use Lines;
use Nginx ();
use Operator;
use RedisServer;
use Running qw(catch_signals);
use Site;
use Waiting qw(wait_quietly);

my $HERE = dirname(abs_path(__FILE__));

# New claims wait so long after a failover, and for one check of the Sentinels.
our $GRACE = 1;

# A host stops claiming when three checks of the Sentinels have failed.
our $CHECK = 0.2;
our $FENCE = 3 * $CHECK;

# store, seed, instances, faketime, more_conf, forget (nothing is written down),
# params (more of the store, where it is one Redis), programs (folder of the fast
# clients and the fast application, if they are to be used)
sub new ($class, %opt) {
    my $folder = File::Temp::tempdir('chaos-XXXXXX', TMPDIR => 1);
    # nginx puts its folders here as well, and they stay until the end.
    @ENV{qw(TMPDIR TEST_NGINX_NO_CLEAN)} = ($folder, 1);
    my $self = bless { %opt, folder => $folder, children => {}, owner => $$ }, $class;
    $self->{stderr} = "$folder/stderr";
    $self->{apps} = [map { { letter => $_, port => (free_ports(1))[0], life => 0 } } qw(A B)];
    # It gets the copies of mirror, and lets everybody in.
    $self->{other} = { letter => 'M', port => (free_ports(1))[0], life => 0, ledger => '/dev/null' };
    @$self{qw(redis_port redis_tls_port)} = free_ports(2) if $opt{store} eq 'redis';
    $self->{disk} = Disk->new($folder) if $opt{store} eq 'file';
    return $self;
}

sub folder ($self) { return $self->{folder} }

sub path ($self, $name) { return "$self->{folder}/$name" }

sub log_path ($self, $name) { return $self->{forget} ? '/dev/null' : $self->path($name) }

sub site ($self) { return $self->{site} }

sub start ($self) {
    catch_signals();
    $self->start_app($_) for @{ $self->{apps} }, $self->{other};
    $self->start_redis if $self->{redis_port};
    $self->start_sentinels if $self->{store} eq 'sentinel';
    $self->start_cluster if $self->{store} eq 'cluster';
    $self->{site} = Site->new(
        count => $self->{instances}, store => $self->{shared} // $self->{store}, folder => $self->{folder},
        apps => [map { $_->{port} } @{ $self->{apps} }], redis => $self->{redis_port},
        redis_tls => $self->{redis_tls_port}, other => $self->{other}{port}, disk => $self->{disk},
        seed => $self->{seed},
        url => $self->{url}, params => $self->{params}, users => $self->{network} ? [Network::users()] : [],
        faketime => $self->{faketime}, more_conf => $self->{more_conf}, fast => defined $self->{programs},
        access_log => $self->{forget} ? 'off' : '%%DIR%%/access.log chaos');
    $self->{site}->start_all;
}

# ---- processes ------------------------------------------------------------

# Starts a program, or a sub in a process of its own.
sub spawn ($self, @what) {
    my $pid = fork // die "fork: $!\n";
    return $self->{children}{$pid} = $pid if $pid;

    $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
    # What a process complains about is a fault of the harness.
    open STDERR, '>>', $self->{stderr};
    open STDOUT, '>', '/dev/null';
    if (ref $what[0]) {
        eval { $what[0]->(); 1 } or warn "$$: $@";
        # No END blocks and destructors: they are the parent's.
        POSIX::_exit(0);
    }
    exec(@what) or POSIX::_exit(127);
}

sub end_process ($self, $pid, $signal = 'KILL') {
    kill $signal => $pid;
    waitpid $pid, 0;
    delete $self->{children}{$pid};
}

# True if all of them ended by themselves in time.
sub wait_for ($self, $seconds, @pids) {
    my $until = now() + $seconds;
    my %left = map { $_ => 1 } @pids;
    while (%left && now() < $until) {
        for my $pid (keys %left) {
            next if !waitpid $pid, POSIX::WNOHANG();
            delete $left{$pid};
            delete $self->{children}{$pid};
        }
        sleep 0.02;
    }
    $self->end_process($_) for keys %left;
    return !%left;
}

sub start_app ($self, $app) {
    $app->{name} = $app->{letter} . ++$app->{life};
    my @program = $self->{programs} ? "$self->{programs}/application" : ($^X, "$HERE/upstream.pl");
    $app->{pid} = $self->spawn(@program, '--port', $app->{port},
        '--ledger', $app->{ledger} // $self->log_path('ledger'), '--name', $app->{name}, '--parent', $$);
    wait_listening($app->{port});
}

# elsewhere: on other ports than before.
sub start_redis ($self, $elsewhere = 0) {
    if ($elsewhere) {
        @$self{qw(redis_port redis_tls_port)} = free_ports(2);
        @{ $self->{site} }{qw(redis redis_tls)} = @$self{qw(redis_port redis_tls_port)};
    }
    my @arguments = ('--port', $self->{redis_port},
        '--bind', '127.0.0.1', '--dir', $self->{folder}, '--save', '',
        '--appendonly', 'yes', '--appendfsync', 'always', '--daemonize', 'no',
        '--logfile', $self->path('redis.log'), '--tls-port', $self->{redis_tls_port},
        '--tls-cert-file', $self->path('server.crt'), '--tls-key-file', $self->path('server.key'),
        '--tls-ca-cert-file', $self->path('ca.crt'), '--tls-auth-clients', 'no');
    RedisServer::make_certificates($self->{folder}) if !-e $self->path('ca.crt');
    $self->{redis_pid} = $self->spawn(sub { RedisServer::become_server(@arguments) });
    wait_listening($self->{redis_port});
}

# A master, two replicas, three Sentinels. Records are shared, as in one Redis.
sub start_sentinels ($self) {
    require Sentinels;
    require Network;
    $self->{shared} = 'redis';
    $self->{network} = Network->new(servers => 3, sentinels => 3, hosts => $self->{instances}) if Network::is_ours();
    # Workers of nginx have users of their own there.
    chmod 0755, $self->{folder};
    $self->{sentinels} = Sentinels->start(down_after => 900, failover_timeout => 1500, network => $self->{network},
        $self->{durability} =~ /^disk/ ? (aof => 'always') : ());
    $self->{url} = $self->{sentinels}->url . ' timeout=300ms sentinel_check=' . 1000 * $CHECK . 'ms'
        . " failover_grace=${GRACE}s durability=$self->{durability} durability_timeout=140ms";
}

# Three masters with a replica each.
sub start_cluster ($self) {
    require Cluster;
    $self->{shared} = 'redis';
    $self->{cluster} = Cluster->start(node_timeout => 2000);
    $self->{url} = $self->{cluster}->url . ' timeout=300ms failover_grace=1s'
        . " durability=$self->{durability}";
}

# It has read its file, and answers.
sub wait_for_redis ($self) {
    my $up = wait_quietly(sub { Idle::ask_redis($self, 'PING') =~ /^\+PONG/ }, 10);
    die "Redis does not answer\n" if !$up;
}

# What it had is gone.
sub forget_redis ($self) {
    remove_tree($self->path('appendonlydir'), $self->path('appendonly.aof'));
}

# How far its file is written, so that a crash can lose what follows: what it has
# acknowledged until now is before that.
sub mark_redis ($self) {
    my $file = $self->redis_file // return;
    return [$file, -s $file];
}

sub redis_file ($self) {
    my @files = map { /\.(\d+)\.incr\.aof$/ ? [$_, $1] : [$_, 0] }
        glob $self->path('appendonlydir/*.incr.aof') . ' ' . $self->path('appendonly.aof');
    my ($last) = sort { $b->[1] <=> $a->[1] } grep { -e $_->[0] } @files;
    return $last ? $last->[0] : undef;
}

# While it is down. False if it has begun another file since.
sub cut_redis ($self, $mark) {
    my ($file, $size) = @{ $mark // return 0 };
    return 0 if $file ne ($self->redis_file // '') || -s $file <= $size;
    truncate $file, $size or die "$file: $!\n";
    return 1;
}

sub wait_listening ($port) {
    my $up = wait_quietly(sub { Nginx::can_connect($port) }, 10);
    die "nothing listens on $port\n" if !$up;
}

sub start_clients ($self, $count, %opt) {
    return $self->start_fast_clients('f1', %opt, seed => $self->{seed}) if $self->{programs};
    return map { $self->start_client("c$_", %opt) } 1 .. $count;
}

sub start_client ($self, $name, %opt) {
    return $self->spawn(sub {
        # Servers that are too slow are another fault than those that are meant.
        POSIX::nice(10);
        $self->client($name, %opt)->run;
    });
}

sub start_operator ($self, %opt) {
    return $self->spawn(sub {
        srand(Workload::dice("$self->{seed} operator"));
        Operator->new(site => $self->{site}, ledger => $self->path('ledger'), %opt)->run;
    });
}

# All in one process. With probe => file of keys they ask for these.
sub start_fast_clients ($self, $name, %opt) {
    my @arguments = (history => $self->log_path("history-$name"), name => $name, parent => $$,
        $self->{site}->fast_arguments, %opt);
    for (my $i = 0; $i < @arguments; $i += 2) { $arguments[$i] = "--$arguments[$i]" }
    return $self->spawn(sub {
        POSIX::nice(10);
        exec "$self->{programs}/clients", @arguments or die "exec: $!\n";
    });
}

sub client ($self, $name, %opt) {
    return Client->new(name => $name, log => $self->log_path("history-$name"),
        site => $self->{site}, seed => $self->{seed}, %opt);
}

# ---- what is written down -------------------------------------------------

# As the checker knows them.
sub lines_of_keys ($self) {
    return { ledger => [$self->path('ledger')], answers => [$self->history_files], links => [$self->path('links')] };
}

sub history_files ($self) { return glob $self->path('history-*') }

sub complaints ($self) { return Nginx::slurp($self->{stderr}) }

# ---- the end --------------------------------------------------------------

sub stop ($self) {
    return if $$ != $self->{owner} || $self->{stopped}++;
    if ($self->{site}) {
        for my $nginx (@{ $self->{site}{old} }) {
            # A stopped one could not hear anything else.
            kill CONT => map { ($_, Nginx::children_of($_)) } $nginx->masters
                if $nginx->{child};
            $nginx->kill_all;
        }
        $self->{site}->stop_proxies;
        $self->{site}->clean_up;
    }
    if (my $site = delete $self->{sentinels}) {
        $_->kill for grep { $_->pid } $site->servers, $site->sentinels;
    }
    if (my $cluster = delete $self->{cluster}) {
        $_->kill for $cluster->running;
    }
    $self->{network}->stop if $self->{network};
    kill CONT => $_ for keys %{ $self->{children} };
    $self->end_process($_) for keys %{ $self->{children} };
    $self->{disk}->stop if $self->{disk};
}

sub remove ($self) {
    remove_tree($self->{folder}) if $$ == $self->{owner};
}

sub DESTROY ($self) {
    local ($?, $@);
    $self->stop;
}

1;
