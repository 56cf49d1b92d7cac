# Many keys at once in one worker: each waits for its own run and no other.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

my $lua = lua_modules() or plan(skip_all => 'without Lua');
my $KEYS = 1500;

my $ng = Nginx->start(main => $lua, http => <<'CONF');
lua_shared_dict runs 1m;
server {
    listen 127.0.0.1:%%PORT%% backlog=4096;
    location / {
        idempotency on;
        idempotency_scope none;
        idempotency_wait 30s;
        content_by_lua_block {
            ngx.sleep(1.5)
            ngx.print(ngx.shared.runs:incr("n", 1, 0))
        }
    }
}
CONF

my @answers = parallel(2 * $KEYS, sub ($i) {
    my $key = 'many-' . $i % $KEYS;
    return ($ng->port, 'POST', '/', headers => ['Idempotency-Key' => $key], body => 'x');
});

my $served = grep { ($_->{status} // 0) == 200 } @answers;
is($served, 2 * $KEYS, 'all are answered');
my $alike = grep { $answers[$_]{body} eq $answers[$_ + $KEYS]{body} } 0 .. $KEYS - 1;
is($alike, $KEYS, 'two requests with one key have one answer');
my %seen = map { $_->{body} => 1 } @answers;
is(keys %seen, $KEYS, 'two keys have two');

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
