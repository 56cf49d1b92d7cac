# Responses that have no body whatever is written: HEAD, 204 and 304. Nothing
# follows their header, they are never too large, and they are replayed.

use v5.36;

use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $LUA = lua_modules();
my $JS = join '', map {"load_module $_;\n"} split ' ', $ENV{TEST_NGINX_JS_MODULES} // '';
plan skip_all => 'Lua or njs is not to be had' if $LUA eq '' || $JS eq '';

my $ng = Nginx->prepare(main => $LUA . $JS, http => <<'CONF');
js_path %%DIR%%;
js_import app from app.js;
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    idempotency_scope_route method path;
    idempotency_methods POST HEAD;
    idempotency_max_response 10k;

    location /lua/ {
        content_by_lua_block {
            ngx.status = tonumber(ngx.var.http_x_status) or 200
            ngx.header["X-Run"] = ngx.now() .. math.random()
            for i = 1, 100 do
                ngx.print(string.rep("x", 6000))
            end
        }
    }
    location /lua/open {
        idempotency_hold off;
        content_by_lua_block {
            ngx.status = tonumber(ngx.var.http_x_status) or 200
            ngx.header["X-Run"] = ngx.now() .. math.random()
            for i = 1, 100 do
                ngx.print(string.rep("x", 6000))
            end
        }
    }
    location /js { js_content app.large; }
    location /app {
        proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location = /next { return 200 "the next"; }
}
CONF
write_file($ng->path('app.js'), <<'JS');
function large(r) {
    r.headersOut['X-Run'] = String(Math.random());
    r.return(Number(r.headersIn['X-Status'] || 200), 'x'.repeat(600000));
}
export default {large};
JS
$ng->launch or die $ng->error_log;
retry_against($ng);

for my $uri ('/lua/held', '/lua/open', '/js') {
    for my $case (['POST', 204], ['POST', 304], ['HEAD', 200]) {
        my ($method, $status) = @$case;
        my @headers = ('X-Status' => $status);

        claim "$method $uri: $status" => sub {
            my $conn = Http1->new($ng->port);
            my ($first, $retry) = map { ask($conn, $method, $uri, @headers) } 1, 2;
            is($first->{status}, $status, 'the status');
            is($retry->{status}, $status, 'the status of a retry');
            is(header($retry, 'Idempotent-Replayed'), 'true', 'it is a replay');
            is(header($retry, 'X-Run'), header($first, 'X-Run'), 'of the first response');
            is(ask($conn, 'GET', '/next')->{body}, 'the next', 'nothing follows the header');
        };

        claim "$method $uri over HTTP/2: $status" => sub {
            my $h2 = Http2->new($ng->port(2));
            my ($first, $retry) = map {
                $h2->request($method, $uri, headers => ['idempotency-key' => claim_key(), @headers])
            } 1, 2;
            is($first->{status}, $status, 'the status');
            is($first->{body}, '', 'no body');
            is($retry->{status}, $status, 'the status of a retry');
            is($h2->request('GET', '/next')->{body}, 'the next', 'the connection goes on');
        };
    }
}

claim 'HEAD of a large response of an upstream' => sub {
    my $conn = Http1->new($ng->port);
    my ($first, $retry) = map {
        ask($conn, 'HEAD', '/app', 'X-Behaviour' => 'size=600000', 'X-Execute' => 1)
    } 1, 2;
    is(header($first, 'Content-Length'), 600000, 'the length');
    is(header($retry, 'Content-Length'), 600000, 'the length in a retry');
    is(header($retry, 'Idempotent-Replayed'), 'true', 'it is a replay');
    is(executions(), 1, 'executions');
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();

sub ask ($conn, $method, $uri, @headers) {
    $conn->send($method, $uri, headers => ['Idempotency-Key' => claim_key(),
        Connection => 'keep-alive', @headers]);
    return $conn->response;
}
