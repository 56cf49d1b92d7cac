#!/usr/bin/env perl

# Counters: do the thing, see it count. They are kept per zone and per store,
# added up over all workers, and survive a reload.

use v5.36;

use IO::Select;
use Test::More;
use Time::HiRes qw(sleep);

use Http1;
use Keyed;
use Ledger;
use Nginx;
use Status;

my $http = <<'CONF';
    idempotency_scope none;
    lingering_close off;
    add_header X-Pid $pid always;
    proxy_read_timeout 30s;
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name shop.example;
        location / { idempotency on; proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
        location /wait {
            idempotency on;
            idempotency_wait 5s;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /briefly {
            idempotency on;
            idempotency_wait 50ms;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /required {
            idempotency on;
            idempotency_required on;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /again {
            idempotency on;
            idempotency_unknown_outcome release;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /small {
            idempotency on;
            idempotency_max_response 1k;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /open {
            idempotency on;
            idempotency_hold off;
            proxy_buffering off;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /bypass {
            idempotency on;
            idempotency_bypass 1;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /dry {
            idempotency on;
            idempotency_status_zone dry;
            idempotency_dry_run on;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location = /pid { return 200 $pid; }
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        location / { stub_status; access_log off; }
    }
    server {
        listen 127.0.0.1:%%PORT4%%;
        location / { idempotency_status; access_log off; }
    }
CONF

my $ng = Nginx->start(http => $http, workers => 2);
retry_against($ng);

# What the claim adds to the zone of the server.
sub adds ($zone, $wanted, $title, $what) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    claim $title => sub {
        my $before = counts($ng, $zone);
        $what->();
        my $added;
        wait_until(sub {
            $added = counted($before, counts($ng, $zone));
            return join(',', sort %$added) eq join(',', sort %$wanted);
        }, 3, 'the numbers');
        is_deeply($added, $wanted, 'counted');
    };
}

my $shop = 'shop.example';

is_deeply(counts($ng, $shop), {}, 'at first nothing is counted');

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1 }, 'a run', sub {
    write_to('/x');
});

adds($shop, { 'requests.NEW' => 1, 'requests.REPLAY' => 3, 'runs.completed' => 1,
    replay_age_seconds => 3 }, 'replays, and how old their answers are', sub {
    write_to('/x') for 1 .. 4;
});

adds($shop, { 'requests.-' => 1 }, 'a request without a key', sub { write_to('/x', key => undef) });

adds($shop, { 'requests.BYPASS' => 1 }, 'a bypass', sub { write_to('/bypass') });

adds($shop, { 'requests.INVALID' => 1, 'refusals.key_missing' => 1 }, 'a key that is missing', sub {
    write_to('/required', key => undef);
});

adds($shop, { 'requests.INVALID' => 1, 'refusals.key_invalid' => 1 }, 'a key that is invalid', sub {
    write_to('/x', key => '"');
});

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1, 'requests.REUSED' => 1,
    'refusals.key_reused' => 1 }, 'a key that is reused', sub {
    write_to('/x');
    write_to('/x', body => 'other');
});

adds($shop, { 'requests.NEW' => 2, 'runs.released' => 1, 'runs.completed' => 1 },
    'a released key', sub {
    write_to('/x', do => 'status=500');
    write_to('/x');
});

adds($shop, { 'requests.NEW' => 1, 'runs.unknown' => 1, 'unknown.no_response' => 1,
    'requests.UNKNOWN' => 1, 'refusals.outcome_unknown' => 1 }, 'no answer', sub {
    write_to('/x', do => 'die=before');
    write_to('/x');
});

adds($shop, { 'requests.NEW' => 1, 'runs.unknown' => 1, 'unknown.status' => 1 },
    'an answer that tells nothing', sub { write_to('/x', do => 'status=504') });

adds($shop, { 'requests.NEW' => 2, 'runs.unknown' => 1, 'unknown.no_response' => 1,
    take_overs => 1, 'runs.completed' => 1 }, 'a take-over', sub {
    write_to('/again', do => 'die=before');
    write_to('/again');
});

adds($shop, { 'requests.NEW' => 2, 'runs.unknown' => 2, 'unknown.no_response' => 1,
    'unknown.earlier_attempt' => 1, take_overs => 1 }, 'a take-over that did not happen', sub {
    write_to('/again', do => 'die=before');
    write_to('/again', do => 'status=500');
});

adds($shop, { 'requests.NEW' => 1, 'runs.not_kept' => 1, 'not_kept.too_large' => 1,
    'requests.NOT_KEPT' => 1, 'refusals.response_not_kept' => 1 }, 'a response too large', sub {
    # What is too large is passed on before its outcome is stored.
    my $before = counts($ng, $shop);
    write_to('/small', do => 'size=5000');
    wait_until(sub { counted($before, counts($ng, $shop))->{'runs.not_kept'} }, 5, 'its end');
    write_to('/small', do => 'size=5000');
});

adds($shop, { 'requests.NEW' => 1, 'runs.not_kept' => 1, 'not_kept.discarded' => 1 },
    'a response that the application discards', sub {
    write_to('/x', do => 'h=X-Accel-Idempotency:discard');
});

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1, 'requests.IN_PROGRESS' => 1,
    'refusals.in_progress' => 1 }, 'a duplicate', sub {
    my ($gate, $owner) = start_run($ng->port, claim_key());
    write_to('/x');
    $gate->open;
    $owner->response;
});

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1, 'requests.REPLAY' => 1,
    replay_age_seconds => 1, wait_seconds => 1 }, 'a duplicate that waits', sub {
    my ($gate, $owner) = start_run($ng->port, claim_key(), uri => '/wait');
    my $waiter = start_write('/wait');
    wait_parked($ng, 2);
    $gate->open;
    $_->response for $owner, $waiter;
});

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1, 'requests.IN_PROGRESS' => 1,
    'refusals.in_progress' => 1, wait_seconds => 1, wait_timeouts => 1 },
    'a duplicate that waits in vain', sub {
    my ($gate, $owner) = start_run($ng->port, claim_key(), uri => '/briefly');
    write_to('/briefly');
    $gate->open;
    $owner->response;
});

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1, clients_gone => 1 },
    'a client that leaves', sub {
    my $client = start_write('/open', do => 'pieces=20&gap=0.05&size=20000');
    wait_until(sub { IO::Select->new($client->sock)->can_read(0) }, 5, 'a first piece');
    $client->reset;
});

