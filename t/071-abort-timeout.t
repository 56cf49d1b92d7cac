# idempotency_abort_timeout: a run whose client has left is ended at last, and
# its outcome is unknown. A client that stays is waited for.

use v5.36;

use Test::More;
use Time::HiRes qw(time);
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $lua = lua_modules();
my $js = join '', map {"load_module $_;\n"} split ' ', $ENV{TEST_NGINX_JS_MODULES} // '';

my $ng = Nginx->prepare(main => "$lua$js", http => join "\n", $js ? <<'JS' : (), <<'CONF',
js_path %%DIR%%;
js_import app from app.js;
JS
upstream app { server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    idempotency_scope_route host method path;
    idempotency_abort_timeout 1s;
    proxy_http_version 1.1;
    proxy_set_header Connection '';

    location /buffered { proxy_pass http://app; }
    location /unbuffered { proxy_buffering off; proxy_pass http://app; }
    location /open { idempotency_hold off; proxy_buffering off; proxy_pass http://app; }
    location /unlimited { idempotency_abort_timeout 0; proxy_pass http://app; }
    location /patient { idempotency_abort_timeout 30s; proxy_pass http://app; }
    location = /stub { idempotency off; stub_status; }
    location /inner { internal; proxy_pass http://app; }
CONF
    $lua ? <<'LUA' : (), $js ? <<'JS' : (), '}');
    location /lua {
        content_by_lua_block {
            local told = ngx.location.capture('/inner', {method = ngx.HTTP_POST})
            ngx.say(told.status)
        }
    }
LUA
    location /js { js_content app.relay; }
JS
write_file($ng->path('app.js'), <<'JS');
async function relay(r) {
    let reply = await r.subrequest('/inner', {method: 'POST'});
    r.return(reply.status, 'told');
}
export default {relay};
JS
$ng->launch or die $ng->error_log;
retry_against($ng);

my $events = 'type=text/event-stream&chunked=1&size=4000&pieces=400&gap=0.05';
my $drops = 'type=text/plain&chunked=1&size=4000&pieces=400&gap=0.05';

my %WAY = (
    'close' => sub ($uri, $do) {
        my $conn = start_write($uri, do => $do);
        running();
        $conn->close;
    },
    'reset' => sub ($uri, $do) {
        my $conn = start_write($uri, do => $do);
        running();
        $conn->reset;
    },
    'RST_STREAM' => sub ($uri, $do) { leave_h2($uri, $do, sub ($h2, $id) { $h2->rst($id) }) },
    'close of HTTP/2' => sub ($uri, $do) { leave_h2($uri, $do, sub ($h2, $id) { $h2->close }) },
);

my @kept;

sub leave_h2 ($uri, $do, $leave) {
    my $h2 = Http2->new($ng->port(2));
    my $id = $h2->send('POST', $uri, body => $Keyed::BODY,
        headers => ['idempotency-key' => claim_key(), 'x-behaviour' => $do]);
    running();
    push @kept, $h2;
    $leave->($h2, $id);
}

sub running {
    wait_until(sub { executions() == 1 }, 5, 'the run');
    select undef, undef, undef, 0.2;
}

sub code_of ($uri) { return member(write_to($uri), 'code') // 'none' }

# What a handler does by subrequests is a part of its run.
for my $uri ('/buffered', '/unbuffered', '/open', $lua ? '/lua' : (), $js ? '/js' : ()) {
    for my $do ($events, $drops, 'sleep=15') {
        next if $do eq $drops && $uri eq '/open';
        for my $way (sort keys %WAY) {
            # Lua makes no subrequests for HTTP/2.
            next if $uri eq '/lua' && $way =~ /RST_STREAM|HTTP/;
            claim "$uri: a run ($do) is ended after a $way" => sub {
                $WAY{$way}->($uri, $do);
                is(code_of($uri), 'in_progress', 'not at once');
                my $code;
                wait_until(sub { ($code = code_of($uri)) ne 'in_progress' }, 5, 'the end');
                is($code, 'outcome_unknown', 'its outcome is unknown');
                is(executions(), 1, 'executions');
            };
        }
    }
}

claim 'a run that ends in time is stored' => sub {
    $WAY{close}->('/buffered', 'sleep=0.6');
    my $retry;
    wait_until(sub { ($retry = write_to('/buffered'))->{status} == 201 }, 5, 'the end');
    is(header($retry, 'Idempotent-Replayed'), 'true', 'its answer is there');
    is(executions(), 1, 'executions');
};

claim 'a client that stays is waited for' => sub {
    my $first = write_to('/buffered', do => 'sleep=1.6');
    is($first->{status}, 201, 'it gets its answer');
    is_replay(write_to('/buffered'), $first);
    my $stream = write_to('/open', key => claim_key() . '-stream',
        do => 'type=text/event-stream&chunked=1&size=40&pieces=40&gap=0.05');
    ok($stream->{complete}, 'it gets its stream');
};

claim 'a client that only says no more is served in time' => sub {
    my $conn = start_write('/buffered', do => 'sleep=0.6');
    $conn->half_close;
    is($conn->response->{status}, 201, 'it gets its answer');
};

claim 'a location may have a longer time, or none' => sub {
    for my $uri ('/patient', '/unlimited') {
        $WAY{close}->($uri, 'sleep=2');
        select undef, undef, undef, 1.4;
        is(code_of($uri), 'in_progress', "$uri: it still runs");
        my $retry;
        wait_until(sub { ($retry = write_to($uri))->{status} == 201 }, 5, 'the end');
        is(header($retry, 'Idempotent-Replayed'), 'true', 'its answer is there');
        ledger_reset();
    }
};

claim 'a graceful quit waits no longer than that' => sub {
    $WAY{close}->('/open', $events);
    $_->close for splice @kept;
    my $since = time;
    ok($ng->stop, 'nginx leaves when asked');
    cmp_ok(time - $since, '<', 5, 'soon');
};

like($ng->error_log, qr/idempotency: client disconnected 1 s ago, the request is ended/,
    'the log says why');
$ng->check_logs;

my ($ok, $said) = Nginx->conf_test('server { idempotency_abort_timeout soon; }');
ok(!$ok, 'a bad value is refused');
like($said, qr/invalid time "soon" in "idempotency_abort_timeout" directive/, 'by name');

done_testing();
