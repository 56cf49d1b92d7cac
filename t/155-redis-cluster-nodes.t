#!/usr/bin/env perl

# A store in a Redis Cluster: nodes that are wrong, administration, durability,
# TLS, addresses.

use v5.36;

use File::Temp ();
use Test::More;
use Time::HiRes qw(sleep time);

use Admin ();
use Cluster;
use FakeRedis;
use FreePorts qw(free_ports);
use Ledger;
use Nginx;
use Keyed;
use OnCluster;
use OnRedis;
use Proxy;
use RedisServer;

redis_only();
plan(skip_all => 'before Redis 7 the kit cannot choose its ports') if RedisServer::is_old();

my $ADMIN = <<'CONF';
    server {
        listen 127.0.0.1:%%PORT4%%;
        idempotency on;
        location = /admin { idempotency_admin; }
    }
CONF

# ---- nodes that are wrong -------------------------------------------------

# Stands before a cluster of one node, so that all slots lead to it.
my $lone = Cluster->start(masters => 1, replicas => 0);

sub fake_node ($answer, $port = (free_ports(1))[0]) {
    return fake_map($port, $port, sub ($words, $ask) { $answer->($words, $ask, $port) });
}

# Tells that all slots are on a port.
sub fake_map ($port, $master, $answer = sub ($words, $ask) { $ask->() }) {
    return FakeRedis->before(($lone->servers)[0], sub ($words, $ask) {
        # Without a host: the one that was asked.
        return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n\$0\r\n\r\n:$master\r\n" if uc $words->[0] eq 'CLUSTER';
        return $answer->($words, $ask);
    }, port => $port);
}

sub is_for_record ($words) {
    return $words->[0] =~ /^(?:SET|EVAL|EVALSHA)$/i && !grep {/try:/} @$words;
}

my ($one, $two) = free_ports(2);

