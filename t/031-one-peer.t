# Once a byte has gone to a peer nobody else gets the request: no second peer,
# no second connection, no named location. Peers share one ledger, so that a
# second run shows wherever it went.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

my $refused = closed_port();
my $lua = lua_modules();

my $lua_locations = $lua && <<'CONF';
    location /lua/exec { content_by_lua_block { ngx.exec("/app/x") } }
    location /lua/named { content_by_lua_block { ngx.exec("@app") } }
    location /lua/pair { content_by_lua_block { ngx.exec("/pair/x") } }
CONF

# Sets timeouts of its own if the request says so, and tries a dead peer first.
my $lua_upstream = $lua && <<"CONF";
upstream balanced {
    server 0.0.0.1;
    balancer_by_lua_block {
        local balancer = require "ngx.balancer"
        local is_first = not balancer.get_last_failure()
        if is_first then assert(balancer.set_more_tries(1)) end
        if ngx.var.http_x_hurry then assert(balancer.set_timeouts(1, 1, 0.3)) end
        assert(balancer.set_current_peer("127.0.0.1",
            is_first and $refused or \$TEST_NGINX_UPSTREAM_PORT))
    }
}
CONF
$lua_locations .= '    location /lua/balanced { proxy_pass http://balanced; }' if $lua;

my $ng = Nginx->start(main => $lua, http => <<"CONF");
$lua_upstream
upstream pair {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
}
upstream one_refuses {
    server 127.0.0.1:$refused max_fails=0;
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0 backup;
}
upstream other_refuses {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    server 127.0.0.1:$refused max_fails=0 backup;
}
upstream kept {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    keepalive 4;
}
upstream kept_bare {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    keepalive 4;
}
map \$http_x_peer \$backend {
    default  pair;
    refused  refused;
}
upstream refused { server 127.0.0.1:$refused max_fails=0; }

