package Site;

# The nginx instances of a run, as machines of one site: each has its own
# memory, dies and comes back on the same ports. From each start to its end is
# a life; a memory store lasts as long, but for one in a file.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use Time::HiRes qw(sleep);

use Daemon ();
use FreePorts qw(free_ports);
use LinkLog;
use Nginx ();
use Proxy;
use Workload;

our $WORKERS = 2;
our $WITH_DISK = 1;     # which has "sync=always"
my $HERE = dirname(abs_path(__FILE__));
my $FAKETIME = '/usr/lib/*/faketime/libfaketime.so.1';

# count, store, folder, apps => [ports], redis => port, or url => of servers that
# are reached without a bad network, faketime => instance
# with a clock that can be set, users => of the workers of each instance, seed,
# redis_tls => port, other => of the application for copies, disk => of instance
# $WITH_DISK, fast => there is more load than the bad network can carry, and than
# fits into 64m
sub new ($class, %opt) {
    my $self = bless { %opt, instances => [], old => [] }, $class;
    push @{ $self->{instances} }, $self->make_instance($_) for 0 .. $opt{count} - 1;
    return $self;
}

sub make_instance ($self, $number) {
    my @names = qw(h1 h2 stub link_h1 link_h2 link_app link_redis);
    my %port;
    @port{@names} = free_ports(scalar @names);
    my $instance = { number => $number, port => \%port, life => 0 };
    $instance->{proxy} = Proxy->start(crawl => 20,
        watch => LinkLog->new(log => "$self->{folder}/links", instance => $number),
        links => {
            h1 => [@port{qw(link_h1 h1)}], h2 => [@port{qw(link_h2 h2)}],
            app => [$port{link_app}, $self->{apps}[0]],
            $self->{redis} ? (redis => [$port{link_redis}, $self->redis_port($number)]) : (),
        });
    return $instance;
}

sub instances ($self) { return @{ $self->{instances} } }

# ---- for clients ----------------------------------------------------------

sub instance_for ($self, $key) {
    my $tied = $self->{store} ne 'redis' || $ROUTES{ $key->{route} }{local};
    return $tied ? instance_of($key, $self->{count}) : int rand $self->{count};
}

sub port_of ($self, $instance, $proto, $via) {
    my $port = $self->{instances}[$instance]{port};
    return $port->{ $via eq 'proxy' ? "link_$proto" : $proto };
}

