#!/usr/bin/env perl

# Counters of what happens seldom: callers that are not known, leases that are
# lost, a Redis that is away when a run ends; and all that a dry run tells.

use v5.36;

use Test::More;

use Keyed;
use Ledger;
use Nginx;
use OnRedis qw(proxied_redis on_redis_nginx);
use Status;
use Store;

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my $status = 'server { listen 127.0.0.1:%%PORT4%%; location / { idempotency_status; access_log off; } }';

# What is added by the time that all of it is there.
sub is_added ($ng, $zone, $before, $wanted, $title) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $added = {};
    wait_until(sub {
        $added = counted($before, counts($ng, $zone));
        return join(',', map {"$_=$added->{$_}"} sort keys %$added)
            eq join(',', map {"$_=$wanted->{$_}"} sort keys %$wanted);
    }, 5, 'the numbers');
    return is_deeply($added, $wanted, $title);
}

my $ng = Nginx->start(workers => 2, http => <<"CONF");
    idempotency_scope none;
    lingering_close off;
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name shop;
        location / { idempotency on; $pass }
        location /scoped { idempotency on; idempotency_scope \$http_x_user; $pass }
        location /scoped/required {
            idempotency on;
            idempotency_scope \$http_x_user;
            idempotency_required on;
            $pass
        }
        location /strict { idempotency on; idempotency_strict_methods on; $pass }
        location /short {
            idempotency on;
            idempotency_lease 500ms;
            idempotency_unknown_outcome release;
            $pass
        }
        location /dry { idempotency on; idempotency_dry_run on; idempotency_max_response 1k; $pass }
        location /dry/required {
            idempotency on;
            idempotency_dry_run on;
            idempotency_required on;
            $pass
        }
        location = /pid { return 200 \$pid; }
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        location / { stub_status; access_log off; }
    }
    $status
CONF
retry_against($ng);

sub adds ($wanted, $title, $what) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    claim $title => sub {
        my $before = counts($ng, 'shop');
        $what->();
        is_added($ng, 'shop', $before, $wanted, 'counted');
    };
}

adds({ 'requests.UNSCOPED' => 1 }, 'a caller that is not known', sub { write_to('/scoped') });

adds({ 'requests.UNSCOPED' => 1, 'refusals.scope_missing' => 1 },
    'a caller that is not known, where a key is required', sub { write_to('/scoped/required') });

adds({ 'requests.INVALID' => 1, 'refusals.key_not_supported' => 1 },
    'a method that takes no key', sub {
    request($ng->port, 'GET', '/strict', headers => ['Idempotency-Key' => 'k']);
});

adds({ 'requests.NEW' => 2, 'runs.completed' => 1, 'requests.IN_PROGRESS' => 1,
    'dry_run.in_progress' => 1, 'requests.UNKNOWN' => 1, 'dry_run.outcome_unknown' => 1,
    'runs.unknown' => 1, 'unknown.no_response' => 1 }, 'a dry run: what would be refused', sub {
    my ($gate, $owner) = start_run($ng->port, claim_key(), uri => '/dry');
    write_to('/dry');
    $gate->open;
    $owner->response;
    # A dry run does not hold the answer back until its outcome is stored.
    my $before = counts($ng, 'shop');
    write_to('/dry', key => claim_key() . '-dies', do => 'die=before');
    wait_until(sub { counted($before, counts($ng, 'shop'))->{'runs.unknown'} }, 5, 'its end');
    write_to('/dry', key => claim_key() . '-dies');
});

adds({ 'requests.NEW' => 1, 'runs.not_kept' => 1, 'not_kept.too_large' => 1,
    'requests.NOT_KEPT' => 1, 'dry_run.response_not_kept' => 1 },
    'a dry run: a response that is not kept', sub {
    # What is too large is passed on before its outcome is stored.
    my $before = counts($ng, 'shop');
    write_to('/dry', do => 'size=5000');
    wait_until(sub { counted($before, counts($ng, 'shop'))->{'runs.not_kept'} }, 5, 'its end');
    write_to('/dry', do => 'size=5000');
});

adds({ 'requests.INVALID' => 2, 'dry_run.key_missing' => 1, 'dry_run.key_invalid' => 1 },
    'a dry run: keys', sub {
    write_to('/dry/required', key => undef);
    write_to('/dry/required', key => '"');
});