adds($shop, { 'requests.NEW' => 1, 'runs.completed' => 1, clients_gone => 1 },
    'a client that leaves while its response is held back', sub {
    my ($gate, $owner) = start_run($ng->port, claim_key());
    my $before = counts($ng, $shop);
    $owner->close;
    wait_until(sub { counted($before, counts($ng, $shop))->{clients_gone} }, 5, 'nginx to notice');
    $gate->open;
    wait_until(sub { counted($before, counts($ng, $shop))->{'runs.completed'} }, 5, 'the run');
});

adds('dry', { 'requests.NEW' => 1, 'runs.completed' => 1, 'requests.REPLAY' => 1,
    'dry_run.replay' => 1, 'requests.REUSED' => 1, 'dry_run.key_reused' => 1 },
    'a dry run', sub {
    write_to('/dry');
    write_to('/dry');
    write_to('/dry', body => 'other');
});

subtest 'workers are added up' => sub {
    my $before = counts($ng, $shop);
    my %pids;
    for my $pid ($ng->worker_pids) {
        my $conn = connection_to($ng->port, $pid);
        for my $n (1 .. 5) {
            my (undef, @arguments) = post_args($ng->port, "worker-$pid-$n");
            $conn->send(@arguments, headers => ['Idempotency-Key' => "worker-$pid-$n",
                Connection => 'keep-alive']);
            $pids{ pid_of($conn->response) }++;
        }
    }
    is_deeply([sort { $a <=> $b } values %pids], [5, 5], 'both have worked');
    is_deeply(counted($before, counts($ng, $shop)),
        { 'requests.NEW' => 10, 'runs.completed' => 10 }, 'all is counted');
};

subtest 'a store counts its operations' => sub {
    my $before = store_counts($ng);
    write_to('/x', key => 'store-1') for 1 .. 2;
    write_to('/x', key => 'store-2', do => 'status=500');
    write_to('/x', key => 'store-3', do => 'die=before');
    my $added = counted($before, store_counts($ng));
    delete @$added{qw(records used_bytes facts_bytes full_in_seconds facts_full_in_seconds)};
    is_deeply($added, { 'operation_seconds.claim' => 4, 'operation_seconds.complete' => 1,
        'operation_seconds.release' => 1, 'operation_seconds.mark_unknown' => 1 }, 'counted');
    my $state = status_of($ng)->{stores}{default};
    ok($state->{available}, 'and is available');
    is($state->{reason}, undef, 'without a reason');
};

subtest 'the numbers survive a reload' => sub {
    my $before = counts($ng, $shop);
    my $store = store_counts($ng);
    ok($ng->reload, 'reloaded');
    is_deeply(counts($ng, $shop), $before, 'still there');
    is(store_counts($ng)->{'operation_seconds.claim'}, $store->{'operation_seconds.claim'},
        'those of the store too');
    write_to('/x', key => 'after-reload');
    is_deeply(counted($before, counts($ng, $shop)),
        { 'requests.NEW' => 1, 'runs.completed' => 1 }, 'and go on');
};

subtest 'more workers and another zone after a reload' => sub {
    my $before = counts($ng, $shop);
    (my $more = $http) =~ s/status_zone dry/status_zone other/;
    ok($ng->reload_config($more, workers => 3), 'reloaded');
    is_deeply(counts($ng, $shop), $before, 'still there');
    is(status_of($ng)->{zones}{dry}, undef, 'a zone that is not configured is not shown');
    write_to('/dry', key => 'more') for 1 .. 20;
    is(counts($ng, 'other')->{'requests.REPLAY'}, 19, 'a new one counts');
};

subtest 'a reload without any store, and back' => sub {
    memory_only('elsewhere the tests define a store themselves');
    ok($ng->reload_config('server { listen 127.0.0.1:%%PORT4%%; location / { idempotency_status; } }'),
        'reloaded');
    is_deeply([@{ status_of($ng) }{qw(zones stores)}], [{}, {}], 'there is nothing to count');
    ok($ng->reload_config($http), 'and back');
    is_deeply(counts($ng, $shop), {}, 'it begins anew');
};

ok($ng->stop, 'stops');
$ng->check_logs;

done_testing();