server {
    listen 127.0.0.1:%%PORT%%;

    idempotency on;
    idempotency_scope none;
    proxy_next_upstream error timeout invalid_header http_500 http_502 http_503
        http_504 http_403 http_404 http_429 non_idempotent;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    add_header X-Peers "\$upstream_addr" always;

    location /bare/pair { idempotency off; proxy_pass http://pair; }
    location /bare/kept { idempotency off; proxy_pass http://kept_bare; }
    location /bare/backup {
        idempotency off;
        error_page 502 = \@app;
        proxy_pass http://pair;
    }

    location /pair { proxy_pass http://pair; }
    location /impatient {
        proxy_read_timeout 300ms;
        proxy_pass http://pair;
    }
    location /by-variable { proxy_pass http://\$backend; }
    location /one-refuses { proxy_pass http://one_refuses; }
    location /other-refuses { proxy_pass http://other_refuses; }
    location /kept { proxy_pass http://kept; }
    location /app { proxy_pass http://pair; }

    location \@app { proxy_pass http://pair; }
    location \@page { return 503 "page\\n"; }
    location = /50x.txt { root %%DIR%%; }

    location /backup {
        error_page 502 504 = \@app;
        proxy_read_timeout 300ms;
        proxy_pass http://\$backend;
    }
    location /backup-200 {
        error_page 502 504 =200 \@app;
        proxy_read_timeout 300ms;
        proxy_pass http://\$backend;
    }
    location /backup-intercepted {
        proxy_intercept_errors on;
        error_page 500 = \@app;
        proxy_pass http://\$backend;
    }
    location /named-page {
        error_page 502 = \@page;
        proxy_pass http://\$backend;
    }
    location /page {
        error_page 502 504 /50x.txt;
        proxy_pass http://\$backend;
    }

    location /files/ { internal; root %%DIR%%; }
    location /inner/ {
        internal;
        proxy_set_header X-Behaviour \$http_x_inner;
        proxy_pass http://pair;
    }
    location \@inner {
        proxy_method GET;
        proxy_set_header X-Behaviour \$http_x_inner;
        proxy_pass http://pair;
    }
    $lua_locations
}
CONF
retry_against($ng);

mkdir $ng->path('files');
write_file($ng->path($_), "this is $_\n") for '50x.txt', 'files/doc.txt';

sub peers ($response) {
    return scalar split /[,:] /, header($response, 'X-Peers') // '';
}

my @METHODS = qw(POST PUT DELETE PATCH);

# ---- what nginx does by itself --------------------------------------------

claim 'without protection nginx runs a failed write on the second peer' => sub {
    my $first = write_to('/bare/pair', do => 'die=before');
    is(executions(), 2, 'executions');
};

claim 'without protection nginx resends over a kept connection' => sub {
    write_to('/bare/kept', key => undef);
    write_to('/bare/kept', method => 'PUT', do => 'die=before');
    is(executions(), 2, 'executions');
};

claim 'without protection a named error page runs the request again' => sub {
    write_to('/bare/backup', do => 'status=201');
    is(executions(), 1, 'a good answer is run once');
    write_to('/bare/backup', do => 'die=before');
    cmp_ok(executions(), '>', 2, 'executions');
};

# ---- peers ----------------------------------------------------------------

for my $method (@METHODS) {
    for my $case (
        ['hangs up',   '/pair', 'die=before', 502],
        ['resets',     '/pair', 'die=before&rst=1', 502],
        ['breaks off', '/pair', 'die=header', 502],
        ['times out',  '/impatient', 'sleep=2', 504],
    ) {
        my ($what, $uri, $do, $status) = @$case;
        claim "a $method to a peer that $what is not sent to another" => sub {
            my $first = ends($uri, method => $method, do => $do,
                first => $status, then => 'unknown');
            is(peers($first), 1, 'one peer was asked');
        };
    }

    for my $status (500, 503, 403, 404, 429) {
        claim "a $method answered by $status is not sent to another" => sub {
            my $first = ends('/pair', method => $method,
                do => "status=$status&body=mine", first => $status,
                then => 'runs');
            is(peers($first), 1, 'one peer was asked');
            is($first->{body}, 'mine', 'the answer is passed on');
        };
    }

    claim "a $method refused by the first peer is run by the second" => sub {
        my $first = ends('/one-refuses', method => $method, first => 201,
            then => 'replayed');
        is(peers($first), 2, 'two peers were asked');
    };

    claim "a $method that failed at the second peer is unknown" => sub {
        my $first = ends('/one-refuses', method => $method, do => 'die=before',
            first => 502, then => 'unknown');
        is(peers($first), 2, 'two peers were asked');
    };

    claim "a $method that failed is not tried where it would be refused" => sub {
        my $first = ends('/other-refuses', method => $method,
            do => 'die=before', first => 502, then => 'unknown');
        is(peers($first), 1, 'one peer was asked');
    };
}

claim 'an answer of 502 by a peer is passed on, not sent to another' => sub {
    my $first = ends('/pair', do => 'status=502&body=mine', first => 502,
        then => 'unknown');
    is($first->{body}, 'mine', 'the answer is passed on');
};

claim 'a group chosen by a variable has one try too' => sub {
    ends('/by-variable', do => 'die=before', first => 502, then => 'unknown');
};

claim 'a truncated answer is not sent to another peer' => sub {
    ends('/pair', do => 'truncate=1&size=5000', first => 502, then => 'unknown');
};

# ---- kept connections -----------------------------------------------------

for my $method (@METHODS) {
    claim "a $method over a kept connection that ends is not resent" => sub {
        write_to('/kept', key => undef);
        ends('/kept', method => $method, do => 'die=before', first => 502,
            then => 'unknown');
    };
}

claim 'a request that a kept connection did not read is not resent' => sub {
    write_to('/kept', key => undef);
    my $first = ends('/kept', method => 'PUT', do => 'die=read', first => 502,
        then => 'unknown', executed => 0);
    is(peers($first), 1, 'one peer was asked');
};

claim 'kept connections are used, and writes over them complete' => sub {
    write_to('/kept', key => undef);
    ends('/kept', first => 201, then => 'replayed');
};

# ---- named locations and pages --------------------------------------------

for my $uri ('/backup', '/backup-200') {
    for my $case (['fails', 'die=before', 502], ['times out', 'sleep=2', 504]) {
        my ($what, $do, $status) = @$case;
        claim "a run that $what does not enter a named location ($uri)" => sub {
            ends($uri, do => $do, first => $status, then => 'unknown');
        };
    }

    claim "a refused run enters a named location and completes ($uri)" => sub {
        my $first = write_to($uri, headers => ['X-Peer' => 'refused']);
        is($first->{status}, $uri eq '/backup' ? 201 : 200, 'it is run there');
        is_replay(write_to($uri), $first);
        is(executions(), 1, 'executions');
    };

    claim "a run that fails in a named location is unknown ($uri)" => sub {
        my $first = write_to($uri, do => 'die=before',
            headers => ['X-Peer' => 'refused']);
        is($first->{status}, 502, 'the client gets 502');
        is_refused(write_to($uri), 'outcome_unknown');
        is(executions(), 1, 'executions');
    };
}

claim 'an intercepted answer is not run again in a named location' => sub {
    ends('/backup-intercepted', do => 'status=500', first => 500,
        then => 'runs');
};

claim 'a named location that only answers is entered' => sub {
    my $first = ends('/named-page', do => 'die=before', first => 503,
        then => 'unknown');
    is($first->{body}, "page\n", 'the page answers');
};

claim 'an error page at a URI is sent' => sub {
    my $first = ends('/page', do => 'die=before', first => 502,
        then => 'unknown');
    is($first->{body}, "this is 50x.txt\n", 'the page answers');
};

# ---- X-Accel-Redirect -----------------------------------------------------

claim 'X-Accel-Redirect to a file is followed and replayed' => sub {
    my $first = ends('/pair', do => 'status=200&h=X-Accel-Redirect:/files/doc.txt',
        first => 200, then => 'replayed');
    is($first->{body}, "this is files/doc.txt\n", 'the file answers');
};

for my $case (['a proxied location', '/inner/doc'], ['a named location', '@inner']) {
    my ($what, $target) = @$case;
    my $do = "status=200&h=X-Accel-Redirect:$target";

    claim "X-Accel-Redirect to $what is followed and replayed" => sub {
        my $first = write_to('/pair', do => $do,
            headers => ['X-Inner' => 'status=200&body=inner']);
        is($first->{status}, 200, 'the client gets 200');
        is($first->{body}, 'inner', 'the target answers');
        is_replay(write_to('/pair'), $first);
        is(executions(), 1, 'executions');
    };

    for my $failure ('die=before', 'die=header', 'truncate=1&size=5000') {
        claim "a failure of $what it led to is unknown ($failure)" => sub {
            my $first = write_to('/pair', do => $do,
                headers => ['X-Inner' => $failure]);
            is($first->{status}, 502, 'the client gets 502');
            is_refused(write_to('/pair'), 'outcome_unknown');
            is(executions(), 1, 'executions');
        };
    }
}

claim 'the status beside X-Accel-Redirect is the application\'s word' => sub {
    ends('/pair', do => 'status=422&h=X-Accel-Redirect:/files/doc.txt',
        first => 200, then => 'runs');
};

for my $target ('/files/doc.txt', '@inner') {
    claim "what is said beside X-Accel-Redirect counts ($target)" => sub {
        my $first = ends('/pair', first => 200, then => 'runs',
            do => "status=200&h=X-Accel-Redirect:$target"
                . '&h=X-Accel-Idempotency:release');
        is(header($first, 'X-Accel-Idempotency'), undef, 'and is removed');
    };
}

# ---- ngx.exec -------------------------------------------------------------

SKIP: {
    skip 'without Lua', 6 if !$lua;

    for my $uri ('/lua/exec', '/lua/named', '/lua/pair') {
        claim "a run sent on by ngx.exec ($uri) completes" => sub {
            ends($uri, first => 201, then => 'replayed');
        };

        claim "a run sent on by ngx.exec ($uri) has one peer" => sub {
            ends($uri, do => 'die=before', first => 502, then => 'unknown');
        };
    }
}

# ---- peers that Lua chooses ------------------------------------------------

SKIP: {
    skip 'without Lua', 2 if !$lua;

    claim 'timeouts that Lua sets count, after a dead peer too' => sub {
        ends('/lua/balanced', do => 'sleep=2', once => ['X-Hurry' => 1], first => 504,
            then => 'unknown');
    };

    claim 'and only for the request for which they are set' => sub {
        ends('/lua/balanced', do => 'sleep=1', first => 201, then => 'replayed');
    };
}

# ---- without its client ----------------------------------------------------

my @led_on = (['by error_page', '/backup', 'X-Peer' => 'refused'],
    $lua ? ['by ngx.exec', '/lua/exec'] : ());

for my $case (@led_on) {
    my ($what, $uri, @once) = @$case;
    claim "a run led on $what goes to its end without its client" => sub {
        my $gate = Keyed::Gate->new;
        my $conn = start_write($uri, do => $gate->closed, headers => \@once);
        ok(wait_until(sub { executions() == 1 }, 5, 'the run'), 'it runs');
        $conn->close;
        # Its end is seen before what comes after it is answered.
        write_to('/pair', key => undef);
        $gate->open;
        my $retry;
        ok(wait_until(sub {
            $retry = write_to($uri);
            (member($retry, 'code') // '') ne 'in_progress';
        }, 5, 'the run'), 'it ends');
        is($retry->{status}, 201, 'its answer is there');
        is(header($retry, 'Idempotent-Replayed'), 'true', 'as a replay');
        is(executions(), 1, 'executions');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