# The first worker stands still until another one has run its request.
claim 'a lease that is lost' => sub {
    my $before = counts($ng, 'shop');
    my $store = store_counts($ng);
    my ($stopped, $other) = $ng->worker_pids;
    my $conn = connection_to($ng->port, $other);
    my ($gate, $owner) = start_run($ng->port, claim_key(), uri => '/short',
        conn => connection_to($ng->port, $stopped), headers => [Connection => 'keep-alive']);
    wait_until(sub { (store_counts($ng)->{'operation_seconds.renew'} // 0)
        > ($store->{'operation_seconds.renew'} // 0) }, 5, 'a renewal');
    pass('renewals are counted');
    kill STOP => $stopped;
    $gate->open;
    wait_said(qr/^201/, sub {
        my (undef, @arguments) = post_args(0, claim_key(), uri => '/short',
            headers => [Connection => 'keep-alive']);
        $conn->send(@arguments);
        return $conn->response;
    });
    kill CONT => $stopped;
    $owner->response;
    my $added = {};
    wait_until(sub {
        $added = counted($before, counts($ng, 'shop'));
        return $added->{leases_lost};
    }, 5, 'the numbers');
    is($added->{leases_lost}, 1, 'counted');
    is($added->{'runs.lost'}, 1, 'as the end of a run');
    is($added->{take_overs}, 1, 'so is the take-over');
    is($added->{'runs.completed'}, 1, 'and its end');
    is($added->{'requests.NEW'}, 2, 'two runs');
};

ok($ng->stop, 'stops');
$ng->check_logs;

# ---- a Redis that is away ---------------------------------------------------

subtest 'outcomes that are late, and stored later' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    my ($redis, $proxy) = proxied_redis();
    my $late = on_redis_nginx($proxy->url, params => 'timeout=300ms connect_timeout=1s',
        lines => 'idempotency_lease 20s;', servers => $status);
    my ($gate, $conn) = start_run($late->port, 'late');
    $proxy->mode('stall');
    $gate->open;
    $conn->response;
    is_added($late, '_', {}, { 'requests.NEW' => 1, 'runs.late' => 1 }, 'the run ended late');
    my $store = store_counts($late);
    is($store->{outcomes_late}, 1, 'an outcome is late');
    is($store->{outcomes_stored_late}, undef, 'and not stored yet');
    is($store->{'errors.complete'}, 1, 'which is an error of the store');
    post($late->port, 'refused');
    is(counts($late, '_')->{'requests.STORE_ERROR'}, 1, 'a request that it did not serve');
    is(counts($late, '_')->{'refusals.store_unavailable'}, 1, 'was refused');
    is(store_counts($late)->{'errors.claim'}, 1, 'which is another error');
    post($late->port, 'passed', uri => '/pass');
    is(counts($late, '_')->{'requests.STORE_ERROR'}, 2, 'so is one that runs unprotected');
    is(counts($late, '_')->{'refusals.store_unavailable'}, 1, 'but it was not refused');
    $proxy->mode('pass');
    ok(wait_until(sub { store_counts($late)->{outcomes_stored_late} }, 12, 'the outcome'), 'stored later');
    is(store_counts($late)->{outcomes_lost}, undef, 'and not lost');
    ok($late->stop, 'stops');
    $late->check_logs;
};

subtest 'outcomes that are lost' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    my ($redis, $proxy) = proxied_redis();
    my $lost = on_redis_nginx($proxy->url,
        params => 'timeout=300ms connect_timeout=300ms',
        lines => 'idempotency_lease 1500ms;',
        servers => $status);
    my ($gate, $conn) = start_run($lost->port, 'lost');
    $proxy->mode('refuse');
    $gate->open;
    $conn->response;
    # A worker that leaves gives up sooner.
    ok($lost->reload, 'reloaded');
    ok(wait_until(sub { store_counts($lost)->{outcomes_lost} }, 30, 'the end'), 'given up');
    is(store_counts($lost)->{outcomes_late}, 1, 'once late');
    is(store_counts($lost)->{outcomes_stored_late}, undef, 'never stored');
    ok($lost->stop, 'stops');
    $lost->check_logs;
};

done_testing();
