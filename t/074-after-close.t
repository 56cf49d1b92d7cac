# What nginx does after a response broke off (post_action, a slow copy of
# mirror) does not change the outcome: the run was sent, and nobody has said
# that it was not executed.

use v5.36;

use IO::Select;
use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my %AFTER = (
    none => '',
    404  => 'post_action /after/404;',
    200  => 'post_action /after/200;',
    500  => 'post_action /after/500;',
    app  => 'post_action /after/app;',
    refused => 'post_action /after/refused;',
    named   => 'post_action @after;',
);

my $LUA = lua_modules();
my $lua = $LUA eq '' ? '' : <<'CONF';
        location /%1$s/lua {
            %2$s
            idempotency_hold off;
            content_by_lua_block {
                ngx.print(string.rep("x", 1200000))
                ngx.flush(true)
                error("the handler fails")
            }
        }
        location /%1$s/lua-abort {
            %2$s
            lua_check_client_abort on;
            content_by_lua_block { ngx.sleep(10) }
        }
CONF

my $locations = join '', map { locations_of($_, $AFTER{$_}) } sort keys %AFTER;
my $closed = closed_port();

my $ng = Nginx->start(main => $LUA, http => <<"CONF");
log_format outcome '\$http_idempotency_key \$idempotency_status \$idempotency_outcome';
proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;
upstream app { server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%% sndbuf=16k;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    idempotency_scope_route method path;
    idempotency_abort_timeout 300ms;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    lingering_close off;
    access_log %%DIR%%/outcome.log outcome;

    $locations

    location = /after/404 { return 404; }
    location = /after/200 { return 200 after; }
    location = /after/500 { return 500; }
    location = /after/app {
        proxy_method PUT;
        proxy_set_header Idempotency-Key after;
        proxy_set_header X-Behaviour status=404;
        proxy_pass http://app;
    }
    location = /after/refused { proxy_pass http://127.0.0.1:$closed; }
    location \@after { return 404; }

    location /waits {
        idempotency_wait 20s;
        post_action /after/once;
        proxy_pass http://app;
    }
    location = /after/once {
        proxy_method PUT;
        proxy_set_header Idempotency-Key after-\$http_idempotency_key;
        proxy_set_header X-Behaviour \$http_x_after;
        proxy_pass http://app;
    }

    location /mirrored {
        idempotency_hold off;
        mirror /copy;
        proxy_pass http://app;
    }
    location = /copy {
        internal;
        proxy_set_header Idempotency-Key copy;
        proxy_set_header X-Behaviour \$http_x_copy;
        proxy_pass http://app;
    }
}
server { listen 127.0.0.1:%%PORT3%%; location / { stub_status; access_log off; } }
CONF
retry_against($ng);

my $BROKEN = 'size=2400000&type=text/plain&truncate=1';

for my $after (sort keys %AFTER) {
    for my $case (
        ['open', $BROKEN],
        ['open', "$BROKEN&chunked=1"],
        ['open', "$BROKEN&rst=1"],
        ['unbuffered', $BROKEN],
        ['held', $BROKEN],
        ['held', 'size=2400000&type=text/event-stream&chunked=1&truncate=1'],
        # nginx takes the end of a FastCGI connection for that of the response.
        ['fastcgi', $BROKEN],
        ['fastcgi', "$BROKEN&nolength=1"],
        $LUA ? ['lua', ''] : (),
    ) {
        my ($way, $do) = @$case;
        my $ran = $way eq 'lua' ? 0 : 1;

        claim "$after: $way, $do" => sub {
            my $first = write_to("/$after/$way", do => $do);
            is(!!$first->{complete}, $way eq 'fastcgi' && $do =~ /nolength/, 'the response breaks off');
            is_unknown("/$after/$way", $ran);
        };

        claim "$after: $way over HTTP/2, $do" => sub {
            my $h2 = Http2->new($ng->port(2));
            my $first = $h2->request('POST', "/$after/$way", body => $Keyed::BODY,
                headers => ['idempotency-key' => claim_key(), 'x-behaviour' => $do]);
            is(!!$first->{complete}, $way eq 'fastcgi', 'the response breaks off');
            $h2->close;
            is_unknown("/$after/$way", $ran);
        };
    }

    claim "$after: nobody waits for the answer that does not come" => sub {
        my $h2 = Http2->new($ng->port(2));
        my $id = $h2->send('POST', "/$after/held", body => $Keyed::BODY, headers => [
            'idempotency-key' => claim_key(), 'x-behaviour' => 'sleep=0.5&die=before']);
        begun(claim_key());
        $h2->rst($id);
        is_unknown("/$after/held", 1);
    };

    claim "$after: the client is gone longer than idempotency_abort_timeout" => sub {
        my $conn = start_write("/$after/held", do => 'sleep=5');
        begun(claim_key());
        $conn->close;
        is_unknown("/$after/held", 1);
    };

    claim "$after: lua_check_client_abort ends a run, and its log line says how" => sub {
        plan skip_all => 'Lua is not to be had' if $LUA eq '';
        my $conn = start_write("/$after/lua-abort");
        wait_said('409 in_progress', sub { write_to("/$after/lua-abort") });
        $conn->close;
        is_unknown("/$after/lua-abort", 0);
    };

    claim "$after: the client leaves a cached response, or does not read it" => sub {
        for my $run (1 .. 3) {
            my $key = claim_key() . "-$run";
            my $conn = start_write("/$after/cached", key => $key,
                do => 'size=6000000&type=text/plain');
            IO::Select->new($conn->sock)->can_read(5);
            $conn->close if $run < 3;
            is(wait_said(qr/^(?!409 in_progress)/,
                sub { write_to("/$after/cached", key => $key) }),
                '409 response_not_kept', 'a retry is told');
            is(executions($key), $run == 1 ? 1 : 0, 'executions');
        }
    };
}

my $gate = Keyed::Gate->new;

claim 'a slow copy does not keep the outcome back' => sub {
    my $first = write_to('/mirrored', do => $BROKEN, headers => ['X-Copy' => $gate->closed]);
    ok(!$first->{complete}, 'the response breaks off');
    begun('copy');
    is_refused(write_to('/mirrored'), 'outcome_unknown');
    $gate->open;
    is(executions(), 1, 'executions');
};

# Its post_action is under way when the run ends that it had waited for.
claim 'a client that leaves while its request waits: post_action is called once' => sub {
    my ($run, $after) = map { Keyed::Gate->new } 1, 2;
    my $key = claim_key();
    my $first = start_write('/waits', do => $run->closed);
    begun($key);
    my $second = start_write('/waits', headers => ['X-After' => $after->closed]);
    wait_parked($ng, 2);
    $second->close;
    begun("after-$key");
    $run->open;
    is($first->response->{status}, 201, 'the run ends');
    is(said(write_to('/waits')) =~ s/#\d+ //r, '201 replayed', 'a retry');
    $after->open;
    ok(wait_until(sub { ledger_count(key => "after-$key") == 3 }, 10, 'three calls'),
        'each of the three requests has one');
    is(executions(), 1, 'executions');
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs(allow => qr/the handler fails|lua entry thread aborted|stack traceback|coroutine 0/);

done_testing();

sub is_unknown ($uri, $ran) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(wait_said(qr/^(?!409 in_progress)/, sub { write_to($uri) }),
        '409 outcome_unknown', "retry $_") for 1, 2;
    is(executions(), $ran, 'executions') or diag(ledger_lines());
    my $line = claim_key() . ' NEW unknown';
    ok(wait_until(sub { $ng->read('outcome.log') =~ /^\Q$line\E$/m }, 10, $line),
        'the access log has the outcome');
}

sub locations_of ($name, $after) {
    return <<"CONF" . ($lua eq '' ? '' : sprintf $lua, $name, $after);
        location /$name/open { $after idempotency_hold off; proxy_pass http://app; }
        location /$name/unbuffered {
            $after
            idempotency_hold off;
            proxy_buffering off;
            proxy_pass http://app;
        }
        location /$name/held { $after proxy_pass http://app; }
        location /$name/cached {
            $after
            idempotency_hold off;
            send_timeout 500ms;
            proxy_cache cache;
            proxy_cache_methods POST;
            proxy_cache_key \$uri;
            proxy_cache_valid any 1m;
            proxy_pass http://app;
        }
        location /$name/fastcgi {
            $after
            idempotency_hold off;
            include /etc/nginx/fastcgi_params;
            fastcgi_pass 127.0.0.1:\$TEST_NGINX_FASTCGI_PORT;
        }
CONF
}
