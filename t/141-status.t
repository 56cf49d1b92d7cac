#!/usr/bin/env perl

# idempotency_status: the counters as JSON and for Prometheus.

use v5.36;

use JSON::PP ();
use Test::More;

use Keyed;
use Ledger;
use Nginx;
use RedisServer;
use Status;

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

# A status zone may have any name.
my $odd = 'a "b" \\ c';

my $ng = Nginx->start(http => <<"CONF");
    idempotency_scope none;
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name shop.example www.shop.example;
        idempotency on;
        location / { $pass }
        location /odd { idempotency_status_zone 'a "b" \\\\ c'; $pass }
        location /status { idempotency_status; }
        location /json { idempotency_status json; }
        location /prometheus { idempotency_status prometheus; }
        location /html { idempotency_status html; }
    }
    server {
        listen 127.0.0.1:%%PORT4%%;
        location / { idempotency_status; }
        location /kept { idempotency on; $pass }
    }
CONF

sub get ($uri, %opt) {
    return request($ng->port, $opt{method} // 'GET', $uri,
        headers => [defined $opt{accept} ? (Accept => $opt{accept}) : ()]);
}

sub type_of ($uri, $accept = undef) {
    my $response = get($uri, accept => $accept);
    is(header($response, 'Cache-Control'), 'no-store', 'not to be kept by caches');
    return (header($response, 'Content-Type') // '') =~ s/;.*//r;
}

my $browser = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
my $scraper = 'application/openmetrics-text;version=1.0.0,'
    . 'application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1';

subtest 'the Accept header chooses' => sub {
    is(type_of('/status'), 'application/json', 'nothing said');
    is(type_of('/status', '*/*'), 'application/json', 'curl');
    is(type_of('/status', 'application/json'), 'application/json', 'JSON');
    is(type_of('/status', $browser), 'text/html', 'a browser');
    is(type_of('/status', $scraper), 'text/plain', 'Prometheus');
    is(type_of('/status', 'image/png'), 'application/json', 'what there is not');
};

subtest 'a word chooses' => sub {
    is(type_of('/json', $browser), 'application/json', 'JSON');
    is(type_of('/prometheus', $browser), 'text/plain', 'for Prometheus');
    is(type_of('/html', $scraper), 'text/html', 'the page');
    is(type_of('/html', '*/*'), 'text/html', 'to all');
    is(type_of('/html', 'application/json'), 'application/json', 'but the page gets its numbers');
};

subtest 'it is there to be read only' => sub {
    is(get('/status', method => $_)->{status}, 405, $_) for qw(POST PUT DELETE);
    my $head = get('/status', method => 'HEAD');
    is($head->{status}, 200, 'HEAD');
    is($head->{body}, '', 'has no body');
    is_deeply(counts($ng, 'shop.example'), {}, 'and is not protected itself');
};

post($ng->port, 'a', uri => '/x') for 1 .. 3;
post($ng->port, 'a', uri => '/x', body => 'other');
post($ng->port, 'b', uri => '/odd', do => 'die=before');
post($ng->port(4), 'c', uri => '/kept');

subtest 'zones have the name of their server, or the one that they were given' => sub {
    is_deeply([sort keys %{ status_of($ng)->{zones} }], ['_', $odd, 'shop.example'], 'names');
    is(counts($ng, 'shop.example')->{'requests.REPLAY'}, 2, 'each has its own numbers');
    is(counts($ng, $odd)->{'requests.REPLAY'}, undef, 'each has its own numbers');
};

subtest 'promtool finds no fault' => sub {
    my $text = get('/prometheus')->{body};
    my $file = $ng->path('metrics');
    write_file($file, $text);
    my $said = `promtool check metrics < $file 2>&1`;
    is($?, 0, 'promtool is content');
    is($said, '', 'and has nothing to say');
    like($text, qr/^nginx_idempotency_requests_total\{zone="a \\"b\\" \\\\ c",status="NEW"\} 1$/m,
        'names are escaped');
};

subtest 'both forms say the same' => sub {
    my %prometheus = get('/prometheus')->{body} =~ /^nginx_idempotency_(\S.*) (\S+)$/mg;
    my $json = get('/json')->{body};
    my $status = JSON::PP::decode_json($json);
    delete @prometheus{ grep {/^info/} keys %prometheus };
    my %wanted = (%{ expected(zone => $status->{zones}) }, %{ expected(store => $status->{stores}) });
    # What a moment can change.
    for my $numbers (\%prometheus, \%wanted) {
        delete @$numbers{ grep {/^store_(?:records|used|facts|full|workers|up)/} keys %$numbers };
    }
    is_deeply(\%prometheus, \%wanted, 'number by number');
};

subtest 'a memory store says how full it is' => sub {
    plan(skip_all => 'about memory') if on_redis();
    my $store = status_of($ng)->{stores}{default};
    is($store->{kind}, 'memory', 'kind');
    is($store->{records}, 3, 'records');
    cmp_ok($store->{used_bytes}, '>', 0, 'bytes used');
    cmp_ok($store->{used_bytes}, '<', $store->{size_bytes}, 'of those that there are');
    cmp_ok($store->{facts_bytes}, '>', 0, 'some of them are facts');
    cmp_ok($store->{facts_bytes}, '<', $store->{used_bytes}, 'others are responses');
    is($store->{$_}, 0, "$_: none yet") for qw(responses_dropped claims_refused);
    my $text = get('/prometheus')->{body};
    like($text, qr/^nginx_idempotency_store_records\{store="default"\} 3$/m, 'also for Prometheus');
};

ok($ng->stop, 'stops');
$ng->check_logs;

subtest 'a memory store that is full' => sub {
    plan(skip_all => 'about memory') if on_redis();
    my $full = Nginx->start(http => <<"CONF");
    idempotency_store small memory:32k;
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name full;
        location / { idempotency small; idempotency_scope none; $pass }
    }
    server { listen 127.0.0.1:%%PORT4%%; location / { idempotency_status; } }
CONF
    my $n = 0;
    post($full->port, 'large', do => 'size=100000');
    wait_until(sub { post($full->port, 'k' . $n++)->{status} == 503 }, 20, 'a full store');
    my $zone = counts($full, 'full');
    is($zone->{'refusals.store_unavailable'}, 1, 'a refusal');
    ok($zone->{'not_kept.store_full'}, 'responses that were not kept');
    my $store = status_of($full)->{stores}{small};
    is($store->{errors}{claim}, 1, 'an error of the store');
    is($store->{used_bytes}, $store->{size_bytes}, 'no room');
    is($store->{facts_bytes}, $store->{size_bytes}, 'because of facts');
    cmp_ok($store->{responses_dropped}, '>', 0, 'responses that made room');
    is($store->{claims_refused}, 1, 'a claim that found none');
    my $text = request($full->port(4), 'GET', '/', headers => [Accept => 'text/plain'])->{body};
    like($text, qr/^# TYPE nginx_idempotency_store_responses_dropped_total counter$/m,
        'also for Prometheus');
    like($text, qr/^nginx_idempotency_store_claims_refused_total\{store="small"\} 1$/m, 'both');
    ok($full->stop, 'stops');
    $full->check_logs;
};

