# Modules of others beside this one, loaded before it and after it.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

my $MODULES = '/usr/lib/nginx/modules';
my %FILE = (
    nchan => 'ngx_nchan_module.so',
    srcache => 'ngx_http_srcache_filter_module.so',
    'headers-more' => 'ngx_http_headers_more_filter_module.so',
);

plan skip_all => "Debian's modules go with no other nginx" if lua_modules() eq '';

my ($version) = `$ENV{TEST_NGINX_BINARY} -v 2>&1` =~ m{nginx/(\S+)};

sub in_both_orders ($name, $check) {
    my $line = "load_module $MODULES/$FILE{$name};";
    SKIP: {
        skip "$name is not there", 1 if !-e "$MODULES/$FILE{$name}";
        $check->("$name before this module", preamble => $line);
        $check->("$name after this module", main => $line);
    }
}

sub conf_test ($order, $http) {
    return Nginx->conf_test($http, %$order);
}

in_both_orders(nchan => sub ($title, %order) {
    my $location = 'location / { nchan_publisher; nchan_channel_id x; %s } listen 127.0.0.1:%%%%PORT%%%%;';
    my ($ok, $text) = conf_test(\%order,
        sprintf "server { $location }", 'idempotency on; idempotency_scope none;');
    ok($ok, "$title: a location with a scope");
    unlike($text, qr/has no effect/, "$title: it has an effect");

    ($ok, $text) = conf_test(\%order, sprintf "server { $location }", 'idempotency on;');
    ok(!$ok, "$title: a location without a scope");
    like($text, qr/\[emerg\].* "idempotency_scope" is missing for location "\/"/, "$title: is refused");

    my $ng = Nginx->start(%order, http => sprintf "server { $location }",
        'idempotency on; idempotency_scope none;');
    retry_against($ng);
    claim "$title: a message is published once" => sub {
        my $first = write_to('/');
        like($first->{status}, qr/^20[12]$/, 'it is published');
        is_replay(write_to('/'), $first);
    };
    ok($ng->stop, 'nginx leaves when asked');
    $ng->check_logs;
});

in_both_orders(srcache => sub ($title, %order) {
    my $ng = Nginx->start(%order, http => <<'CONF');
upstream app { server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        idempotency on;
        idempotency_scope none;
        srcache_methods GET HEAD POST;
        srcache_store_statuses 200 201;
        srcache_store PUT /stored;
        srcache_response_cache_control off;
        proxy_http_version 1.1;
        proxy_pass http://app;
    }
    location = /stored {
        internal;
        proxy_set_header Idempotency-Key stored-$http_idempotency_key;
        proxy_set_header X-Behaviour '';
        proxy_pass http://app;
    }
}
CONF
    retry_against($ng);
    for my $do ('size=1000&status=200', 'size=100000&status=200&chunked=1') {
        claim "$title: a response that srcache stores is kept ($do)" => sub {
            my $first = write_to('/', do => $do);
            is($first->{status}, 200, 'it runs');
            wait_until(sub { ledger_count(key => 'stored-' . claim_key()) == 1 }, 5, 'the store');
            is(ledger_count(key => 'stored-' . claim_key()), 1, 'srcache has stored it');
            is_replay(write_to('/'), $first);
            is(executions(), 1, 'executions');
        };
    }
    ok($ng->stop, 'nginx leaves when asked');
    $ng->check_logs;
});

in_both_orders('headers-more' => sub ($title, %order) {
    my $ng = Nginx->start(%order, http => <<'CONF');
server {
    listen 127.0.0.1:%%PORT%%;
    idempotency on;
    idempotency_scope none;
    location / {
        more_clear_headers Server;
        more_set_headers 'X-More: a';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /forgets {
        more_clear_input_headers Idempotency-Key;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /hides {
        proxy_set_header Idempotency-Key '';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /set {
        more_set_headers 'Server: own';
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
    retry_against($ng);
    claim "$title: a replay has the headers of the run" => sub {
        my $first = write_to('/');
        my $second = write_to('/');
        is_replay($second, $first);
        for my $response ($first, $second) {
            is(header($response, 'X-More'), 'a', 'the header that was set');
            is(header($response, 'Server'), undef, 'not the one that was cleared');
        }
    };
    claim "$title: Server is no part of a record" => sub {
        is(header(write_to('/set'), 'Server'), 'own', 'the run has the header that was set');
        is(header(write_to('/set'), 'Server'), $order{preamble} ? 'own' : "nginx/$version",
            'the replay has that of the filters that it passes');
    };
    claim "$title: a key that is cleared protects nothing" => sub {
        my @executed = map { header(write_to($_), 'X-Execution') } ('/forgets') x 2;
        isnt($executed[0], $executed[1], 'both have run');
        my $first = write_to('/hides');
        is_replay(write_to('/hides'), $first);
    };
    ok($ng->stop, 'nginx leaves when asked');
    $ng->check_logs;
});

SKIP: {
    my $filter = "$MODULES/ngx_http_image_filter_module.so";
    skip 'image_filter is not there', 1 if !-e $filter;
    my $ng = Nginx->start(preamble => "load_module $filter;", http => <<'CONF');
log_format outcome '$request_uri $idempotency_status $idempotency_outcome';
server {
    listen 127.0.0.1:%%PORT%%;
    access_log %%DIR%%/outcome.log outcome;
    idempotency on;
    idempotency_scope none;
    image_filter_buffer 1k;
    location /held { image_filter test; proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /open {
        idempotency_hold off;
        image_filter test;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
    retry_against($ng);
    # It rejects what the retries get, too.
    for my $case (
        ['/open', 'unknown', 'UNKNOWN', 'a response whose header a filter rejects'],
        ['/held', 'completed', 'REPLAY', 'the same, held back'],
    ) {
        my ($uri, $outcome, $then, $title) = @$case;
        claim $title => sub {
            is(write_to($uri, do => 'size=5000')->{status}, 415, 'the client gets the error')
                for 1, 2;
            my @lines;
            wait_until(sub { (@lines = $ng->read('outcome.log') =~ /^$uri (.*)$/mg) == 2 },
                5, 'both log lines');
            is_deeply(\@lines, ["NEW $outcome", "$then -"], "the outcome is $outcome");
            is(executions(), 1, 'executions');
        };
    }
    ok($ng->stop, 'nginx leaves when asked');
    $ng->check_logs(allow => qr/image filter/);
}

my $ng = Nginx->start(main => lua_modules(), http => <<'CONF');
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        idempotency on;
        idempotency_scope none;
        content_by_lua_block {
            local socket, why = ngx.req.socket()
            ngx.say(socket and 'a socket' or why)
        }
    }
}
CONF
retry_against($ng);
claim 'a Lua handler cannot read the body of a protected request from its socket' => sub {
    is(write_to('/', key => undef)->{body}, "a socket\n", 'without a key it can');
    is(write_to('/')->{body}, "request body already exists\n", 'with a key it is told why not');
};
ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
