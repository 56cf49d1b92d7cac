package Contenders;

# Who is measured. Each is a gateway before the same application, with four
# locations: /new and /replay, /small and /large. What is stored by /new expires
# soon, so that all stores reach a steady state.
#
#   my $all = Contenders->start($application, cpu => 0, node => 1, only => {memory => 1});
#   for my $contender ($all->list) { $contender->{gateway}->load(...) }

use v5.36;

use FindBin;
use POSIX ();
use Time::HiRes qw(sleep);

use Application;
use FreePorts qw(free_ports);
use Gateway;
use Node;
use RedisServer;
use Running qw(started ended);

my $MODULE = $ENV{TEST_NGINX_LOAD_MODULES};
my $DEBIAN = '/usr/lib/nginx/modules';
my $OWN = "$FindBin::Bin/contenders";
my %TTL = (new => 2, replay => 3600);
# So short that records of a measurement expire while it runs. The others, which
# know whole seconds only, are spared that work.
my %MODULE_TTL = (new => '100ms', warm => '2s', replay => '1h');

# limit: what the others are compared with. only: the kinds of requests it is
# there for. load: options of the load.
sub table ($self) {
    my $module = [$MODULE];
    return (
        { name => 'bare proxy_pass', id => 'bare', limit => 'new' },
        { name => 'return 200', id => 'return', limit => 'replay', body => \&return_answer },
        { name => 'module loaded, off', id => 'off', modules => $module, only => 'new' },
        { name => 'module on, no key sent', id => 'nokey', modules => $module, only => 'new',
            http => 'idempotency_store default memory:64m;', body => \&module,
            load => { keys => -1 } },
        { name => '**module, memory**', id => 'memory', modules => $module,
            http => 'idempotency_store default memory:512m;', body => \&module, warm => 1 },
        { name => '**module, memory, fresh zone**', id => 'fresh', modules => $module, only => 'new',
            http => 'idempotency_store default memory:2g;', body => \&module_fresh, fresh => 1 },
        { name => '**module, Redis**', id => 'redis', modules => $module,
            http => 'idempotency_store default ' . $self->redis->url . ';', body => \&module },
        { name => '**module, Redis, local copy**', id => 'local', modules => $module,
            http => $self->local_stores, body => \&module_local },
        { name => '**module, Redis over TLS**', id => 'tls', modules => $module,
            http => $self->tls_store, body => \&module },
        { name => 'proxy_cache with POST', id => 'proxy_cache', body => \&proxy_cache,
            http => 'proxy_cache_path %%DIR%%/cache keys_zone=answers:64m levels=1:2 max_size=4g;' },
        { name => 'srcache + memcached', id => 'srcache', body => \&srcache,
            modules => [map {"$DEBIAN/ngx_http_${_}_module.so"} qw(srcache_filter memc)],
            http => $self->memcached_upstream, server => memc_location() },
        { name => 'Lua, shared dict', id => 'lua', body => \&lua_dict, modules => lua_modules(),
            http => "lua_shared_dict records 512m; lua_package_path '$OWN/?.lua;;';" },
        { name => 'Lua, Redis by cosocket', id => 'lua_redis', body => \&lua_redis,
            modules => lua_modules(), server => application_location(),
            http => "lua_package_path '$OWN/?.lua;;'; lua_socket_pool_size 128;" },
        { name => 'bare proxy_pass, HTTP/2', id => 'bare2', http2 => 1, limit => 'new' },
        { name => 'return 200, HTTP/2', id => 'return2', http2 => 1, limit => 'replay',
            body => \&return_answer },
        { name => '**module, memory, HTTP/2**', id => 'memory2', http2 => 1, modules => $module,
            http => 'idempotency_store default memory:512m;', body => \&module, warm => 1 },
    );
}

sub start ($class, $application, %opt) {
    my $self = bless { application => $application, cpu => $opt{cpu} }, $class;
    my @list = $self->table;
    push @list, map { other($_, $opt{against}) } grep { $_->{id} =~ /^(memory|fresh|redis)$/ } @list
        if $opt{against};
    if (my $only = $opt{only}) {
        @list = grep { $_->{limit} && !$_->{http2} || $only->{ $_->{id} } } @list;
    }
    $self->launch($_) for @list;
    push @list, Node->contender($application) if $opt{node} && (!$opt{only} || $opt{only}{node});
    $self->{list} = \@list;
    return $self;
}

# The same with another build of the module.
sub other ($one, $module) {
    return { %$one, name => $one->{name} =~ s/module/other module/r, id => "$one->{id}0",
        modules => [$module] };
}

sub list ($self) { return @{ $self->{list} } }

sub stop ($self) {
    $_->{gateway}->stop for $self->list;
    $_->stop for grep {defined} @$self{qw(redis tls)};
    return if !$self->{memcached};
    kill TERM => $self->{memcached};
    waitpid $self->{memcached}, 0;
    ended($self->{memcached});
}

# ---- configuration --------------------------------------------------------

