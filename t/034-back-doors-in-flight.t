# Error pages are no way around the gate while the first request is under way,
# nor where the store is full.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/lib";

use Test::More;
use Ledger;
use Nginx;
use Keyed;

my $ng = Nginx->start(http => <<'CONF');
idempotency on;
idempotency_scope none;
idempotency_store small memory:32k;

server {
    listen 127.0.0.1:%%PORT%%;

    location /refusal {
        error_page 409 = @again;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /full {
        idempotency small;
        error_page 503 = @again;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location @again {
        proxy_set_header X-Behaviour "";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /static { root %%DIR%%; error_page 404 405 =200 @app; }
    location @app { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
}
CONF

retry_against($ng);

claim 'a duplicate that is refused is not run by an error page' => sub {
    my $barrier = $ng->path(claim_key());
    my $first = start_write('/refusal', do => "barrier=$barrier");
    wait_until(sub { executions() == 1 }, 5, 'the run');
    is_refused(write_to('/refusal'), 'in_progress');
    open my $file, '>', $barrier or die "$barrier: $!\n";
    is($first->response->{status}, 201, 'the first is answered');
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

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;
done_testing;
