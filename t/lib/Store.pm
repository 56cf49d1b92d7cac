package Store;

# The store that `idempotency on` means. The contract is the same on all of
# them, so the same files run on each: with TEST_IDEMPOTENCY_STORE=redis every
# configuration that does not define a store named default gets a Redis of this
# test file, with TEST_IDEMPOTENCY_STORE=sentinel one that Sentinels watch, with
# TEST_IDEMPOTENCY_STORE=cluster a cluster, and with TEST_IDEMPOTENCY_STORE=file
# a zone in a file. Each nginx begins with an
# empty store, as with one in memory.
#
#   memory_only('about the zone');     # the file is skipped on the others
#   redis_only();                      # the file is about Redis, and has its own
#   ... if on_redis();

use v5.36;

use Exporter 'import';
use File::Temp ();
use Test::More ();

use RedisServer;

our @EXPORT = qw(memory_only redis_only on_redis on_file);

my ($redis, $site, $files, $stores);

sub on_redis { return ($ENV{TEST_IDEMPOTENCY_STORE} // '') =~ /^(?:redis|sentinel|cluster)$/ }

sub on_file { return ($ENV{TEST_IDEMPOTENCY_STORE} // '') eq 'file' }

sub memory_only ($reason) {
    Test::More::plan(skip_all => $reason) if on_redis() || on_file();
}

sub redis_only {
    Test::More::plan(skip_all => 'about Redis')
        if ($ENV{TEST_IDEMPOTENCY_STORE} // '') =~ /^(?:memory|file|sentinel|cluster)$/;
}

# What to add to a configuration of http{}; more: what else is in it.
sub default_line ($http, $prefix, $more = '') {
    return '' if !on_redis() && !on_file() || $http =~ /\bidempotency_store\s+default\s/;
    return 'idempotency_store default memory:32m file=' . zone_file($prefix) . ';' if on_file();
    return 'idempotency_store default ' . url()
        . " prefix=$prefix " . patience("$http $more") . ' connect_timeout=5s;';
}

# Where a file is not about a slow Redis, a busy machine has enough time: as
# much as the leases in the configuration allow.
sub patience ($conf) {
    my $timeout = 5000;
    while ($conf =~ /\bidempotency_lease\s+(\d+)(ms|s|m|h)?;/g) {
        my $lease = $1 * { ms => 1, s => 1000, m => 60_000, h => 3_600_000 }->{ $2 // 's' };
        $timeout = int($lease / 3) if $lease / 3 < $timeout;
    }
    return "timeout=${timeout}ms";
}

sub new_prefix { return 'test-' . ++$stores . ':' }

sub zone_file ($prefix) {
    $files //= File::Temp->newdir('zones-XXXXXX', TMPDIR => 1);
    return "$files/" . $prefix =~ tr/://dr;
}

# One server; a master, two replicas and three Sentinels; or a cluster of six.
sub url {
    my $kit = { sentinel => 'Sentinels', cluster => 'Cluster' }->{ $ENV{TEST_IDEMPOTENCY_STORE} };
    return redis()->unix_url if !$kit;
    require "$kit.pm";
    $site //= $kit->start;
    return $site->url;
}

sub redis { return $redis //= RedisServer->start(port => 0) }

1;
