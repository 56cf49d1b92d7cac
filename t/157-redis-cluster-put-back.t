#!/usr/bin/env perl

# A store in a Redis Cluster whose masters change: what is put back, and where a
# claim counts.

use v5.36;

use File::Temp ();
use IO::Socket::UNIX;
use Test::More;
use Time::HiRes qw(sleep time);

use Cluster;
use FakeRedis;
use FreePorts qw(free_ports);
use Ledger;
use Nginx;
use Keyed;
use OnCluster;
use OnRedis;
use RedisServer;
use Waiting qw(wait_quietly);

redis_only();
plan(skip_all => 'before Redis 7 the kit cannot choose its ports') if RedisServer::is_old();

# Nothing gets to the copies of this master any more.
sub stop_copying ($master, @copies) {
    $_->freeze for @copies;
    Cluster::ask($master, 'CLIENT', 'KILL', 'TYPE', 'replica');
}

my $flags = File::Temp->newdir('flags-XXXXXX', TMPDIR => 1);

# ---- what is remembered ---------------------------------------------------

subtest 'a master is away: what is stored on the others does not push out its records' => sub {
    my $cluster = Cluster->start(coverage => 'no');
    my ($ng, $other) = start_sites($cluster);
    my $old = $cluster->master_of(8000);
    my ($copy) = $cluster->replicas_of($old);
    my $slot = Cluster::first_slot($old);
    stop_copying($old, $copy);
    my ($key, $told) = run_on($ng, $old);
    $old->kill;
    # More than the 8 megabytes that a worker remembers.
    my $stored = 0;
    for (1 .. 200) {
        last if $stored == 60;
        $stored++ if said(post($ng->port, "large-$_", do => 'size=200000')) =~ /^201/;
    }
    is($stored, 60, 'much is stored on the others');
    $copy->thaw;
    ok($cluster->wait_switched($slot, $old), 'then there is another master');
    is(told($other->port, $key), "$told replayed", 'which gets back what was lost');
    is(ledger_count(key => $key), 1, 'executed once');
    finish($_, allow => $ABOUT) for $ng, $other;
};

# ---- a successor becomes known slot by slot -------------------------------

subtest 'slots follow to a successor that is connected already: their records are put back' => sub {
    my $cluster = Cluster->start;
    my ($old, $third) = map { $cluster->master_of($_) } 0, 16000;
    my ($copy) = $cluster->replicas_of($old);
    my $slot = Cluster::first_slot($old);
    my ($is_slow, $is_told) = map {"$flags/$_"} 'slow', 'told';
    my $asked = FakeRedis->before($third, sub ($words, $ask) {
        my $reply = $ask->();
        return $reply if uc $words->[0] ne 'CLUSTER' || !-e $is_slow;
        sleep 3;
        write_file($is_told, '');
        return $reply;
    });
    my ($ng) = start_sites($cluster, 1, url => 'redis+cluster://' . $asked->address,
        params => 'timeout=8s connect_timeout=3s failover_grace=500ms');
    my ($other) = start_sites($cluster, 1);
    my $to_copy = IO::Socket::UNIX->new(Peer => $copy->path('redis.sock')) or die "no socket: $!\n";
    stop_copying($old, $copy);
    my ($first, $told_first) = run_on($ng, $old);
    my ($second, $told_second, $name) = run_on($ng, $old);
    # It is master before it can ask for what it lacks.
    write_file($is_slow, '');
    syswrite($to_copy, "CLUSTER FAILOVER TAKEOVER\r\n");
    $copy->thaw;
    ok($cluster->wait_switched($slot, $old), 'there is another master');
    ok(wait_until(sub { Cluster::ask($old, 'ROLE')->[0] eq 'slave' }, 10, 'a replica'), 'the old one lives');
    is(told($ng->port, $first), "$told_first replayed", 'what the old one sends on is put back');
    ok(!-e $is_told, 'before the other slots are known');
    ok(wait_until(sub { grep { $_ eq $name } keys_on($copy) }, 15, 'the other record'), 'the rest as well');
    is(told($other->port, $second), "$told_second replayed", 'so it is replayed');
    is(ledger_count(key => $_), 1, 'executed once') for $first, $second;
    finish($_, allow => $ABOUT) for $ng, $other;
};

# ---- claims ---------------------------------------------------------------

my @lone = map { Cluster->start(masters => 1, replicas => 0) } 1 .. 2;
my ($near, $far) = map { ($_->servers)[0] } @lone;

# A map with these: [first slot, last slot, port].
sub slots_of (@ranges) {
    return join '', '*' . @ranges . "\r\n", map {
        my ($first, $last, $port) = @$_;
        "*3\r\n:$first\r\n:$last\r\n*2\r\n\$9\r\n127.0.0.1\r\n:$port\r\n";
    } @ranges;
}

sub is_claim ($words) { return uc $words->[0] eq 'SET' && $words->[1] =~ /^idem:[0-9a-f]{32}$/ }

