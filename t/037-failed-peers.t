# Passive health checks: no second peer is tried, yet an answer that nginx
# counts as a failure counts for max_fails as it does without the module.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

# [name, method, status, proxy_next_upstream, the peer is out afterwards]
my @CASES = (
    (map { ["put_$_", 'PUT', $_, "http_$_", 1] } 500, 502, 503, 504, 429),
    (map { ["post_$_", 'POST', $_, "http_$_ non_idempotent", 1] } 500, 502, 503, 504, 429),
    (map { ["next_$_", 'PUT', $_, "http_$_", 0] } 403, 404),
    ['not_named', 'PUT', 500, 'error http_503', 0],
    ['post_idempotent', 'POST', 500, 'http_500', 0],
    ['off', 'PUT', 500, 'off', 0],
    ['kept', 'PUT', 500, 'http_500', 1],
);

my ($upstreams, $locations) = ('', '');
for my $case (@CASES) {
    my ($name, undef, undef, $next) = @$case;
    my $keep = $name eq 'kept' ? 'keepalive 4;' : '';
    for my $kind ('', 'bare_') {
        my $off = $kind && 'idempotency off;';
        $upstreams .= "upstream $kind$name { $keep\n"
            . "server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=1 fail_timeout=100s;\n"
            . "server 127.0.0.1:%%PORT2%% backup; }\n";
        $locations .= "location = /$kind$name { $off proxy_next_upstream $next;"
            . " proxy_pass http://$kind$name; }\n";
    }
}

my $ng = Nginx->start(http => <<"CONF");
$upstreams
upstream three_fails {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=3 fail_timeout=100s;
    server 127.0.0.1:%%PORT2%% backup;
}
server {
    listen 127.0.0.1:%%PORT%%;
    idempotency on;
    idempotency_scope none;
    proxy_http_version 1.1;
    proxy_set_header Connection '';
    $locations
    location = /three { proxy_next_upstream http_500; proxy_pass http://three_fails; }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    location / { return 299 spare; }
}
CONF
retry_against($ng);

for my $case (@CASES) {
    my ($name, $method, $status, $next, $out) = @$case;
    claim "$method answered by $status, proxy_next_upstream $next" => sub {
        my $first = write_to("/$name", method => $method, do => "status=$status&body=mine");
        is($first->{status}, $status, 'the answer is passed on');
        is($first->{body}, 'mine', 'with its body');
        is(executions(), 1, 'one peer has run it');

        write_to("/bare_$name", method => $method, do => "status=$status", key => undef);
        my @after = map { write_to("/$_$name", key => 'after')->{status} } '', 'bare_';
        is($after[0], $out ? 299 : 201, $out ? 'the peer is out' : 'the peer stays');
        is($after[1], $after[0], 'as without the module');
    };
}

claim 'the third failure counts as the third' => sub {
    write_to('/three', method => 'PUT', do => 'status=500') for 1 .. 2;
    is(write_to('/three', key => 'three-a')->{status}, 201, 'two are not enough');
    write_to('/three', method => 'PUT', do => 'status=500') for 1 .. 3;
    is(write_to('/three', key => 'three-b')->{status}, 299, 'three are');
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
