#!/usr/bin/env perl

# A store whose master is named by Sentinels: real servers, real failovers.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep time);

use DnsServer;
use FakeRedis;
use Ledger;
use Nginx;
use Keyed;
use OnRedis;
use Proxy;
use RedisServer;
use Sentinels;

redis_only();

my $PARAMS = 'timeout=500ms connect_timeout=1s sentinel_check=200ms failover_grace=500ms';
my $NAMED = qr/"payments at 127\.0\.0\.1:\d+"/;

sub told ($port, $key, %opt) {
    return wait_said(qr/^(?!503)/, sub { post($port, $key, %opt) }, 20);
}

sub serves ($server) {
    return Sentinels::ask($server, 'CLIENT', 'LIST') =~ / name=idempotency /;
}

sub start_sites ($site, $count = 2, %opt) {
    my @ng = map {
        on_redis_nginx($opt{url} // $site->url, params => $opt{params} // $PARAMS, lines => $opt{lines})
    } 1 .. $count;
    for (@ng) {
        like(told($_->port, 'hello-' . $_->port), qr/^201/, 'it works');
    }
    return @ng;
}

my $site = Sentinels->start;

# ---- failovers ------------------------------------------------------------

subtest 'the master dies: what ran, and what runs, is known to the next one' => sub {
    my ($ng, $other) = start_sites($site);
    my $first = said(post($ng->port, 'ended'));
    like($first, qr/^201 #\d+$/, 'it runs');
    my ($gate, $conn) = start_run($ng->port, 'running');
    my $old = $site->failover;
    my $switched = time;
    is(told($other->port, 'running'), '409 in_progress', 'what runs is in progress');
    cmp_ok(time - $switched, '<', 2.5, 'at most two seconds and the grace after the switch');
    is(told($other->port, 'ended'), "$first replayed", 'what has ended is replayed');
    $gate->open;
    my $second = said($conn->response);
    is(told($other->port, 'running'), "$second replayed", 'as is what ends now');
    is(ledger_count(key => $_), 1, "$_: executed once") for qw(ended running);
    ok(lines_in($ng, qr/Redis at $NAMED is available again/), 'the log names name and address');
    finish($_) for $ng, $other;
    $old->launch;
    wait_until(sub { $site->is_complete }, 30, 'the old one as a replica');
};

subtest 'the copy lags behind: what was lost is put back' => sub {
    my ($ng, $other) = start_sites($site);
    my $old = $site->master;
    my @copies = $site->replicas;
    # Nothing is copied any more, and what is on its way is not either.
    $_->freeze for @copies;
    eval { $old->command('CLIENT', 'KILL', 'TYPE', 'replica') };
    my $first = said(post($ng->port, 'lost'));
    my ($gate, $conn) = start_run($ng->port, 'lost-2');
    $old->kill;
    $_->thaw for @copies;
    $site->wait_switched($old);
    is(told($other->port, 'lost'), "$first replayed", 'what has ended');
    is(told($other->port, 'lost-2'), '409 in_progress', 'what runs');
    is(ledger_count(key => $_), 1, "$_: executed once") for qw(lost lost-2);
    $gate->open;
    like(said($conn->response), qr/^201/, 'which ends');
    finish($_) for $ng, $other;
    $old->launch;
    wait_until(sub { $site->is_complete }, 30, 'the old one as a replica');
};

subtest 'a failover on demand, while the old master still takes writes' => sub {
    my ($ng, $other) = start_sites($site);
    my $old = $site->master;
    my @keys = map {"demand-$_"} 1 .. 60;
    my $demand = sub {
        ($site->sentinels)[0]->command('SENTINEL', 'FAILOVER', $Sentinels::NAME);
    };
    $demand->();
    # Both hosts at once, each key at both, until both are told.
    my %told;
    my $until = time + 30;
    while (time < $until && keys %told < 2 * @keys) {
        for my $i (0 .. $#keys) {
            for my $at ([a => $ng], [b => $other]) {
                my $id = "$at->[0] $keys[$i]";
                next if $told{$id};
                my $said = said(post($at->[1]->port, $keys[$i]));
                $told{$id} = $said if $said =~ /^201/;
            }
        }
    }
    is(scalar keys %told, 2 * @keys, 'all are answered');
    is_deeply([grep { ledger_count(key => $_) != 1 } @keys], [], 'each was executed once');
    # On a busy machine Sentinel gives up what it cannot do in four seconds.
    my $is_switched = $site->wait_switched($old, 15)
        || eval { $demand->() } && $site->wait_switched($old);
    ok($is_switched, 'there is another master');
    ok(wait_until(sub { serves($site->master) && !serves($old) }, 15, 'the move'),
        'all have moved there');
    finish($_) for $ng, $other;
    wait_until(sub { $site->is_complete }, 40, 'the old one as a replica');
};

subtest 'the first request of a worker waits until it knows its master' => sub {
    my $ng = on_redis_nginx($site->url, params => 'timeout=3s');
    like(said(post($ng->port, 'at-once')), qr/^201 #\d+$/, 'it runs');
    finish($ng);
};

# ---- the fence ------------------------------------------------------------

subtest 'a host that hears of no majority grants nothing, though its master answers' => sub {
    my $old = $site->master;
    my @proxies = map { Proxy->to($_->path('redis.sock')) } $site->sentinels;
    my $url = 'redis+sentinel://' . join(',', map { '127.0.0.1:' . $_->port } @proxies) . '/payments';
    my ($far) = start_sites($site, 1, url => $url);
    my ($near) = start_sites($site, 1);
    $_->mode('stall') for @proxies;
    ok(wait_until(sub { said(post($far->port, 'fence-' . time)) eq $REFUSED }, 5, 'a refusal'),
        'refused after three checks');
    is(said(post($far->port, 'fence-pass', uri => '/pass')), $REFUSED, 'not even with "pass"');
    is(ledger_count(key => 'fence-pass'), 0, 'nothing ran');
    ok(lines_in($far, qr/\[error\].*no majority of the Sentinels confirms/), 'the log tells');
    is(Sentinels::ask($old, 'ROLE')->[0], 'master', 'it is still the master');
    like(said(post($near->port, 'fence-near')), qr/^201/, 'others are not concerned');
    $_->mode('pass') for @proxies;
    like(told($far->port, 'fence-again'), qr/^201/, 'then it works again');
    finish($far, allow => qr/Sentinel|no majority|is unavailable/);
    finish($near);
};

subtest 'one Sentinel of three is gone: nobody notices' => sub {
    my $proxy = Proxy->to(($site->sentinels)[0]->path('redis.sock'));
    my @others = ($site->sentinels)[1, 2];
    my $url = 'redis+sentinel://' . join(',', '127.0.0.1:' . $proxy->port, map { $_->address } @others)
        . '/payments';
    my ($ng) = start_sites($site, 1, url => $url);
    $proxy->mode('refuse');
    ok(wait_until(sub { lines_in($ng, qr/\[warn\].*Sentinel at "127\.0\.0\.1:\d+" is unavailable/) }, 5, 'a line'),
        'the log tells');
    sleep 1;
    like(said(post($ng->port, 'two-left')), qr/^201/, 'it works');
    finish($ng);
};

subtest 'no Sentinel at the start' => sub {
    my $proxy = Proxy->to(($site->sentinels)[0]->path('redis.sock'));
    $proxy->mode('refuse');
    my $ng = on_redis_nginx('redis+sentinel://127.0.0.1:' . $proxy->port . '/payments', params => $PARAMS);
    is(said(post($ng->port, 'none')), $REFUSED, 'refused');
    ok(wait_until(sub { lines_in($ng, qr/Redis at "payments" is unavailable: no Sentinel can be reached/) },
        5, 'a line'), 'the log tells');
    $proxy->mode('pass');
    like(told($ng->port, 'none'), qr/^201/, 'then it works');
    finish($ng);
};

# ---- Sentinels that are wrong ---------------------------------------------

sub liar ($says) {
    return FakeRedis->before(($site->sentinels)[0], sub ($words, $ask) {
        return $ask->() if uc $words->[0] ne 'SENTINEL';
        return $says if !ref $says;
        return join '', "*2\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @$says;
    });
}

my $replica = ($site->replicas)[0];

my %LIES = (
    'it names a replica' => [['127.0.0.1', $replica->port],
        qr/is unavailable: this server is a replica and accepts no writes/],
    'nobody is there' => [['127.0.0.1', closed_port()], qr/is unavailable: cannot connect/],
    'it does not know the name' => ["*-1\r\n",
        qr/Sentinel at "\S+" cannot tell where the master "payments" is: it does not know a master of this name/],
    'an error' => ["-ERR something\r\n",
        qr/Sentinel at "\S+" cannot tell where the master "payments" is: the reply is "ERR something"/],
    'no address' => ["*1\r\n\$1\r\nx\r\n", qr/cannot tell where the master "payments" is: it names no address/],
    'no port' => [['127.0.0.1', 'x'], qr/cannot tell where the master "payments" is: it names no address/],
    'a name that is none' => [["x\n[alert] forged", 6379],
        qr/cannot tell where the master "payments" is: it names no address/],
    'a name, and nobody who could resolve it' => [['redis.test', 6379],
        qr/is unavailable: its address is a host name, which can only be resolved if a "resolver" is set/],
);

for my $name (sort keys %LIES) {
    my ($says, $line) = @{ $LIES{$name} };
    my $key = 'lie-' . $name =~ s/\W+/-/gr;
    subtest "a Sentinel that is wrong: $name" => sub {
        my $fake = liar($says);
        my $ng = on_redis_nginx('redis+sentinel://' . $fake->address . '/payments', params => $PARAMS);
        my $at = time;
        is(said(post($ng->port, $key)), $REFUSED, 'refused');
        cmp_ok(time - $at, '<', 2, 'in time');
        ok(wait_until(sub { lines_in($ng, $line) }, 5, 'a line'), 'the log tells')
            or diag(lines_in($ng, qr/idempotency/));
        is(ledger_count(key => $key), 0, 'nothing ran');
        finish($ng, allow => qr/idempotency: (Redis|Sentinel) at/);

        my ($both) = start_sites($site, 1, url => 'redis+sentinel://'
            . join(',', $fake->address, map { $_->address } ($site->sentinels)[1, 2]) . '/payments');
        sleep 0.5;
        like(said(post($both->port, "$key-2")), qr/^201/, 'two others know better');
        finish($both, allow => qr/idempotency: Sentinel at/);
    };
}

subtest 'a name is resolved each time' => sub {
    my $dns = DnsServer->start('127.0.0.1');
    my $fake = liar(['redis.test', $site->master->port]);
    my $ng = on_redis_nginx('redis+sentinel://' . $fake->address . '/payments', params => $PARAMS,
        lines => 'resolver 127.0.0.1:' . $dns->port . ' ipv6=off valid=1s;');
    like(told($ng->port, 'name'), qr/^201/, 'it works');
    $dns->say(undef);
    # nginx counts in whole seconds.
    sleep 2.5;
    Sentinels::ask($site->master, 'CLIENT', 'KILL', 'TYPE', 'normal');
    ok(wait_until(sub { lines_in($ng, qr/is unavailable: its name cannot be resolved now/) }, 5, 'a line'),
        'an address that has gone from the name is not used');
    $dns->say('127.0.0.1');
    like(told($ng->port, 'name-again'), qr/^201/, 'until it has one again');
    finish($ng);
};

# ---- login and TLS --------------------------------------------------------

subtest 'Sentinels have passwords of their own' => sub {
    my $own = Sentinels->start(replicas => 0, sentinels => 1, password => 'of-redis',
        sentinel_conf => ['user ann on >of-ann ~* &* +@all']);
    my $dir = File::Temp->newdir;
    write_file("$dir/$_", "$_\n") for qw(of-redis of-ann wrong);
    my $good = "password_file=$dir/of-redis sentinel_user=ann sentinel_password_file=$dir/of-ann";
    my ($ng) = start_sites($own, 1, params => "$PARAMS $good");
    finish($ng);

    my $bad = on_redis_nginx($own->url, params =>
        "$PARAMS password_file=$dir/of-redis sentinel_user=ann sentinel_password_file=$dir/wrong");
    is(said(post($bad->port, 'wrong-password')), $REFUSED, 'wrong: refused');
    ok(wait_until(sub { lines_in($bad, qr/Sentinel at "\S+" is unavailable: login failed/) }, 5, 'a line'),
        'the log tells');
    finish($bad);
};

subtest 'TLS' => sub {
    my $own = Sentinels->start(replicas => 0, sentinels => 1, tls => 1);
    my $ca = ($own->servers)[0]->path('ca.crt');
    my ($ng) = start_sites($own, 1, url => $own->url(scheme => 'rediss+sentinel'),
        params => "$PARAMS tls_ca=$ca");
    finish($ng);

    # Neither side understands the other.
    my $plain = RedisServer->start(sentinel => 1, conf => []);
    my $wrong = on_redis_nginx('rediss+sentinel://' . $plain->address . '/payments',
        params => "$PARAMS tls_ca=$ca");
    my $at = time;
    is(said(post($wrong->port, 'no-tls')), $REFUSED, 'TLS to a Sentinel without it: refused');
    cmp_ok(time - $at, '<', 2, 'in time');
    ok(wait_until(sub { lines_in($wrong, qr/Sentinel at "\S+" is unavailable: /) }, 5, 'a line'),
        'the log tells');
    finish($wrong, allow => qr/SSL_do_handshake|idempotency: (Redis|Sentinel) at/);
};

# ---- addresses ------------------------------------------------------------

my @WRONG = (
    ['redis+sentinel://127.0.0.1', '', 'the name of the master must follow the Sentinels'],
    ['redis+sentinel:///payments', '', 'the address has no host'],
    ['redis+sentinel://127.0.0.1/pay+ments', '', 'the name of a master has letters, digits and ".-_" only'],
    ['redis+sentinel://127.0.0.1/payments/x', '', 'only the number of a database may follow'],
    ['redis+sentinel://127.0.0.1,,127.0.0.2/payments', '', 'no host in its address'],
    ['redis+sentinel://127.0.0.1/payments', 'sentinel_check=0', '"sentinel_check" must be a time with a unit, e.g. "1s"'],
    ['redis+sentinel://127.0.0.1/payments', 'sentinel_user=x', '"sentinel_user" requires a password'],
    ['redis://127.0.0.1', 'sentinel_check=1s',
        'the parameter "sentinel_check" requires a "redis+sentinel://" address'],
    ['redis+sentinel://' . join(',', ('127.0.0.1') x 16) . '/payments', '', 'its address can have 15 hosts at most'],
);

for my $case (@WRONG) {
    my ($url, $params, $message) = @$case;
    my $text = eval { on_redis_nginx($url, params => "$params timeout=1s"); 1 } ? 'it starts' : $@;
    like($text, qr/\[emerg\].*idempotency store "default": .*?\Q$message\E/s, "$url $params");
}

done_testing();
