# What docs/upgrading.md says of reloads that change settings: is a retry of an
# earlier request still recognised?

use v5.36;

use Test::More;
use Ledger;
use Keyed;
use Nginx;

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my @JSON = (headers => ['Content-Type' => 'application/json', 'X-User' => 'ann'],
    body => '{"jsonrpc":"2.0","id":1,"method":"pay"}');

sub conf ($settings) { return <<"CONF" }
idempotency_store other memory:8m;
server {
    listen 127.0.0.1:%%PORT%%;
    location / { $settings $PASS }
}
CONF

my $ON = 'idempotency on;';
my $NONE = 'idempotency_scope none;';

# settings before the reload, after it, what a retry gets
my @changes = (
    ['nothing', "$ON $NONE", "$ON $NONE", '201 replayed'],
    ['the scope', "$ON $NONE", "$ON idempotency_scope \$http_x_user;", '201'],
    ['the route', "$ON $NONE", "$ON $NONE idempotency_scope_route off;", '201'],
    ['the source of the same key', "$ON $NONE",
        "$ON $NONE idempotency_key \$http_idempotency_key;", '201 replayed'],
    ['the store', "$ON $NONE", "idempotency other; $NONE", '201'],
    ['the fingerprint', "$ON $NONE", "$ON $NONE idempotency_fingerprint raw;", '422 key_reused'],
    ['what is excluded', "$ON $NONE",
        "$ON $NONE idempotency_fingerprint_exclude /id;", '422 key_reused'],
    ['JSON-RPC', "$ON $NONE", "$ON $NONE idempotency_jsonrpc on;", '422 key_reused'],
    ['the time to live', "$ON $NONE", "$ON $NONE idempotency_ttl 0;", '201 replayed'],
    ['the end of a dry run', "$ON $NONE idempotency_dry_run on;", "$ON $NONE", '201'],
    ['a dry run', "$ON $NONE", "$ON $NONE idempotency_dry_run on;", '201'],
);

my $ng = Nginx->start(http => conf("$ON $NONE"));
for (@changes) {
    my ($what, $before, $after, $wanted) = @$_;
    my $key = $what =~ tr/ /-/r;
    $ng->reload_config(conf($before)) or die "no reload\n";
    is(said(post($ng->port, $key, @JSON), number => 0), '201', "$what: the first request");
    $ng->reload_config(conf($after)) or die "no reload\n";
    is(said(post($ng->port, $key, @JSON), number => 0), $wanted, "$what: a retry");
}

my $larger = conf("$ON $NONE") =~ s/8m/16m/r;
ok(!$ng->reload_config($larger), 'the size of a zone: the reload fails');
like($ng->error_log, qr/\[emerg\] .*zone "\S*other" cannot change its size/, 'says why');
is(post($ng->port, 'still')->{status}, 201, 'nothing changes');

ok($ng->stop, 'stops');
$ng->check_logs(allow => qr/cannot change its size/);

done_testing;