subtest 'a memory store that fills' => sub {
    plan(skip_all => 'about memory') if on_redis();
    my $filling = Nginx->start(http => <<"CONF");
    idempotency_store small memory:1m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { idempotency small; idempotency_scope none; $pass }
    }
    server { listen 127.0.0.1:%%PORT4%%; location / { idempotency_status; } }
CONF
    my $store = status_of($filling)->{stores}{small};
    is_deeply([@$store{qw(full_in_seconds facts_full_in_seconds)}], [undef, undef],
        'of an empty one nobody can tell');
    my $n = 0;
    ok(wait_until(sub {
        post($filling->port, 'k' . $n++, do => 'size=5000');
        $store = status_of($filling)->{stores}{small};
        return defined $store->{full_in_seconds};
    }, 10, 'a forecast'), 'then it is known when it will be full');
    cmp_ok($store->{facts_full_in_seconds} // -1, '>', $store->{full_in_seconds},
        'and when of facts, which is later');
    my $text = request($filling->port(4), 'GET', '/', headers => [Accept => 'text/plain'])->{body};
    like($text, qr/^nginx_idempotency_store_full_in_seconds\{store="small"\} \d+$/m,
        'also for Prometheus');
    ok($filling->stop, 'stops');
    $filling->check_logs;
};