# A reply of the old home that comes when the worker knows the new one. "which"
# picks the command, "replies" answers some without asking the server.
sub moving_slots ($title, $which, $replies = sub ($words) { return }) {
    my ($has_moved, $is_told) = map {"$flags/$_-$title"} 'moved', 'told';
    my $slow = FakeRedis->before($near, sub ($words, $ask) {
        my $reply = $replies->($words) // $ask->();
        return $reply if -e $has_moved || !$which->($words);
        write_file($has_moved, '');
        wait_quietly(sub { -e $is_told }, 3);
        return $reply;
    });
    my $new = FakeRedis->before($far, sub ($words, $ask) { $replies->($words) // $ask->() });
    # A node that is down: so the map is asked for again and again.
    my $down = closed_port();
    my $asked = FakeRedis->before($near, sub ($words, $ask) {
        return $ask->() if uc $words->[0] ne 'CLUSTER';
        return slots_of([0, 16382, $slow->{port}], [16383, 16383, $down]) if !-e $has_moved;
        # Who asks again has read the first answer.
        write_file(-e "$is_told-once" ? $is_told : "$is_told-once", '');
        return slots_of([0, 16382, $new->{port}], [16383, 16383, $down]);
    });
    return ($asked, $slow, $new);
}

sub moved_nginx ($asked, $params = '', $lines = '') {
    return on_redis_nginx('redis+cluster://' . $asked->address, lines => "idempotency_lease 300s; $lines",
        params => "timeout=4s connect_timeout=3s failover_grace=500ms $params");
}

# replicas:1, of servers that have none.
my $ONE = 'durability=replicas:1 durability_timeout=1900ms';
my $says_one = sub ($words) { return uc $words->[0] eq 'WAIT' ? ":1\r\n" : undef };
my $is_claimed = "$flags/claimed";
my $waits = sub ($words) {
    write_file($is_claimed, '') if is_claim($words);
    return uc $words->[0] eq 'WAIT' && -e $is_claimed;
};

for my $case (['claim', \&is_claim], ['wait', $waits, $says_one]) {
    my ($name, $which, $replies) = @$case;
    subtest "a claim that was granted by the old home of its slot is made at the new one: $name" => sub {
        my @fakes = moving_slots($name, $which, $replies // ());
        my $ng = moved_nginx($fakes[0], $replies ? $ONE : '');
        my ($gate, $conn) = start_run($ng->port, "new-home-$name");
        is(scalar(keys_on($far)), 1, 'it is there when it runs');
        is(ledger_count(key => "new-home-$name"), 1, 'it runs');
        $gate->open;
        my $first = said($conn->response);
        like($first, qr/^201 #\d+$/, 'it ends');
        is(said(post($ng->port, "new-home-$name")), "$first replayed", 'and is replayed');
        is(ledger_count(key => "new-home-$name"), 1, 'executed once');
        finish($ng, allow => $ABOUT);
        $_->stop for @fakes;
        $far->command('FLUSHALL');
    };
}

subtest 'a claim that has taken over keeps its number at the new home' => sub {
    my $again = "$flags/again";
    my @fakes = moving_slots('again', sub ($words) { return -e $again && uc $words->[0] =~ /^EVAL/ });
    my $ng = moved_nginx($fakes[0], '', 'idempotency_unknown_outcome release;');
    like(said(post($ng->port, 'again', do => 'die=before')), qr/^502/, 'what became of the first is unknown');
    write_file($again, '');
    my $gate = Keyed::Gate->new;
    my $conn = send_post($ng->port, 'again', do => $gate->closed);
    ok(begun('again', 2), 'a retry runs');
    my ($name) = keys_on($far);
    is(unpack('V', substr $far->command('GET', $name), 2, 4), 2, 'the second attempt');
    $gate->open;
    like(said($conn->response), qr/^201 #\d+$/, 'it ends');
    finish($ng, allow => $ABOUT);
    $_->stop for @fakes;
    $far->command('FLUSHALL');
};

subtest 'an outcome that the old home of its slot has stored is put back at the new one' => sub {
    my @fakes = moving_slots('outcome', sub ($words) {
        return uc $words->[0] =~ /^EVAL/ && $words->[3] =~ /^idem:[0-9a-f]{32}$/;
    });
    my $ng = moved_nginx($fakes[0]);
    my $first = said(post($ng->port, 'outcome'));
    like($first, qr/^201 #\d+$/, 'it runs');
    ok(wait_until(sub { keys_on($far) == 1 }, 10, 'its record'), 'its record is at the new home');
    is(told($ng->port, 'outcome'), "$first replayed", 'a retry is replayed');
    is(ledger_count(key => 'outcome'), 1, 'executed once');
    finish($ng, allow => $ABOUT);
    $_->stop for @fakes;
};

# Before Redis 7 a claim is two commands.
subtest 'a record moves between the two commands of a claim, and its client leaves: it is taken back' => sub {
    my ($looks, $has_left) = map {"$flags/$_"} 'looks', 'left';
    my ($port, $away) = free_ports(2);
    my $old = FakeRedis->before($near, sub ($words, $ask) {
        my $command = uc $words->[0];
        return slots_of([0, 16383, $port]) if $command eq 'CLUSTER';
        return "-ERR syntax error\r\n" if $command eq 'SET' && grep { uc $_ eq 'GET' } @$words;
        return $ask->() if $command ne 'GET' || -e $looks;
        write_file($looks, '');
        wait_quietly(sub { -e $has_left }, 3);
        sleep 0.2;
        return "-ASK 1 127.0.0.1:$away\r\n";
    }, port => $port);
    my $ng = on_redis_nginx('redis+cluster://' . $old->address, lines => 'idempotency_lease 300s;',
        params => 'timeout=4s connect_timeout=3s failover_grace=500ms');
    my %before = map { $_ => 1 } keys_on($near);
    my $new = sub { grep { !$before{$_} } keys_on($near) };
    my $conn = send_post($ng->port, 'cut');
    ok(wait_until(sub { -e $looks }, 10, 'the second command'), 'it is under way');
    is(scalar($new->()), 1, 'and has its record');
    $conn->close;
    write_file($has_left, '');
    ok(wait_until(sub { !$new->() }, 10, 'no record'), 'which goes');
    like(told($ng->port, 'cut'), qr/^201 #\d+$/, 'a retry runs');
    is(ledger_count(key => 'cut'), 1, 'once');
    finish($ng, allow => $ABOUT);
};

done_testing();