# What the fast clients have to know.
sub fast_arguments ($self) {
    my @routes = map {
        my $route = $ROUTES{$_};
        (route => join ':', $_, @$route{qw(share unknown)}, $route->{local} ? 'local' : 'shared', $route->{type} // '');
    } sort keys %ROUTES;
    my @instances = map { (instance => join ':', @{ $_->{port} }{qw(h1 h2 link_h1 link_h2)}) } $self->instances;
    return (@routes, @instances, store => $self->{store} eq 'redis' ? 'shared' : 'local',
        lease => $LEASE, 'read-timeout' => $READ_TIMEOUT);
}

# Whose memory remembers: that of one life of one nginx, of all its lives where
# it is in a file, or of all.
sub domain ($store, $route, $life) {
    return 'all' if $store eq 'redis' && !$ROUTES{$route}{local};
    return $life // '?' if $store ne 'file' || $ROUTES{$route}{local};
    return ($life // '?') =~ s/\..*//r;
}

# ---- life -----------------------------------------------------------------

sub start_all ($self) {
    $self->start($_) or die "nginx $_->{number} does not start\n" for $self->instances;
}

# Also again, on the same ports. False if it does not come up.
sub start ($self, $instance) {
    $instance->{life}++;
    my $kind = $self->{store} eq 'file' ? 'Daemon' : 'Nginx';
    my $nginx = $kind->prepare(workers => $WORKERS, env => $self->clock_env($instance),
        user => $self->{users}[$instance->{number}],
        main => join('', map {"load_module $_;\n"} split ' ', $ENV{TEST_NGINX_LUA_MODULES} // ''),
        http => $self->http_conf($instance));
    $nginx->{ports} = { 1 => $instance->{port}{h1}, 2 => $instance->{port}{h2},
        3 => $instance->{port}{stub} };
    $instance->{nginx} = $nginx;
    push @{ $self->{old} }, $nginx;
    $instance->{up} = $nginx->launch;
    $self->note_clock($instance);
    return $instance->{up};
}

sub upgrade ($self, $instance) {
    my $done = $instance->{nginx}->upgrade;
    $self->note_clock($instance);
    return $done;
}

sub load_from_other_path ($self, $instance) {
    my ($module) = split ' ', $ENV{TEST_NGINX_LOAD_MODULES};
    local $ENV{TEST_NGINX_LOAD_MODULES} = "$self->{folder}/module-" . ++$self->{modules} . '.so';
    copy($module, $ENV{TEST_NGINX_LOAD_MODULES}) or die "$module: $!\n";
    $instance->{nginx}->write_conf;
    kill HUP => $instance->{nginx}->master_pid;
}

# While it is down: for its file it was another boot of the machine.
sub feign_boot ($self, $instance) {
    my ($boot) = Nginx::slurp('/proc/sys/kernel/random/boot_id') =~ /(\S+)/ or return 0;
    my $path = $self->zone_file($instance);
    my $at = index Nginx::slurp($path), $boot;
    return 0 if $at < 0;
    open my $file, '+<', $path or die "$path: $!\n";
    seek $file, $at, 0;
    print {$file} scalar reverse $boot;
    close $file;
    return 1;
}

sub zone_file ($self, $instance) {
    return $self->{disk}->path . '/zone' if $self->{disk} && $instance->{number} == $WITH_DISK;
    return "$self->{folder}/zones/$instance->{number}";
}

sub life_name ($instance) { return "$instance->{number}.$instance->{life}" }

sub ports_free ($instance) {
    return !grep { !FreePorts::is_free($_) } @{ $instance->{port} }{qw(h1 h2 stub)};
}

sub workers_of ($instance) {
    return sort { $a <=> $b } $instance->{nginx}->worker_pids;
}

sub kill_whole ($instance) {
    my @pids = $instance->{nginx}->kill_whole;
    $instance->{up} = 0;
    return @pids;
}

# All lives that ever were, for their logs.
sub access_logs ($self) {
    return map { $_->path('access.log') } @{ $self->{old} };
}

sub logs ($self) {
    return map { ($_->path('error.log'), $_->path('stderr'), glob $_->path('sanitizer*')) }
        @{ $self->{old} };
}

sub note_clock ($self, $instance) {
    push @{ $self->{clock_pids} }, $instance->{nginx}->master_pid if $self->has_clock($instance);
}

# The library that sets the clock leaves these behind when nginx is killed.
sub clean_up ($self) {
    unlink map { ("/dev/shm/faketime_shm_$_", "/dev/shm/sem.faketime_sem_$_") } @{ $self->{clock_pids} // [] };
}

sub stop_proxies ($self) {
    $_->{proxy}->stop for $self->instances;
}

# ---- clock ----------------------------------------------------------------

sub clock_env ($self, $instance) {
    return {} if !$self->has_clock($instance);
    my ($library) = glob $FAKETIME;
    $self->set_clock($instance, 0) if !-e $self->clock_file($instance);
    return {
        LD_PRELOAD => $library, FAKETIME_TIMESTAMP_FILE => $self->clock_file($instance),
        FAKETIME_NO_CACHE => 1, FAKETIME_DONT_FAKE_MONOTONIC => 1,
    };
}

sub has_clock ($self, $instance) {
    return defined $self->{faketime} && $self->{faketime} == $instance->{number};
}

sub clock_file ($self, $instance) { return "$self->{folder}/clock-$instance->{number}" }

# Renamed into place, as nginx reads it all the time.
sub set_clock ($self, $instance, $seconds) {
    my $path = $self->clock_file($instance);
    open my $file, '>', "$path.new" or die "$path: $!\n";
    printf {$file} "%+d\n", $seconds;
    close $file;
    rename "$path.new", $path or die "$path: $!\n";
}

# ---- configuration --------------------------------------------------------

sub http_conf ($self, $instance) {
    my %port = %{ $instance->{port} };
    my $life = life_name($instance);
    my $store = $self->{url} || $self->{redis} ? $self->redis_url($instance)
        : $self->{fast} ? 'memory:256m' : 'memory:64m';
    my $small = 'memory:128k';
    if ($self->{store} eq 'file') {
        my $file = $self->zone_file($instance);
        $store .= " file=$file sync=" . (qw(off always 100ms))[$instance->{number} % 3];
        # Of its life only, but it is to outlast an upgrade.
        $small .= " file=$self->{folder}/zones/small-$life";
    }
    my $locations = join '', map { $self->location_conf($_) } sort keys %ROUTES;
    my $inner = $self->inner_conf;
    my $more = $self->{more_conf} // '';
    my $busy = $self->has_lua ? 'location = /busy { content_by_lua_block { '
        . 'os.execute("sleep " .. ngx.var.args) ngx.print(ngx.worker.pid()) } }' : '';

    my $weight = $self->{fast} ? 11 : 1;

    # The first application is behind the bad network, the second is not: so
    # one that is down is met as a broken and as a refused connection.
    return <<"CONF";
    log_format chaos '\$msec \$pid \$connection \$status \$upstream_status '
        '\$idempotency_status \$idempotency_attempt \$idempotency_token '
        '\$request_uri \$http_idempotency_key \$request_time '
        '\$idempotency_store_time \$upstream_bytes_sent';
    idempotency_store default $store;
    idempotency_store small $small;
    idempotency_scope none;
    idempotency_lease ${LEASE}s;
    $more
    lingering_timeout 1s;
    upstream app {
        server 127.0.0.1:$port{link_app} max_fails=0;
        server 127.0.0.1:$self->{apps}[1] max_fails=0 weight=$weight;
    }
    server {
        listen 127.0.0.1:$port{h1};
        listen 127.0.0.1:$port{h2} http2;
        access_log $self->{access_log};
        client_body_buffer_size 16k;
        idempotency on;
        # The hosts listen on ports of their own.
        idempotency_scope_route host method path;
        add_header X-Life $life always;
        add_header X-Worker \$pid always;
        proxy_http_version 1.1;
        proxy_set_header Connection '';
        proxy_set_header X-Life $life;
        proxy_set_header X-Worker \$pid;
        proxy_set_header X-Route \$request_uri;
        proxy_set_header X-Token \$idempotency_token;
        proxy_set_header X-Attempt \$idempotency_attempt;
        proxy_read_timeout ${READ_TIMEOUT}s;
        proxy_next_upstream error timeout invalid_header http_500 http_502 http_503
            http_504 http_429 non_idempotent;
$locations
$inner
    }
    server {
        listen 127.0.0.1:$port{stub};
        access_log off;
        location / { stub_status; }
        $busy
    }
CONF
}

# Whether a worker can be kept busy.
sub has_lua ($self) { return $ENV{TEST_NGINX_LUA_MODULES} ? 1 : 0 }

# The hosts differ in how they use Redis, and which does what in each run.
sub setting_of ($self, $number) { return (qw(plain tls copies))[($number + $self->{seed}) % 3] }

sub redis_port ($self, $number) {
    return $self->setting_of($number) eq 'tls' ? $self->{redis_tls} : $self->{redis};
}

sub redis_url ($self, $instance) {
    my $setting = $self->setting_of($instance->{number});
    my $more = $setting eq 'copies' ? ' connections=2 local=1m local_ttl=2s' : '';
    return $self->{url} . $more if $self->{url};
    my $address = "127.0.0.1:$instance->{port}{link_redis}";
    my $params = 'timeout=250ms ' . ($self->{params} // '') . $more;
    return qq("rediss://$address" $params tls_ca=$self->{folder}/ca.crt) if $setting eq 'tls';
    return qq("redis://$address" $params);
}

# Beside the routes: where copies and subrequests go.
sub inner_conf ($self) {
    my $other = "proxy_pass http://127.0.0.1:$self->{other}; proxy_set_header X-Do";
    return <<"CONF";
        location = /copies { internal; idempotency off; $other sleep=0.7; }
        location = /allowed { internal; idempotency off; $other ''; }
        location = /part { internal; proxy_pass http://app; }
        location = /afterwards { internal; idempotency off; $other refuse=404; }
        location = /admin { idempotency_admin; client_body_buffer_size 128k; }
CONF
}

sub location_conf ($self, $route) {
    my $lua = $ENV{TEST_NGINX_LUA_MODULES} ? $ROUTES{$route}{lua} : undef;
    my $lines = $lua ? $lua =~ s/%%LUA%%/$HERE\/parts.lua/r : "proxy_pass http://app;\n$ROUTES{$route}{conf}";
    return <<"CONF";
        location = /$route {
            $lines
        }
CONF
}

1;
