# A response that nginx has in a file: one that X-Accel-Redirect names, or one
# from its cache. A client that leaves in the middle of it, or reads too slowly,
# has no say in the outcome: the application has given its whole answer.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

my $ng = Nginx->prepare(http => <<'CONF');
proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;
upstream app { server 127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%% sndbuf=16k;
    idempotency on;
    idempotency_scope none;
    send_timeout 1s;
    lingering_close off;
    proxy_http_version 1.1;
    proxy_cache_methods POST;
    proxy_cache_key $uri;

    location /held { idempotency_unknown_outcome release; proxy_pass http://app; }
    location /open {
        idempotency_hold off;
        idempotency_unknown_outcome release;
        proxy_pass http://app;
    }
    location /cache/held {
        proxy_cache cache;
        proxy_cache_valid any 1m;
        idempotency_unknown_outcome release;
        proxy_pass http://app;
    }
    location /cache/open {
        proxy_cache cache;
        proxy_cache_valid any 1m;
        idempotency_unknown_outcome release;
        idempotency_hold off;
        proxy_pass http://app;
    }
    location /files/ { internal; root %%DIR%%; }
}
CONF
mkdir $ng->path('files');
write_file($ng->path('files/small'), 'abcdefghij' x 60_000);
write_file($ng->path('files/large'), 'abcdefghij' x 600_000);
$ng->launch or die $ng->error_log;
retry_against($ng);

my %LEAVE = (
    'leaves' => sub ($conn) { nap(0.3); $conn->close },
    'reads nothing' => sub ($conn) { nap(1.5) },
);

for my $how (sort keys %LEAVE) {
    for my $case (
        ['/held', 'h=X-Accel-Redirect:/files/small', qr/^200 replayed$/],
        ['/held', 'h=X-Accel-Redirect:/files/large', qr/^409 response_not_kept$/],
        ['/open', 'h=X-Accel-Redirect:/files/small', qr/^200 replayed$/],
        ['/open', 'h=X-Accel-Redirect:/files/large', qr/^409 response_not_kept$/],
        ['/cache/held', 'size=600000&type=text/plain', qr/^201 #\d+ replayed$/],
        ['/cache/open', 'size=600000&type=text/plain', qr/^201 #\d+ replayed$/],
        ['/cache/held/large', 'size=6000000&type=text/plain', qr/^409 response_not_kept$/],
        ['/cache/open/large', 'size=6000000&type=text/plain', qr/^409 response_not_kept$/],
    ) {
        my ($uri, $do, $then) = @$case;
        # The second one comes from the cache.
        for my $run ($uri =~ /cache/ ? (1, 2) : 1) {
            claim "$uri, $do: the client $how (run $run)" => sub {
                my $path = $uri =~ /cache/ ? "$uri/" . ($how =~ s/ //r) : $uri;
                my $conn = start_write($path, do => $do);
                $LEAVE{$how}->($conn);
                my $said = wait_said(qr/^(?!409 in_progress)/, sub { write_to($path) }, 5);
                like($said, $then, 'a retry is told');
                is(executions(), $run == 1 ? 1 : 0, 'executions');
            };
        }
    }
}

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();

sub nap ($seconds) { select undef, undef, undef, $seconds }
