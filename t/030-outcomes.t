# How a run ends: the rows of the table and their edges. All claims share one
# nginx; each has a key of its own, and counts what the application executed.

use v5.36;

use Test::More;
use Time::HiRes qw(sleep);
use Keyed;
use Ledger;
use Nginx;

my $refused = closed_port();
my $full = full_port();
my $lua = lua_modules();

my $lua_locations = $lua && <<'CONF';
    location /lua {
        content_by_lua_block {
            package.loaded.runs = (package.loaded.runs or 0) + 1
            ngx.status = tonumber(ngx.var.http_x_status) or 200
            ngx.say("run ", package.loaded.runs)
        }
    }
CONF

my $ng = Nginx->start(main => $lua, http => <<"CONF");
map \$http_x_peer \$peer {
    default  http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    refused  http://127.0.0.1:$refused;
    full     http://127.0.0.1:$full;
    tls      https://127.0.0.1:%%PORT%%;
    named    http://peer.invalid;
    down     http://down;
}
map \$http_x_peer \$group {
    default  app;
    refused  refused;
}
upstream down    { server 127.0.0.1:$refused down; }
upstream app     { server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0; }
upstream refused { server 127.0.0.1:$refused max_fails=0; }

server {
    listen 127.0.0.1:%%PORT%%;

    idempotency on;
    idempotency_scope none;
    proxy_connect_timeout 300ms;
    proxy_set_header X-Token \$idempotency_token;
    proxy_set_header X-Attempt \$idempotency_attempt;

    location / { proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }

    location /peer/ { proxy_pass \$peer\$request_uri; }
    location /group/ { proxy_pass http://\$group; }

    location /impatient {
        proxy_read_timeout 400ms;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /small-header {
        proxy_buffer_size 1k;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /unbuffered {
        proxy_buffering off;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /streamed {
        idempotency_hold off;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /too-large {
        idempotency_max_response 1k;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }

    location = /sorry { return 200 "sorry\n"; }
    location = /sorry.txt { root %%DIR%%; }
    location /dressed/uri {
        error_page 502 504 /sorry.txt;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /dressed/200 {
        error_page 502 504 =200 /sorry;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /dressed/group {
        error_page 502 504 =200 /sorry;
        proxy_pass http://\$group;
    }
    location /intercepted {
        proxy_intercept_errors on;
        error_page 404 410 500 502 =200 /sorry;
        idempotency_ttl 410 1h;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }

    location /ttl/exact {
        idempotency_ttl 422 1h;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /ttl/class {
        idempotency_ttl 4xx 1h;
        idempotency_ttl 409 0;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;

        location /ttl/class/inner {
            idempotency_ttl 5xx 1h;
            proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
        }
    }
    location /ttl/any {
        idempotency_ttl any 1h;
        idempotency_ttl 4xx 0;
        idempotency_ttl 404 1h;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /ttl/none {
        idempotency_ttl 0;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /ttl/502 {
        idempotency_ttl 502 1h;
        idempotency_ttl 5xx 1h;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /ttl/short {
        idempotency_ttl 1s;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }

    location /unknown-status/off {
        idempotency_unknown_status off;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
    location /unknown-status/other {
        idempotency_unknown_status 503 202;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }

    location /release {
        idempotency_unknown_outcome release;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }

    location = /requests { idempotency_methods GET POST; stub_status; }
    $lua_locations
}
CONF
retry_against($ng);

write_file($ng->path('sorry.txt'), "sorry\n");

# ---- no byte was sent -----------------------------------------------------

claim 'a refused connection releases the key' => sub {
    upstream_stop();
    is(write_to('/x')->{status}, 502, 'the client gets 502');
    upstream_start();
    is_rerun(write_to('/x'));
    is(executions(), 1, 'executions');
};

for my $case (
    ['a peer that refuses, found at run time', '/peer/', 'refused', 502],
    ['a connect that times out',               '/peer/', 'full',    504],
    ['a failed TLS handshake',                 '/peer/', 'tls',     502],
    ['a peer whose name cannot be resolved',   '/peer/', 'named',   502],
    ['a group without a live peer',            '/peer/', 'down',    502],
    ['a group whose only peer refuses',        '/group/', 'refused', 502],
    ['a refused connection dressed up as 200', '/dressed/group', 'refused', 200],
) {
    my ($what, $uri, $peer, $status) = @$case;
    claim "$what releases the key" => sub {
        ends($uri, once => ['X-Peer' => $peer], first => $status,
            then => 'runs', executed => 1);
    };
}

# ---- bytes were sent, no complete answer ----------------------------------

for my $case (
    ['a timeout',                       '/impatient', 'sleep=3', 504],
    ['a close without an answer',       '/x', 'die=before', 502],
    ['a reset without an answer',       '/x', 'die=before&rst=1', 502],
    ['half a header and a close',       '/x', 'die=header', 502],
    ['half a header and a reset',       '/x', 'die=header&rst=1', 502],
    ['an invalid header',               '/x', 'bad=header', 502],
    ['a header too large for nginx',    '/small-header',
        'h=X-Large:' . 'x' x 2000, 502],
    ['a truncated body',                '/x', 'truncate=1&size=5000', 502],
    ['a truncated body after a reset',  '/x',
        'truncate=1&size=5000&rst=1', 502],
    ['a truncated chunked body',        '/x',
        'truncate=1&size=50000&chunked=1', 502],
    ['a reset in a body without length', '/x',
        'truncate=1&size=50000&nolength=1&rst=1', 502],
    ['a truncated unbuffered body',     '/unbuffered',
        'truncate=1&size=50000', 502],
    ['a timeout in mid-body',           '/impatient',
        'size=5000&pieces=2&gap=3', 502],
    ['a failure found by a peer named at run time', '/peer/', 'die=before', 502],
    ['a failure in a group',            '/group/', 'die=before', 502],
    ['a failure with an error page',    '/dressed/uri', 'die=before', 502],
    ['a failure dressed up as 200',     '/dressed/200', 'die=before', 200],
    ['a truncated body dressed up as 200', '/dressed/200',
        'truncate=1&size=5000', 502],
) {
    my ($what, $uri, $do, $status) = @$case;
    claim "$what leaves the outcome unknown" => sub {
        ends($uri, do => $do, first => $status, then => 'unknown');
    };
}

claim 'a peer that hangs up before it reads the body leaves it unknown' => sub {
    ends('/x', do => 'die=read', first => 502, then => 'unknown', executed => 0);
};

for my $uri ('/streamed', '/too-large') {
    claim "a truncated body that was passed on ($uri) leaves it unknown" => sub {
        my $first = write_to($uri, do => 'truncate=1&size=50000');
        is($first->{status}, 201, 'the header was passed on');
        ok(!$first->{complete}, 'the client sees that the body is cut');
        is_refused(write_to($uri), 'outcome_unknown');
        is(executions(), 1, 'executions');
    };
}

# ---- complete answers -----------------------------------------------------

for my $status (200, 201, 202, 204, 301, 302, 303, 307) {
    claim "a $status is completed" => sub {
        ends('/x', do => "status=$status", first => $status, then => 'replayed');
    };
}

for my $status (400, 401, 404, 409, 422, 429, 500, 503) {
    claim "a $status releases the key" => sub {
        ends('/x', do => "status=$status", first => $status, then => 'runs');
    };
}

for my $case (
    # uri, status, what becomes of it, why
    ['/ttl/exact', 422, 'replayed', 'its code has a ttl'],
    ['/ttl/exact', 400, 'runs',     'only another code has a ttl'],
    ['/ttl/exact', 201, 'replayed', 'no line covers 2xx'],
    ['/ttl/class', 404, 'replayed', 'its class has a ttl'],
    ['/ttl/class', 409, 'runs',     'its own 0 beats its class'],
    ['/ttl/class', 500, 'runs',     'its class has none'],
    ['/ttl/class', 302, 'replayed', 'no line covers 3xx'],
    ['/ttl/class/inner', 404, 'runs', 'inherited lines are replaced'],
    ['/ttl/class/inner', 500, 'replayed', 'the inner line counts'],
    ['/ttl/any',   500, 'replayed', 'any has a ttl'],
    ['/ttl/any',   400, 'runs',     'the 0 of its class beats any'],
    ['/ttl/any',   404, 'replayed', 'its own ttl beats its class'],
    ['/ttl/any',   502, 'unknown',  'any does not beat the unknown statuses'],
    ['/ttl/none',  201, 'runs',     'a ttl without codes is that of 2xx and 3xx'],
    ['/ttl/none',  302, 'runs',     'a ttl without codes is that of 2xx and 3xx'],
    ['/ttl/502',   502, 'replayed', 'an exact ttl beats the unknown statuses'],
    ['/ttl/502',   504, 'unknown',  'a class does not beat the unknown statuses'],
    ['/x',         502, 'unknown',  'a gateway further on got no answer'],
    ['/x',         504, 'unknown',  'a gateway further on got no answer'],
    ['/unknown-status/off',   502, 'runs',    'no status is unknown'],
    ['/unknown-status/off',   504, 'runs',    'no status is unknown'],
    ['/unknown-status/other', 503, 'unknown', 'it is listed'],
    ['/unknown-status/other', 202, 'unknown', 'it is listed, whatever its class'],
    ['/unknown-status/other', 502, 'runs',    'the list replaces the default'],
) {
    my ($uri, $status, $then, $why) = @$case;
    my $verb = { replayed => 'is completed', runs => 'releases the key',
        unknown => 'leaves the outcome unknown' }->{$then};
    claim "a complete $status in $uri $verb: $why" => sub {
        ends($uri, do => "status=$status", first => $status, then => $then);
    };
}

for my $case ([404, 'runs'], [500, 'runs'], [502, 'unknown'], [410, 'replayed']) {
    my ($status, $then) = @$case;
    claim "an intercepted $status counts as $status, not as its page" => sub {
        my $first = ends('/intercepted', do => "status=$status", first => 200,
            then => $then);
        is($first->{body}, "sorry\n", 'the client gets the page');
    };
}

# ---- handlers of nginx's own ----------------------------------------------

claim 'an answer of a handler of nginx is completed' => sub {
    my $first = write_to('/requests', method => 'GET', body => '');
    is($first->{status}, 200, 'the client gets 200');
    # Its request counter would have moved.
    is_replay(write_to('/requests', method => 'GET', body => ''), $first);
};

claim 'a refusal of a handler of nginx releases the key' => sub {
    my $first = write_to('/requests');
    is($first->{status}, 405, 'the client gets 405');
    my $retry = write_to('/requests');
    is($retry->{status}, 405, 'the handler answers again');
    is(header($retry, 'Idempotent-Replayed'), undef, 'it is no replay');
};

SKIP: {
    skip 'without Lua', 2 if !$lua;

    claim 'an answer of content_by_lua is completed' => sub {
        my $first = write_to('/lua');
        is($first->{status}, 200, 'the client gets 200');
        is_replay(write_to('/lua'), $first);
    };

    claim 'an error answer of content_by_lua releases the key' => sub {
        my $first = write_to('/lua', headers => ['X-Status' => 500]);
        is($first->{status}, 500, 'the client gets 500');
        my $retry = write_to('/lua');
        is($retry->{status}, 200, 'the retry is run');
        is(header($retry, 'Idempotent-Replayed'), undef, 'it is no replay');
    };
}

# ---- unknown outcomes that may be run again -------------------------------

claim 'an unknown outcome is run again where the operator chose so' => sub {
    ends('/release', do => 'die=before', first => 502, then => 'runs');
    my $third = write_to('/release');
    is(header($third, 'Idempotent-Replayed'), 'true', 'then it is replayed');
    is(executions(), 2, 'executions');

    is_deeply([attempts_of()], [1, 2], 'attempts are counted');
    my @tokens = map {/ token=(\S+)/} ledger_of();
    like($_, qr/^[0-9a-f]{16,}$/, 'a token is hex') for @tokens;
    isnt($tokens[0], $tokens[1], 'each run has a token of its own');
};

claim 'attempts go on counting while outcomes stay unknown' => sub {
    write_to('/release', do => 'die=before') for 1 .. 3;
    is_rerun(write_to('/release'));
    is_deeply([attempts_of()], [1 .. 4], 'attempts');
};

claim 'exactly one of many retries takes an unknown outcome over' => sub {
    write_to('/release', do => 'die=before');
    my @conns = map { start_write('/release', do => 'sleep=0.5') } 1 .. 6;
    my @statuses = sort map { $_->{status} } collect(\@conns);
    is_deeply(\@statuses, [201, (409) x 5], 'the others find it in progress');
    is(executions(), 2, 'executions');
};

claim 'a run after a released key is a first attempt again' => sub {
    ends('/release', do => 'status=500', first => 500, then => 'runs');
    is_deeply([attempts_of()], [1, 1], 'attempts');
};

claim 'an error answer of a second attempt says nothing of the first' => sub {
    write_to('/release', do => 'die=before');
    is(write_to('/release', do => 'status=500')->{status}, 500, 'the second attempt fails');
    is_refused(write_to('/release', body => 'other'), 'key_reused', 422);
    is_rerun(write_to('/release'));
    is_deeply([attempts_of()], [1, 2, 3], 'the third is announced');
};

claim 'a second attempt that is released by the application frees the key' => sub {
    write_to('/release', do => 'die=before');
    write_to('/release', do => 'status=500&h=X-Accel-Idempotency:release');
    is_rerun(write_to('/release'));
    is_deeply([attempts_of()], [1, 2, 1], 'attempts');
};

# ---- time -----------------------------------------------------------------

claim 'an outcome is replayed until its ttl is over, then runs again' => sub {
    my $first = write_to('/ttl/short');
    is_replay(write_to('/ttl/short'), $first);
    is(executions(), 1, 'executions');
    my $retry;
    ok(wait_until(sub {
        $retry = write_to('/ttl/short');
        !header($retry, 'Idempotent-Replayed');
    }, 5, 'the ttl to be over'), 'the record lapses');
    is_rerun($retry);
    is(executions(), 2, 'executions');
};

claim 'an unknown outcome lasts as long as a 200' => sub {
    ends('/ttl/short', do => 'die=before', first => 502, then => 'unknown');
    my $retry;
    ok(wait_until(sub {
        $retry = write_to('/ttl/short');
        $retry->{status} != 409;
    }, 5, 'the ttl to be over'), 'the record lapses');
    is_rerun($retry);
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

# ---- a worker that dies ---------------------------------------------------

my $two = Nginx->start(workers => 2, http => <<'CONF');
server {
    listen 127.0.0.1:%%PORT%%;
    idempotency on;
    idempotency_scope none;
    location / {
        idempotency_lease 2s;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /brief {
        idempotency_lease 500ms;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
retry_against($two);

claim 'a run whose worker died is pending for its lease, then unknown' => sub {
    my $gate = Keyed::Gate->new;
    my $run = start_write('/x', do => $gate->closed);
    ok(wait_until(sub { executions() == 1 }, 5, 'the run'), 'it runs');
    is_refused(write_to('/x'), 'in_progress');

    # Nobody tells which worker runs it, so all die.
    is(kill(KILL => $two->worker_pids), 2, 'both workers are killed');
    ok(!$run->response->{complete}, 'its client gets no answer');
    my $retry;
    wait_until(sub { $retry = eval { write_to('/x') } }, 5, 'new workers');
    is_refused($retry, 'in_progress');

    ok(wait_until(sub {
        $retry = write_to('/x');
        (member($retry, 'code') // '') ne 'in_progress';
    }, 5, 'the lease to lapse'), 'the lease lapses');
    is_refused($retry, 'outcome_unknown');
    $gate->open;
    is(executions(), 1, 'executions');
};

claim 'a run may take longer than its lease' => sub {
    my $gate = Keyed::Gate->new;
    my $run = start_write('/brief', do => $gate->closed);
    ok(wait_until(sub { executions() == 1 }, 5, 'the run'), 'it runs');
    sleep 1.5;    # three leases: the passing of time is the claim
    is_refused(write_to('/brief'), 'in_progress');
    $gate->open;
    my $first = $run->response;
    is($first->{status}, 201, 'its client gets the answer');
    is_replay(write_to('/brief'), $first);
    is(executions(), 1, 'executions');
};

ok($two->stop, 'nginx leaves when asked');
$two->check_logs(allow => qr/exited on signal 9/);

done_testing();
