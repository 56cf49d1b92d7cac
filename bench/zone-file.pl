#!/usr/bin/env perl

# What it costs that the records of a memory store are in a file: requests with
# new keys, to nginx with each kind of store in turn.
#
#   ./build.sh build && perl bench/zone-file.pl [SECONDS] [CONNECTIONS] [FOLDER]
#
# CPU is the time of the worker per request; it is what can be compared, as the
# client here is slow. Of several rounds the best counts. The file is in FOLDER:
# what "sync" costs is the time of its disk.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp ();
use IO::Select;
use IO::Socket::INET;
use List::Util qw(min max sum0);
use POSIX ();
use Time::HiRes qw(time);

use lib dirname(dirname(abs_path(__FILE__))) . '/t/lib';
use Nginx;

my ($SECONDS, $CONNECTIONS, $FOLDER) = (@ARGV, (3, 16, '/tmp')[@ARGV .. 2]);
my $ROUNDS = 3;
my $ROOT = dirname(dirname(abs_path(__FILE__)));
$ENV{TEST_NGINX_LOAD_MODULES} //= "$ROOT/build/ngx_http_idempotency_module.so";
$ENV{TEST_NGINX_BINARY} //= '/usr/sbin/nginx';

my $files = File::Temp->newdir('zone-file-XXXXXX', DIR => $FOLDER);
my $answer = 'x' x 300;
my $application = Nginx->start(http => <<"CONF");
access_log off;
server {
    listen 127.0.0.1:%%PORT%%;
    keepalive_requests 1000000;
    location / { add_header Location /orders/17; return 201 $answer; }
}
CONF

my @stores = (
    ['no store' => undef],
    ['memory' => ''],
    ['file' => 'file=%%FILE%%'],
    ['file, sync=1s' => 'file=%%FILE%% sync=1s'],
    ['file, sync=always' => 'file=%%FILE%% sync=always'],
);

my %seen;
for my $round (1 .. $ROUNDS) {
    for (@stores) {
        my ($name, $parameters) = @$_;
        push @{ $seen{$name} }, measure($name, $parameters);
    }
}
show($_->[0]) for @stores;
$application->stop;

sub measure ($name, $parameters) {
    state $number = 0;
    my $ng = Nginx->start(http => conf($parameters, "$files/" . ++$number));
    my ($pid) = $ng->worker_pids;
    load($ng, 0.3, 'warm');
    my $before = cpu_time($pid);
    my @times = load($ng, $SECONDS, 'key');
    my $cpu = cpu_time($pid) - $before;
    $ng->stop;
    unlink "$files/$number";
    @times = sort { $a <=> $b } @times;
    return {
        rate => @times / $SECONDS, cpu => 1e6 * $cpu / @times,
        median => 1e3 * $times[@times / 2], late => 1e3 * $times[@times * 0.99],
    };
}

sub conf ($parameters, $file) {
    my $port = $application->port;
    my $store = defined $parameters
        ? "idempotency_store s memory:256m $parameters;\nidempotency s; idempotency_scope none;" : '';
    return <<"CONF" =~ s/%%FILE%%/$file/r;
access_log off;
$store
upstream application { server 127.0.0.1:$port; keepalive 32; }
server {
    listen 127.0.0.1:%%PORT%%;
    keepalive_requests 1000000;
    location / {
        proxy_pass http://application;
        proxy_http_version 1.1;
        proxy_set_header Connection '';
    }
}
CONF
}

# One request at a time on each connection; how long each took.
sub load ($ng, $seconds, $prefix) {
    my $select = IO::Select->new;
    my (%sent, %got, @times);
    my ($number, $until) = (0, time + $seconds);
    my $ask = sub ($socket) {
        syswrite $socket, "POST /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
            . "Idempotency-Key: $prefix-" . ++$number . "\r\n\r\n{}";
        @{ $sent{$socket} } = time;
        $got{$socket} = '';
    };
    for (1 .. $CONNECTIONS) {
        my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ng->port) or die;
        $select->add($socket);
        $ask->($socket);
    }
    while (time < $until) {
        for my $socket ($select->can_read(0.1)) {
            sysread $socket, $got{$socket}, 65536, length $got{$socket};
            next if $got{$socket} !~ /\Q$answer\E\z/;
            die "unexpected: $got{$socket}\n" if $got{$socket} !~ m{^HTTP/1.1 201 };
            push @times, time - $sent{$socket}[0];
            $ask->($socket);
        }
    }
    return @times;
}

sub cpu_time ($pid) {
    my @fields = split ' ', Nginx::slurp("/proc/$pid/stat") =~ s/^.*\) //sr;
    return ($fields[11] + $fields[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

sub show ($name) {
    state $title = printf "%-20s %12s %8s %12s %10s %10s\n", '', 'CPU us', 'to memory', 'requests/s',
        'median ms', '99% ms';
    my %best = (
        (map { my $what = $_; $what => min(map { $_->{$what} } @{ $seen{$name} }) } qw(cpu median late)),
        rate => max(map { $_->{rate} } @{ $seen{$name} }));
    my $memory = min(map { $_->{cpu} } @{ $seen{memory} });
    printf "%-20s %12.1f %8.2f %12d %10.2f %10.2f\n", $name, $best{cpu}, $best{cpu} / $memory,
        @best{qw(rate median late)};
}