subtest 'a Redis that is gone' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    my $redis = RedisServer->start;
    my $down = Nginx->start(workers => 2, http => <<"CONF");
    idempotency_store far @{[$redis->url]} timeout=300ms connect_timeout=300ms;
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name far;
        location / { idempotency far; idempotency_scope none; $pass }
    }
    server { listen 127.0.0.1:%%PORT4%%; location / { idempotency_status; } }
CONF
    post($down->port, 'k');
    ok(status_of($down)->{stores}{far}{available}, 'available at first');
    $redis->stop;
    my $store;
    ok(wait_until(sub {
        post($down->port, 'k' . rand);
        $store = status_of($down)->{stores}{far};
        return !$store->{available};
    }, 10, 'the state'), 'then not');
    ok(length $store->{reason}, "and why: $store->{reason}");
    cmp_ok($store->{workers_without}, '>=', 1, 'for some worker');
    my $text = request($down->port(4), 'GET', '/', headers => [Accept => 'text/plain'])->{body};
    like($text, qr/^nginx_idempotency_store_up\{store="far"\} 0$/m, 'also for Prometheus');
    cmp_ok($store->{errors}{claim}, '>=', 1, 'errors are counted');
    ok($down->stop, 'stops');
    $down->check_logs;
};

# {'requests_total{zone="x",status="NEW"}' => 1, ...} from the JSON.
sub expected ($label, $objects) {
    my %suffix = (requests => 'requests_total', refusals => 'refusals_total', runs => 'runs_total',
        unknown => 'unknown_outcomes_total', not_kept => 'responses_not_kept_total',
        wait_timeouts => 'wait_timeouts_total', leases_lost => 'leases_lost_total',
        take_overs => 'takeovers_total', clients_gone => 'clients_gone_total',
        dry_run => 'dry_run_total', operation_seconds => 'store_operation_seconds',
        errors => 'store_errors_total',
        (map { $_ => "${_}_total" } qw(outcomes_late outcomes_stored_late outcomes_lost
            responses_damaged)),
        (map { $_ => "store_${_}_total" } qw(responses_dropped claims_refused)));
    my %inner = (requests => 'status', refusals => 'code', runs => 'outcome', unknown => 'reason',
        not_kept => 'reason', dry_run => 'would', operation_seconds => 'operation',
        errors => 'operation');
    my %out;
    for my $owner (keys %$objects) {
        my $who = $label . '="' . ($owner =~ s/([\\"])/\\$1/gr) . '"';
        for my $member (keys %{ $objects->{$owner} }) {
            next if $member =~ /^(?:kind|available|workers_without|reason|records|used_bytes
                |facts_bytes|size_bytes|full_in_seconds|facts_full_in_seconds)$/x;
            my $name = $suffix{$member} // $member;
            my $value = $objects->{$owner}{$member};
            my %places = $inner{$member} ? %$value : ('' => $value);
            for my $word (keys %places) {
                my $labels = $inner{$member} ? qq($who,$inner{$member}="$word") : $who;
                %out = (%out, series($name, $labels, $places{$word}));
            }
        }
        $out{"store_size_bytes{$who}"} = $objects->{$owner}{size_bytes}
            if defined $objects->{$owner}{size_bytes};
    }
    return \%out;
}

sub series ($name, $labels, $value) {
    return ("$name\{$labels}" => $value) if !ref $value;
    return ((map { ("${name}_bucket{$labels,le=\"$_->[0]\"}" => $_->[1]) } @{ $value->{buckets} }),
        "${name}_bucket{$labels,le=\"+Inf\"}" => $value->{count},
        "${name}_count{$labels}" => $value->{count}, "${name}_sum{$labels}" => $value->{sum});
}

done_testing();
