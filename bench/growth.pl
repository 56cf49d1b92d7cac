#!/usr/bin/perl

# How what a request costs grows: with its headers and its body, with requests
# in flight, with duplicates that wait for one. CPU time of the gateway, bare
# and with the module on memory. How it grows with the number of records, say
# zone-time.cpp, zone-size.cpp and redis-size.sh.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/lib", "$FindBin::Bin/../t/lib";

use POSIX ();

use Application;
use FreePorts qw(free_ports);
use Gateway;
use Report;

my $ROUNDS = 5;
my $application = Application->new;
my $runs = 0;

main();

sub main {
    # Answers after half a second, so that there are many at once.
    # On some ports, as the system lets no more than 4,096 wait for one.
    my @slow = free_ports(8);
    my $listen = join ' ', map {"listen 127.0.0.1:$_ backlog=4096;"} @slow;
    my $slow = Gateway->start(modules => [map {"/usr/lib/nginx/modules/$_"}
            'ndk_http_module.so', 'ngx_http_lua_module.so'],
        http => "server { listen %%PORT%%; $listen location / { content_by_lua_block { "
            . 'ngx.sleep(0.5) ngx.print(string.rep("x", 300)) } } }');
    my @gateways = map { gateway(\@slow, $_) } 0, 1;

    print head('headers', 'new');
    row(\@gateways, $_, { headers => $_, requests => 3000 }) for 0, 10, 50;
    print head('JSON body, bytes', 'new');
    row(\@gateways, $_, { body => $_, requests => $_ > 50000 ? 200 : 2000 })
        for 300, 1024, 4096, 16384, 65536, 262144, 1048576;
    print head('keys in flight', 'new');
    row(\@gateways, $_, { path => '/slow', connections => $_, requests => $_ > 2000 ? $_ : 2 * $_ },
        $_ > 2000 ? 2 : $ROUNDS) for 10, 100, 1000, most_in_flight();
    print head('requests with one key at once', 'each');
    row([$gateways[1]], $_, { path => '/slow', keys => 1, connections => $_, requests => $_ })
        for 10, 100, 1000;
    $_->stop for @gateways, $slow;
}

# 10,000, or what the limit of open files lets be: each takes two.
sub most_in_flight {
    my $files = int((POSIX::sysconf(POSIX::_SC_OPEN_MAX()) - 1000) / 2000) * 1000;
    return $files < 10000 ? $files : 10000;
}

sub gateway ($slow, $with) {
    my $protect = $with ? 'idempotency on; idempotency_scope none; idempotency_ttl 5s; idempotency_wait 5s;' : '';
    my $more = "$protect proxy_http_version 1.1; proxy_set_header Connection '';";
    return Gateway->start(modules => [$ENV{TEST_NGINX_LOAD_MODULES}], http => <<"END");
    @{[ $with ? 'idempotency_store default memory:512m;' : '' ]}
    large_client_header_buffers 8 64k; client_max_body_size 8m; client_body_buffer_size 2m;
    upstream fast { server 127.0.0.1:@{[ $application->port('small') ]}; keepalive 64; }
    upstream slow { @{[ map {"server 127.0.0.1:$_;"} @$slow ]} keepalive 10000; }
    server {
        listen %%PORT%% backlog=4096;
        location / { $more proxy_pass http://fast; }
        location /slow { $more proxy_pass http://slow; }
    }
END
}

sub head ($what, $kind) {
    return "\n| $what | bare, µs | module, µs |\n| --- | --- | --- |\n" if $kind eq 'new';
    return "\n| $what | module, µs $kind |\n| --- | --- |\n";
}

sub row ($gateways, $name, $load, $rounds = $ROUNDS) {
    my @times = map { [] } @$gateways;
    for (1 .. $rounds) {
        for my $i (0 .. $#$gateways) {
            my $gateway = $gateways->[$i];
            my $cpu = $gateway->cpu;
            my $said = $gateway->load($application->load, connections => 32, %$load, prefix => 'g' . ++$runs);
            die "not all were answered\n" if ($said->{status200} // 0) != $load->{requests};
            push @{ $times[$i] }, ($gateway->cpu - $cpu) / 1000 / $load->{requests};
        }
    }
    printf "| %s | %s |\n", $name =~ s/(?<=\d)(?=(\d{3})+$)/,/gr,
        join ' | ', map { sprintf '%.1f', Report::median(@$_) } @times;
}
