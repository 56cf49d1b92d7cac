# The dialects with the clients of others, as these come from npm.

use v5.36;

use Cwd qw(abs_path);
use FreePorts qw(free_ports);
use Test::More;
use Ledger;
use Keyed;
use Nginx;

my $CLIENTS = $ENV{TEST_CLIENTS}
    or plan(skip_all => 'no clients: ./build.sh test gets them where there are node and npm');

my $CONF = abs_path('conf');

# What the client says, line by line.
sub client ($name, %env) {
    local @ENV{ keys %env } = values %env;
    return [map { chomp; $_ } `timeout 60 node $CLIENTS/$name.mjs 2>&1`];
}

sub start ($name, $lines, $more = '') {
    return Nginx->start(http => <<"CONF");
include $CONF/maps.conf;
$more
server {
    listen 127.0.0.1:%%PORT%%;
    location / {
        include      $CONF/$name.conf;
        idempotency  on;
        $lines
    }
}
CONF
}

subtest 'Stripe' => sub {
    ledger_reset();
    my $charge = Ledger::escape('{"id":"ch_1","object":"charge"}');
    my $ng = start('stripe', <<'LINES', <<"MAP");
        idempotency_scope  $http_authorization;
        proxy_set_header   X-Behaviour "status=200&h=Request-Id:req_$request_id&$behaviour";
        proxy_pass         http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
LINES
map \$http_idempotency_key \$behaviour {
    slow    "body=$charge&sleep=2";
    default "body=$charge";
}
MAP
    is_deeply(client('stripe', CLIENT_PORT => $ng->port), [
        'first: 200 ch_1 a - true',
        'retry: 200 ch_1 a true true',
        'other amount: 400 StripeIdempotencyError -',
        'other amount, with retries: 400 StripeIdempotencyError -',
        'meanwhile: 409 StripeAPIError idempotency_key_in_use',
        'slow: 200 ch_1 slow - true',
        'meanwhile, with retries: 200 ch_1 slow true true',
    ], 'what the client sees');
    is(ledger_count(), 2, '2 executions');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'MCP' => sub {
    my ($server) = free_ports(1);
    my $ng = start('agents', <<"LINES");
        idempotency_scope   none;
        proxy_http_version  1.1;
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$server;
LINES
    my @wanted = map { my ($path, $n) = @$_; (
            "$path first: paid 5, number $n",
            "$path again: paid 5, number $n",
            "$path without a key: paid 5, number " . ($n + 1),
            "$path other amount: StreamableHTTPError 409 true",
            "$path replays: 1") } ['/mcp/json', 1], ['/mcp/stream', 3];
    is_deeply(client('mcp', CLIENT_PORT => $ng->port, SERVER_PORT => $server),
        [@wanted, 'executions: 4'], 'what the client sees');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

subtest 'Azure' => sub {
    ledger_reset();
    my $room = Ledger::escape('{"id":"room-1","createdAt":"2026-01-01T00:00:00Z",'
        . '"validFrom":"2026-01-01T00:00:00Z","validUntil":"2026-01-02T00:00:00Z"}');
    # Its requests are signed, each with another signature.
    my $ng = start('repeatability', <<"LINES");
        idempotency_scope  none;
        proxy_set_header   X-Behaviour "body=$room&sleep=1";
        proxy_pass         http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
LINES
    is_deeply(client('azure', CLIENT_PORT => $ng->port), [
        'lost: ECONNRESET',
        'room: room-1',
        'results: accepted',
        'one id, one time: true',
    ], 'what the client sees');
    is(ledger_count(), 1, '1 execution');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};

done_testing;
