# Ways around the gate that nginx offers inside itself: error pages, redirects
# by the application, subrequests. None may hand a request on a second time.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use FindBin;
use lib "$FindBin::Bin/lib";

use Test::More;
use Ledger;
use Nginx;
use Retry;

my $refused = closed_port();
my $lua = lua_modules();

my $lua_locations = $lua && <<'CONF';
    location /capture {
        content_by_lua_block {
            ngx.req.read_body()
            local res = ngx.location.capture("/sub",
                { method = ngx.HTTP_PUT, always_forward_body = true })
            ngx.status = res.status
            ngx.print(res.body)
        }
    }
    location /capture-fails {
        content_by_lua_block {
            ngx.req.read_body()
            ngx.location.capture("/sub",
                { method = ngx.HTTP_PUT, always_forward_body = true })
            ngx.exit(500)
        }
    }
    location /sub { internal; proxy_pass http://pair; }
CONF

my $ng = Nginx->start(main => $lua, http => <<"CONF");
upstream pair {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
}
idempotency on;
idempotency_scope none;
idempotency_store small memory:32k;

server {
    listen 127.0.0.1:%%PORT%%;
    $lua_locations

    location /rewritten/ { proxy_pass http://pair; error_page 502 504 = \@break; }
    location \@break { rewrite ^ /v2/pay break; proxy_pass http://pair; }
    location /moved/ { proxy_pass http://pair; error_page 502 504 = \@last; }
    location \@last { rewrite ^ /app last; }
    location /app { proxy_pass http://pair; }

    location /route { proxy_pass http://pair; }
    location \@service {
        proxy_set_header X-Behaviour \$http_x_inner;
        proxy_pass http://pair;
        error_page 502 504 = \@spare;
    }
    location \@spare { proxy_set_header X-Behaviour ""; proxy_pass http://pair; }
    location \@refused { proxy_pass http://127.0.0.1:$refused; }
    location /unprotected { idempotency off; proxy_pass http://pair; }

    location /refusal { proxy_pass http://pair; error_page 409 = \@again; }
    location \@again { proxy_set_header X-Behaviour ""; proxy_pass http://pair; }
    location /full {
        idempotency small;
        proxy_pass http://pair;
        error_page 503 = \@again;
    }
    location /static { root %%DIR%%; error_page 404 405 =200 \@app; }
    location \@app { proxy_pass http://pair; }

    location /word {
        proxy_intercept_errors on;
        error_page 500 /oops;
        proxy_pass http://pair;
    }
    location = /oops { return 500 "sorry"; }

    location /early { proxy_pass http://pair; }
    location /after { proxy_pass http://pair; post_action /note; }
    location /note { idempotency off; internal; proxy_pass http://pair; }

    location /rpc {
        idempotency_jsonrpc on;
        proxy_intercept_errors on;
        error_page 504 =200 /rpc-error;
        proxy_pass http://pair;
    }
    location = /rpc-error {
        default_type application/json;
        return 200 '{"jsonrpc":"2.0","error":{"code":1,"message":"x"},"id":1}';
    }
    location /hop {
        proxy_set_header X-Behaviour \$http_x_inner;
        proxy_pass http://pair;
    }
    location = /end { return 200 "secret"; }
    location /gone {
        idempotency_ttl 4xx 1h;
        proxy_intercept_errors on;
        error_page 410 /broken;
        proxy_pass http://pair;
    }
    location /broken {
        proxy_set_header X-Behaviour "truncate=1&size=1000";
        proxy_pass http://pair;
    }
    location /strict {
        idempotency_key json:/key header:Idempotency-Key;
        idempotency_strict_methods on;
        proxy_pass http://pair;
    }
}

server {
    listen 127.0.0.1:%%PORT2%%;
    recursive_error_pages on;
    idempotency_methods GET;
    location /private { deny all; error_page 403 = /public; proxy_pass http://pair; }
    location /public { proxy_set_header X-Execute 1; proxy_pass http://pair; }
}
CONF

retry_against($ng);

# ---- named error pages ----------------------------------------------------

for my $uri (qw(/rewritten/1 /moved/1)) {
    claim "a named location that rewrites the URI is not entered ($uri)" => sub {
        ends($uri, do => 'die=before', first => 502, then => 'unknown');
    };
}

claim 'a duplicate that is refused is not run by an error page' => sub {
    my $barrier = $ng->path(claim_key());
    my $first = start_write('/refusal', do => "barrier=$barrier");
    wait_until(sub { executions() == 1 }, 5, 'the run');
    is_refused(write_to('/refusal'), 'in_progress');
    open my $file, '>', $barrier or die "$barrier: $!\n";
    is($first->response->{status}, 201, 'the first is answered');
    is(executions(), 1, 'executions');
};

claim 'an unknown outcome is not run by an error page' => sub {
    write_to('/refusal', do => 'die=before');
    my $retry = write_to('/refusal');
    is_refused($retry, 'outcome_unknown');
    is(executions(), 1, 'executions');
};

claim 'what a full store refuses is not run by an error page' => sub {
    for my $n (1 .. 200) {
        my $got = write_to('/full', key => "full-$n");
        next if $got->{status} == 201;
        is_refused($got, 'store_unavailable', 503);
        is(@{ $got->{headers}{'retry-after'} }, 1, 'with one Retry-After');
        is(ledger_count(key => "full-$n"), 0, 'not executed');
        return;
    }
    fail('the store was never full');
};

claim 'an error is not sent with the status of the page that led to it' => sub {
    my $barrier = $ng->path(claim_key());
    my $first = start_write('/static', do => "barrier=$barrier");
    wait_until(sub { executions() == 1 }, 5, 'the run');
    is_refused(write_to('/static'), 'in_progress');
    open my $file, '>', $barrier or die "$barrier: $!\n";
    is($first->response->{status}, 200, 'the first has that status');
    is(executions(), 1, 'executions');
};

claim 'a refused GET gets no replay from a page at a URI' => sub {
    my @key = (headers => ['Idempotency-Key' => claim_key()]);
    my $owner = request($ng->port(2), 'GET', '/public', @key);
    my $stranger = request($ng->port(2), 'GET', '/private', @key);
    is($owner->{status}, 201, 'the owner is answered');
    is(header($stranger, 'Idempotent-Replayed'), undef, 'the stranger gets no replay');
};

# ---- X-Accel-Redirect -----------------------------------------------------

claim 'a service that the application named has no named fallback either' => sub {
    my $first = write_to('/route', do => 'status=200&h=X-Accel-Redirect:@service',
        headers => ['X-Inner' => 'die=before']);
    is($first->{status}, 502, 'the client gets 502');
    is_refused(write_to('/route'), 'outcome_unknown');
    is(scalar(ledger_of()), 2, 'one run of the application, one of the service');
};

claim 'the status of a service that the application named is its own' => sub {
    my $first = write_to('/route', do => 'status=200&h=X-Accel-Redirect:@service',
        headers => ['X-Inner' => 'status=500']);
    is($first->{status}, 500, 'the client gets 500');
    is_rerun(write_to('/route'));
};

claim 'a service that cannot be reached leaves the outcome unknown' => sub {
    my $first = write_to('/route', do => 'status=200&h=X-Accel-Redirect:@refused');
    is($first->{status}, 502, 'the client gets 502');
    is_refused(write_to('/route'), 'outcome_unknown');
};

claim 'peers that were asked before the gate do not count' => sub {
    my $do = 'status=200&h=X-Accel-Redirect:@refused';
    my $first = write_to('/unprotected', do => $do);
    is($first->{status}, 502, 'the client gets 502');
    my $retry = write_to('/unprotected', do => 'status=200&h=X-Accel-Redirect:@again');
    is($retry->{status}, 201, 'the key is free');
    is(header($retry, 'Idempotent-Replayed'), undef, 'and the retry runs');
};

# ---- other ways -----------------------------------------------------------

claim 'the word of an application whose answer was intercepted counts' => sub {
    my $first = write_to('/word', do => 'status=500&h=X-Accel-Idempotency:discard');
    is($first->{body}, 'sorry', 'the page answers');
    is_refused(write_to('/word'), 'response_not_kept');
    is(executions(), 1, 'executions');
};

claim 'an interim answer that nginx takes for the last one is unknown' => sub {
    write_to('/early', do => 'early=1');
    is_refused(write_to('/early'), 'outcome_unknown');
    is(executions(), 1, 'executions');
};

claim 'post_action runs as ever' => sub {
    my $first = write_to('/after', do => 'status=200');
    is($first->{status}, 200, 'the client is answered');
    ok(wait_until(sub { executions() == 2 }, 5), 'the request and its post_action');
};

claim 'an error page in words of JSON-RPC does not free the key' => sub {
    my %rpc = (body => '{"jsonrpc":"2.0","method":"pay","id":1}');
    my @json = ('Content-Type' => 'application/json');
    write_to('/rpc', %rpc, headers => \@json, do => 'status=504');
    is_refused(write_to('/rpc', %rpc, headers => \@json), 'outcome_unknown');
    is(executions(), 1, 'executions');
};

claim 'what the application said counts over further redirects' => sub {
    my $first = write_to('/route',
        do => 'status=200&h=X-Accel-Idempotency:discard&h=X-Accel-Redirect:/hop',
        headers => ['X-Inner' => 'status=200&h=X-Accel-Redirect:/end']);
    is($first->{body}, 'secret', 'the first client gets it');
    is_refused(write_to('/route'), 'response_not_kept');
    is(executions(), 1, 'executions');
};

claim 'an error page that breaks off is not replayed' => sub {
    my $first = write_to('/gone', do => 'status=410');
    is($first->{status}, 502, 'the first client gets 502');
    is_refused(write_to('/gone'), 'response_not_kept');
    is(executions(), 1, 'executions');
};

claim 'a key of an unprotected method is seen behind a source in the body' => sub {
    is_refused(write_to('/strict', method => 'GET'), 'key_not_supported', 400);
};

SKIP: {
    skip 'lua is not there', 2 if !$lua;
    claim 'a write by a subrequest that got no answer is unknown' => sub {
        write_to('/capture-fails', method => 'PUT', do => 'die=before');
        is_refused(write_to('/capture-fails', method => 'PUT'), 'outcome_unknown');
        is(executions(), 1, 'executions');
    };
    claim 'a write by a subrequest goes to one peer' => sub {
        write_to('/capture', method => 'PUT', do => 'die=before');
        is(executions(), 1, 'executions');
        is_refused(write_to('/capture', method => 'PUT'), 'outcome_unknown');
        is(executions(), 1, 'executions after a retry');
    };
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;
done_testing;
