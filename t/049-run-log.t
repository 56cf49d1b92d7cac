# What the error log says of a run's end: which request it was, and nothing
# that blames the client for what the application did.

use v5.36;

use Test::More;
use Http2;
use Keyed;
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
server {
    listen 127.0.0.1:%%PORT%%;
    listen 127.0.0.1:%%PORT2%% http2;
    idempotency on;
    idempotency_scope none;
    idempotency_abort_timeout 300ms;
    proxy_read_timeout 300ms;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /open {
        idempotency_hold off;
        proxy_buffering  off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /patient { proxy_read_timeout 1m; proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /dry {
        idempotency_dry_run on;
        proxy_read_timeout  1m;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
retry_against($ng);

# The application fails in one of these ways, or the client leaves.
my $stop = 'size=1000&truncate=1';

claim 'the application died before it answered' => sub { told('/a', sub { write_to('/a', do => 'die=before') }) };
claim 'it died while it answered' => sub { told('/b', sub { write_to('/b', do => $stop) }) };
claim 'it died while a response was passed on' => sub { told('/open', sub { write_to('/open', do => $stop) }) };
claim 'it was too slow' => sub { told('/c', sub { write_to('/c', do => 'sleep=1') }) };
claim 'a status that says nothing' => sub { told('/d', sub { write_to('/d', do => 'status=504') }) };

for my $uri ('/patient', '/dry') {
    claim "the client of $uri left too early" => sub {
        told($uri, sub {
            my $conn = start_write($uri, do => 'sleep=5');
            wait_until(sub { executions() == 1 }, 5, 'the run');
            $conn->close;
        });
    };
    claim "the HTTP/2 client of $uri left too early" => sub {
        told($uri, sub {
            my $h2 = Http2->new($ng->port(2));
            $h2->send('POST', $uri, body => 'x',
                headers => ['idempotency-key' => claim_key(), 'x-behaviour' => 'sleep=5']);
            wait_until(sub { executions() == 1 }, 5, 'the run');
            $h2->close;
        });
    };
}

$ng->stop(signal => 'TERM');
$ng->check_logs;
done_testing();

# Just one new line, about this request, whatever nginx was doing.
sub told ($uri, $act) {
    my $before = length $ng->error_log;
    my @lines;
    $act->();
    wait_until(sub {
        # A line that nginx is writing may be there in part.
        @lines = grep {/idempotency: outcome .*unknown/} substr($ng->error_log, $before) =~ /(.*)\n/g;
        return scalar @lines;
    }, 10, 'the line');
    is(scalar @lines, 1, 'one line');
    like($lines[0], qr/ request: "POST \Q$uri\E HTTP/, 'it has the request');
    unlike($lines[0], qr/ while /, 'and does not say what nginx did just then');
}