my %WRONG_NODES = (
    'it says MOVED to itself, for ever' => [
        sub ($port) {"-MOVED 1 127.0.0.1:$port\r\n"}, qr/is unavailable: the reply is "MOVED 1 /],
    'two say MOVED to each other' => [
        sub ($port) { '-MOVED 1 127.0.0.1:' . ($port == $one ? $two : $one) . "\r\n" },
        qr/is unavailable: the reply is "MOVED 1 |has restarted or is another server/],
    'it says ASK to itself, for ever' => [
        sub ($port) {"-ASK 1 127.0.0.1:$port\r\n"}, qr/is unavailable: the reply is "ASK 1 /],
    'MOVED without an address' => [
        sub ($port) {"-MOVED 1\r\n"}, qr/is unavailable: the reply is "MOVED 1"/],
    'MOVED to where nobody is' => [
        sub ($port) { '-MOVED 1 127.0.0.1:' . closed_port() . "\r\n" }, qr/is unavailable: cannot connect/],
    'CLUSTERDOWN' => [
        sub ($port) {"-CLUSTERDOWN The cluster is down\r\n"},
        qr/is unavailable: the reply is "CLUSTERDOWN The cluster is down"/],
    'TRYAGAIN, for ever' => [
        sub ($port) {"-TRYAGAIN later\r\n"}, qr/is unavailable: the reply is "TRYAGAIN later"/],
);

for my $name (sort keys %WRONG_NODES) {
    my ($says, $line) = @{ $WRONG_NODES{$name} };
    my $key = 'wrong-' . $name =~ s/\W+/-/gr;
    subtest "a node that is wrong: $name" => sub {
        my @fakes = map {
            fake_node(sub ($words, $ask, $port) { is_for_record($words) ? $says->($port) : $ask->() }, $_)
        } $one, $two;
        my $ng = on_redis_nginx('redis+cluster://' . $fakes[0]->address, params => $PARAMS);
        my $at = time;
        is(said(post($ng->port, $key)), $REFUSED, 'refused');
        cmp_ok(time - $at, '<', 2.5, 'in time');
        ok(wait_until(sub { lines_in($ng, $line) }, 5, 'a line'), 'the log tells')
            or diag(lines_in($ng, qr/idempotency/));
        is(ledger_count(key => $key), 0, 'nothing ran');
        $_->stop for @fakes;
        finish($ng, allow => $ABOUT);
    };
}

subtest 'MOVED to the same address: a new connection' => sub {
    my $opened = 0;
    my $fake = fake_node(sub ($words, $ask, $port) {
        $opened++ if uc $words->[0] eq 'ROLE';
        return "-MOVED 1 :$port\r\n" if is_for_record($words) && $opened < 2;
        return $ask->();
    });
    my $ng = on_redis_nginx('redis+cluster://' . $fake->address, params => $PARAMS);
    like(said(post($ng->port, 'same-address')), qr/^201 #\d+$/, 'it runs');
    is(ledger_count(key => 'same-address'), 1, 'once');
    finish($ng, allow => $ABOUT);
};

subtest 'TRYAGAIN, for a moment' => sub {
    my $times = 0;
    my $fake = fake_node(sub ($words, $ask, $port) {
        return "-TRYAGAIN later\r\n" if is_for_record($words) && $times++ < 2;
        return $ask->();
    });
    my $ng = on_redis_nginx('redis+cluster://' . $fake->address, params => $PARAMS);
    like(said(post($ng->port, 'try-again')), qr/^201 #\d+$/, 'it runs');
    finish($ng);
};

# As a node does that is cut off from the others, but not from us.
subtest 'a node tells of a master that is gone: others are asked as well' => sub {
    my ($stale, $right) = free_ports(2);
    my @fakes = (fake_map($stale, closed_port()), fake_map($right, $right));
    my $ng = on_redis_nginx('redis+cluster://' . join(',', map { $_->address } @fakes), params => $PARAMS);
    is(said(post($ng->port, 'stale')), $REFUSED, 'refused at first');
    ok(wait_until(sub { said(post($ng->port, 'stale')) =~ /^201 #\d+/ }, 20, 'a run'), 'then it runs');
    is(ledger_count(key => 'stale'), 1, 'once');
    finish($ng, allow => $ABOUT);
};

subtest 'a node tells of a master that has moved: others are asked as well' => sub {
    my ($stale, $moved, $right) = free_ports(3);
    my $asked = File::Temp->new;
    my @fakes = (fake_map($stale, $moved), fake_map($right, $right), fake_map($moved, $moved, sub ($words, $ask) {
        return $ask->() if !is_for_record($words);
        syswrite $asked, '.';
        my ($slot) = $ask->('CLUSTER', 'KEYSLOT', $words->[$words->[0] eq 'SET' ? 1 : 3]) =~ /(\d+)/;
        return "-MOVED $slot 127.0.0.1:$right\r\n";
    }));
    my $ng = on_redis_nginx('redis+cluster://' . join(',', map { $_->address } @fakes[0, 1]), params => $PARAMS);
    my $n = 0;
    ok(wait_until(sub {
        my $before = -s $asked->filename;
        my @said = map { said(post($ng->port, 'moved-' . $n++)) } 1 .. 5;
        return 5 == grep({/^201 #\d+/} @said) && $before == -s $asked->filename;
    }, 15, 'five requests that go to the right one'), 'it is no longer asked');
    $_->stop for @fakes;
    finish($ng, allow => $ABOUT);
};

my %NO_SLOTS = (
    'an error' => ["-ERR This instance has cluster support disabled\r\n",
        qr/"ERR This instance has cluster support disabled"/],
    'an empty list' => ["*0\r\n", qr/"no slots"/],
    'something else' => ["+OK\r\n", qr/"no slots"/],
    'ranges that are none' => ["*2\r\n*1\r\n:0\r\n*3\r\n:5\r\n:16384\r\n*2\r\n\$1\r\nh\r\n:1\r\n", qr/"no slots"/],
    'no address' => ["*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n\$1\r\n?\r\n:1\r\n", qr/"no slots"/],
);

for my $name (sort keys %NO_SLOTS) {
    my ($says, $reply) = @{ $NO_SLOTS{$name} };
    my $key = 'no-slots-' . $name =~ s/\W+/-/gr;
    subtest "it cannot tell where the slots are: $name" => sub {
        my $fake = FakeRedis->before(($lone->servers)[0], sub ($words, $ask) {
            return uc $words->[0] eq 'CLUSTER' ? $says : $ask->();
        });
        my $ng = on_redis_nginx('redis+cluster://' . $fake->address, params => $PARAMS);
        my $at = time;
        is(said(post($ng->port, $key)), $REFUSED, 'refused');
        cmp_ok(time - $at, '<', 2, 'in time');
        my $line = qr/is unavailable: it cannot tell where the slots of its cluster are, the reply is $reply/;
        ok(wait_until(sub { lines_in($ng, $line) }, 5, 'a line'), 'the log tells')
            or diag(lines_in($ng, qr/idempotency/));
        finish($ng, allow => $ABOUT);

        my ($both) = start_sites($lone, 1,
            url => 'redis+cluster://' . join(',', $fake->address, ($lone->servers)[0]->address));
        finish($both, allow => $ABOUT);
    };
}

subtest 'nobody is there at the start' => sub {
    my $proxy = Proxy->to(($lone->servers)[0]->path('redis.sock'));
    $proxy->mode('refuse');
    my $ng = on_redis_nginx('redis+cluster://127.0.0.1:' . $proxy->port, params => $PARAMS);
    is(said(post($ng->port, 'nobody')), $REFUSED, 'refused');
    ok(wait_until(sub { lines_in($ng, qr/Redis at "\S+" is unavailable: cannot connect/) }, 5, 'a line'),
        'the log tells');
    $proxy->mode('pass');
    like(told($ng->port, 'nobody'), qr/^201/, 'then it works');
    finish($ng, allow => $ABOUT);
};

subtest 'slots without a master: their keys are refused, the others are served' => sub {
    my $own = Cluster->start(replicas => 0, coverage => 'no');
    my ($ng) = start_sites($own, 1);
    my $server = $own->master_of(0);
    my ($key, $told, $name) = run_on($ng, $server);
    my $slot = $own->slot_of($name);
    Cluster::ask($_, 'CLUSTER', 'DELSLOTS', $slot) for $own->running;
    is(wait_said($REFUSED, sub { post($ng->port, $key) }, 5), $REFUSED, 'refused');
    ok(wait_until(sub { lines_in($ng, qr/\[error\].*has no master for 1 of its 16384 slots, requests whose keys are there are refused/) },
        5, 'a line'), 'the log tells') or diag(lines_in($ng, qr/idempotency/));
    my ($other) = run_on($ng, $own->master_of(16000));
    ok($other, 'others run');
    Cluster::ask($server, 'CLUSTER', 'ADDSLOTS', $slot);
    is(wait_said(qr/replayed/, sub { post($ng->port, $key) }, 10), "$told replayed", 'then it is served again');
    finish($ng, allow => $ABOUT);
};

# ---- administration, durability, TLS --------------------------------------

my $cluster = Cluster->start;

subtest 'administration: all masters' => sub {
    my ($ng) = start_sites($cluster, 1, servers => $ADMIN);
    my @keys = map {"lost-$_"} 1 .. 20;
    post($ng->port, $_, do => 'die=before') for @keys;
    is(scalar(Admin::unknown_of($ng)), 20, 'all are listed');
    my ($id, @others) = map { $_->{id} } Admin::unknown_of($ng);
    my $slot = $cluster->slot_of("idem:$id");
    my $from = $cluster->master_of($slot);
    my ($to) = grep { $_ != $from } map { $cluster->master_of($_) } 0, 16000;
    is(Admin::answer_of(Admin::ask($ng, "id=$id"))->{state}, 'unknown', 'one is found');
    $cluster->begin_migration($slot, $to);
    $cluster->move_keys($slot, $from, $to);
    is(Admin::answer_of(Admin::ask($ng, "id=$id"))->{state}, 'unknown', 'also where its slot moves');
    is(Admin::act($ng, act => 'release', id => $id)->{status}, 200, 'it is released');
    $cluster->end_migration($slot, $from, $to);
    is(Admin::ask($ng, "id=$id")->{status}, 404, 'it is gone');
    is_deeply([grep { Admin::act($ng, act => 'release', id => $_)->{status} != 200 } @others], [],
        'the others are released');
    is(scalar(Admin::unknown_of($ng)), 0, 'none is left');
    like(said(post($ng->port, $_)), qr/^201/, 'it runs again') for @keys[0 .. 2];
    $cluster->migrate($slot, $from);
    finish($ng, allow => qr/upstream prematurely closed|idempotency/);
};

subtest 'durability: each claim is with the replica of its own master' => sub {
    my ($ng) = start_sites($cluster, 1, params => "$PARAMS durability=replicas:1 durability_timeout=400ms");
    my @masters = map { $cluster->master_of($_) } 0, 8000, 16000;
    for my $master (@masters) {
        my ($key, $gate, $conn, $name) = start_run_on($ng, $master);
        my ($copy) = $cluster->replicas_of($master);
        ok((grep { $_ eq $name } keys_on($copy)), 'the replica has it when it runs');
        $gate->open;
        $conn->response;
    }
    my ($copy) = $cluster->replicas_of($masters[0]);
    $copy->freeze;
    my %said = map { $_ => said(post($ng->port, "durable-$_")) } 1 .. 12;
    $copy->thaw;
    cmp_ok(scalar(grep { $_ eq $REFUSED } values %said), '>', 0, 'without it nothing new runs there');
    cmp_ok(scalar(grep {/^201/} values %said), '>', 0, 'other masters go on');
    is_deeply([grep { ledger_count(key => "durable-$_") != ($said{$_} =~ /^201/ ? 1 : 0) } keys %said], [],
        'what was refused did not run');
    # The key that is written may be in a slot that moves.
    $cluster->wait_complete;
    for my $slot (0 .. 20) {
        $cluster->migrate($slot, $masters[2]);
        like(told($ng->port, "durable-moves-$slot"), qr/^201/, 'a slot moves') if $slot % 5 == 0;
    }
    finish($ng, allow => $ABOUT);
};

subtest 'durability: a claim in a slot that moves to a node without slots' => sub {
    my ($ng) = start_sites($cluster, 1, params => "$PARAMS durability=replicas:1 durability_timeout=400ms");
    my $from = $cluster->master_of(0);
    my ($new, $copy) = map { $cluster->add_master } 1 .. 2;
    Cluster::ask($copy, 'CLUSTER', 'REPLICATE', Cluster::my_id($new));
    ok(wait_until(sub { scalar @{ Cluster::ask($new, 'ROLE')->[2] } }, 20, 'a replica'), 'it has a replica');
    my ($key, $told, $name) = run_on($ng, $from);
    my $slot = $cluster->slot_of($name);
    $cluster->begin_migration($slot, $new);
    Cluster::ask($from, 'DEL', $name);
    like(told($ng->port, $key), qr/^201 #\d+$/, 'it runs');
    ok((grep { $_ eq $name } keys_on($new)), 'by a claim at the new node');
    $copy->freeze;
    $new->command(@$_) for ['ASKING'], ['DEL', $name];
    is(said(post($ng->port, $key)), $REFUSED, 'but not without the replica');
    $copy->thaw;
    is(ledger_count(key => $key), 2, 'which did not run');
    $cluster->end_migration($slot, $from, $new);
    like(told($ng->port, $key), qr/^201 #\d+$/, 'the slot has moved');
    finish($ng, allow => $ABOUT);
};

subtest 'TLS' => sub {
    my $own = Cluster->start(tls => 1, replicas => 0);
    my $ca = ($own->servers)[0]->path('ca.crt');
    my ($ng) = start_sites($own, 1, params => "$PARAMS tls_ca=$ca");
    like(told($ng->port, "tls-$_"), qr/^201/, 'all nodes') for 1 .. 8;
    finish($ng);
    my $wrong = on_redis_nginx('rediss+cluster://' . ($lone->servers)[0]->address,
        params => "$PARAMS tls_ca=$ca");
    is(said(post($wrong->port, 'no-tls')), $REFUSED, 'a node without it: refused');
    ok(wait_until(sub { lines_in($wrong, qr/Redis at "\S+" is unavailable: /) }, 5, 'a line'), 'the log tells');
    finish($wrong, allow => qr/SSL_do_handshake|$ABOUT/);
};

subtest 'login' => sub {
    my $own = Cluster->start(password => 'of-redis', replicas => 0);
    my $dir = File::Temp->newdir;
    write_file("$dir/$_", "$_\n") for qw(of-redis wrong);
    my ($ng) = start_sites($own, 1, params => "$PARAMS password_file=$dir/of-redis");
    finish($ng);
    my $bad = on_redis_nginx($own->url, params => "$PARAMS password_file=$dir/wrong");
    is(said(post($bad->port, 'wrong-password')), $REFUSED, 'wrong: refused');
    ok(wait_until(sub { lines_in($bad, qr/Redis at "\S+" is unavailable: login failed/) }, 5, 'a line'),
        'the log tells');
    finish($bad, allow => $ABOUT);
};

# ---- addresses ------------------------------------------------------------

my @WRONG = (
    ['redis+cluster://', '', 'the address has no host'],
    ['redis+cluster://127.0.0.1/0', '', 'a cluster has database 0 only, nothing may follow its hosts'],
    ['redis+cluster://127.0.0.1/1', '', 'a cluster has database 0 only, nothing may follow its hosts'],
    ['redis+cluster://127.0.0.1,,127.0.0.2', '', 'no host in its address'],
    ['redis+cluster://127.0.0.1', q('prefix=a{b'),
        '"prefix" must not have a "{" in a cluster, which spreads its keys by what is in braces'],
    ['redis+cluster://127.0.0.1', 'sentinel_check=1s',
        'the parameter "sentinel_check" requires a "redis+sentinel://" address'],
    ['redis+cluster://127.0.0.1', 'tls_name=x', 'the parameter "tls_name" requires a "rediss://" address'],
    ['redis+cluster://' . join(',', ('127.0.0.1') x 16), '', 'its address can have 15 hosts at most'],
);

for my $case (@WRONG) {
    my ($url, $params, $message) = @$case;
    my $text = eval { on_redis_nginx($url, params => "$params timeout=1s"); 1 } ? 'it starts' : $@;
    like($text, qr/\[emerg\].*idempotency store "default": .*?\Q$message\E/s, "$url $params");
}

done_testing();
