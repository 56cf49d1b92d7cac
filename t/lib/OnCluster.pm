package OnCluster;

# nginx whose store is a cluster, and records at a node that is known.
#
#   my ($ng, $other) = start_sites($cluster);
#   my ($key, $told, $name) = run_on($ng, $server);
#   my ($key, $gate, $conn, $name) = start_run_on($ng, $server);

use v5.36;

use Exporter 'import';
use Test::More;

use Cluster;
use Keyed;
use Nginx;
use OnRedis;

our @EXPORT = qw(told start_sites keys_on run_on start_run_on connections $PARAMS $ABOUT);

our $PARAMS = 'timeout=1s connect_timeout=3s failover_grace=500ms';

# What the log may have where nodes are lost.
our $ABOUT = qr/idempotency: (?:Redis at|the cluster of Redis at|connection to Redis)/;

# Asks until the store is there.
sub told ($port, $key, %opt) {
    return wait_said(qr/^(?!503)/, sub { post($port, $key, %opt) }, 20);
}

sub start_sites ($cluster, $count = 2, %opt) {
    my @ng = map {
        on_redis_nginx($opt{url} // $cluster->url, params => $opt{params} // $PARAMS,
            lines => $opt{lines}, servers => $opt{servers})
    } 1 .. $count;
    like(told($_->port, 'hello-' . $_->port), qr/^201/, 'it works') for @ng;
    return @ng;
}

# The names of the records that a server has.
sub keys_on ($server) {
    return grep {/^idem:[0-9a-f]{32}$/} @{ Cluster::ask($server, 'KEYS', '*') };
}

# Runs requests until the record of one is there: its key, what was told, and
# the name of the record.
my $number = 0;

sub run_on ($ng, $server) {
    for (1 .. 100) {
        my %before = map { $_ => 1 } keys_on($server);
        my $key = 'on-' . ++$number;
        my $told = told($ng->port, $key);
        my ($name) = grep { !$before{$_} } keys_on($server);
        return ($key, $told, $name) if $name;
    }
    die "no record gets to this server\n";
}

# The same with one that goes on running: its key, gate, connection, and name.
sub start_run_on ($ng, $server) {
    for (1 .. 100) {
        my %before = map { $_ => 1 } keys_on($server);
        my $key = 'runs-' . ++$number;
        my ($gate, $conn) = start_run($ng->port, $key);
        my ($name) = grep { !$before{$_} } keys_on($server);
        return ($key, $gate, $conn, $name) if $name;
        $gate->open;
        $conn->response;
    }
    die "no record gets to this server\n";
}

sub connections ($server) {
    return scalar(() = Cluster::ask($server, 'CLIENT', 'LIST') =~ / name=idempotency /g);
}

1;