sub launch ($self, $one) {
    my @where = map { my $kind = $_; map { { kind => $kind, size => $_ } } qw(small large) }
        qw(new replay);
    # Where records last long enough to fill the zone, so that its pages are used.
    push @where, { kind => 'warm', size => 'large' } if $one->{warm};
    my $locations = join '', map { $self->location($one, $_) } @where;
    my $listen = $one->{http2} ? 'listen %%PORT%% http2;' : 'listen %%PORT%%;';
    my $upstreams = join '', map {
        "upstream $_ { server 127.0.0.1:@{[ $self->{application}->port($_) ]}; keepalive 64; }\n"
    } qw(small large);
    $one->{gateway} = Gateway->start(
        cpu => $self->{cpu}, modules => $one->{modules} // [],
        http => join "\n", Application::answers(), $upstreams, $one->{http} // '',
            'client_body_buffer_size 64k; proxy_buffers 16 8k;',
            "server { $listen", $one->{server} // '', $locations, '}');
}

sub location ($self, $one, $where) {
    my $body = $one->{body} // \&proxy;
    return "location /$where->{kind}/$where->{size} {\n" . $body->($self, $where) . "}\n";
}

sub proxy ($self, $where) {
    return "proxy_pass http://$where->{size}; proxy_http_version 1.1;\n"
        . "proxy_set_header Connection '';\n";
}

sub return_answer ($self, $where) { return "return 200 \$$where->{size};\n" }

sub module ($self, $where) {
    return "idempotency on; idempotency_scope none;\n"
        . "idempotency_ttl $MODULE_TTL{ $where->{kind} };\n" . proxy($self, $where);
}

# Nothing expires, or pages would be used again.
sub module_fresh ($self, $where) {
    return module($self, { %$where, kind => 'warm' });
}

sub module_local ($self, $where) {
    return module($self, $where) =~ s/idempotency on/idempotency $where->{kind}/r;
}

# On tmpfs. One request of a key goes through, the others wait.
sub proxy_cache ($self, $where) {
    return "proxy_cache answers; proxy_cache_methods POST; proxy_cache_lock on;\n"
        . "proxy_cache_key \$http_idempotency_key\$uri;\n"
        . "proxy_cache_valid 200 $TTL{ $where->{kind} }s;\n" . proxy($self, $where);
}

sub srcache ($self, $where) {
    my $memc = "/memc/$where->{kind} \$http_idempotency_key\$uri";
    return "srcache_methods POST; srcache_store_statuses 200; srcache_store_max_size 1m;\n"
        . "srcache_fetch GET $memc; srcache_store PUT $memc;\n" . proxy($self, $where);
}

sub lua_dict ($self, $where) {
    my $ttl = $TTL{ $where->{kind} };
    return "access_by_lua_block { require('dict').admit($ttl) }\n"
        . "body_filter_by_lua_block { require('dict').keep($ttl) }\n" . proxy($self, $where);
}

sub lua_redis ($self, $where) {
    my $port = $self->redis->port;
    return "content_by_lua_block { require('redis').answer($port, $TTL{ $where->{kind} }, "
        . "'/application/$where->{size}') }\n";
}

sub lua_modules { return [map {"$DEBIAN/$_"} 'ndk_http_module.so', 'ngx_http_lua_module.so'] }

sub application_location {
    return join '', map {
        "location /application/$_ { internal; proxy_pass http://$_; proxy_http_version 1.1;\n"
            . "proxy_set_header Connection ''; }\n"
    } qw(small large);
}

sub memc_location {
    return join '', map {
        "location /memc/$_ { internal; set \$memc_key \$query_string;\n"
            . "set \$memc_exptime $TTL{$_}; memc_pass memcached; }\n"
    } qw(new replay);
}

# ---- stores ---------------------------------------------------------------

sub redis ($self) { return $self->{redis} //= RedisServer->start }

# What is new must not push out the copies of what is replayed.
sub local_stores ($self) {
    my %size = (new => '16m', replay => '256m');
    return join '', map {
        "idempotency_store $_ @{[ $self->redis->url ]} prefix=$_: local=$size{$_} local_ttl=1h;\n"
    } sort keys %size;
}

sub tls_store ($self) {
    my $redis = $self->{tls} //= RedisServer->start(tls => 1);
    return 'idempotency_store default ' . $redis->url . ' tls_ca='
        . $redis->path('ca.crt') . ';';
}

sub memcached_upstream ($self) {
    my ($port) = free_ports(1);
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        my @user = $> == 0 ? ('-u', 'root') : ();
        exec('memcached', '-l', '127.0.0.1', '-p', $port, '-m', 4096, '-I', '1m', '-t', 1, @user)
            or POSIX::_exit(127);
    }
    $self->{memcached} = $pid;
    started($pid, sub { kill TERM => $pid });
    sleep 0.2;
    return "upstream memcached { server 127.0.0.1:$port; keepalive 64; }";
}

1;
