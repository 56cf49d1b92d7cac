# Whose key it is, and on which route.

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use Test::More;
use lib 't/lib';
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
log_format key escape=none '$request_uri $idempotency_status';
access_log %%DIR%%/access.log key;
idempotency_scope $http_x_user;
idempotency on;

server {
    listen 127.0.0.1:%%PORT%%;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }

    location /none/ {
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /pair/ {
        idempotency_scope $http_x_user $http_x_tenant;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /string/ {
        idempotency_scope "$http_x_user@$http_x_tenant";
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /required/ {
        idempotency_required on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /required-none/ {
        idempotency_required on;
        idempotency_scope none;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /anywhere/ {
        idempotency_scope_route off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;

        location /anywhere/pair/ {
            idempotency_scope $http_x_user $http_x_tenant;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
        location /anywhere/route/ {
            idempotency_scope_route on;
            proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
        }
    }
}
CONF

my $cases = 0;

sub fresh ($place = '') { return "$place/" . ++$cases }

# ($uri, user => , tenant => , key => , host => , method => )
sub ask ($uri, %opt) {
    my @headers = ('Idempotency-Key' => $opt{key} // 'k', Host => $opt{host} // 'localhost');
    push @headers, 'X-User' => $opt{user} if defined $opt{user};
    push @headers, 'X-Tenant' => $opt{tenant} if defined $opt{tenant};
    my $got = request($ng->port, $opt{method} // 'POST', $uri, headers => \@headers);
    my ($code) = $got->{body} =~ /"code":"(\w+)"/;
    return $code ? "$got->{status} $code" : sprintf '%s %s%s', $got->{status},
        $got->{headers}{'idempotent-replayed'} ? 'replay of ' : 'run ',
        $got->{headers}{'x-execution'}[0];
}

sub logged ($uri) {
    my $line = qr/^\Q$uri\E (\S+)$/m;
    wait_until(sub { $ng->access_log =~ $line }, 5, "a log line of $uri");
    return join ' ', $ng->access_log =~ /$line/g;
}

# Each list is the arguments of ask(); answers count the executions from 1.
sub answers ($wanted, $claim, @requests) {
    ledger_reset();
    is_deeply([map { ask(@$_) } @requests], $wanted, $claim);
    my $runs = grep {/^201 run/} @$wanted;
    is(ledger_count(), $runs, "$claim: $runs executions");
}

my @APART = ('201 run 1', '201 run 2', '201 replay of 1', '201 replay of 2');
my @ONE = ('201 run 1', '201 replay of 1');

sub apart ($claim, $one, $two) { answers(\@APART, $claim, $one, $two, $one, $two) }

sub one ($claim, $one, $two) { answers(\@ONE, $claim, $one, $two) }

# ---- callers --------------------------------------------------------------

my $uri = fresh();
apart('two callers with the same key do not meet', [$uri, user => 'ann'], [$uri, user => 'bob']);
$uri = fresh();
apart('callers differ by case', [$uri, user => 'ann'], [$uri, user => 'Ann']);
$uri = fresh();
apart('scope and key do not run into each other',
    [$uri, user => 'ab', key => 'c'], [$uri, user => 'a', key => 'bc']);

$uri = fresh('/pair');
apart('"ab" + "c" is not "a" + "bc"',
    [$uri, user => 'ab', tenant => 'c'], [$uri, user => 'a', tenant => 'bc']);
$uri = fresh('/pair');
apart('"ab" + "" is not "" + "ab"',
    [$uri, user => 'ab', tenant => ''], [$uri, user => '', tenant => 'ab']);
$uri = fresh('/pair');
apart('each value counts', [$uri, user => 'a', tenant => 'x'], [$uri, user => 'a', tenant => 'y']);
$uri = fresh('/pair');
one('one value of two is enough, and none is as empty as ""',
    [$uri, user => 'a'], [$uri, user => 'a', tenant => '']);
apart('one value is not the same value and an empty one',
    ['/anywhere/1', user => 'a', key => 'count'],
    ['/anywhere/pair/1', user => 'a', tenant => '', key => 'count']);
$uri = fresh('/string');
one('a string of several variables is one value',
    [$uri, user => 'a@b', tenant => 'c'], [$uri, user => 'a', tenant => 'b@c']);

$uri = fresh('/none');
one('none: all clients are one', [$uri, user => 'ann'], [$uri, user => 'bob']);

# ---- nobody's key ---------------------------------------------------------

$uri = fresh();
answers(['201 run 1', '201 run 2', '201 run 3'], 'nobody owns the key: the request passes untouched',
    [$uri], [$uri, user => ''], [$uri]);
is(logged($uri), 'BYPASS BYPASS BYPASS', 'and is told as a bypass');

$uri = fresh('/pair');
answers(['201 run 1', '201 run 2'], 'all values are empty',
    [$uri, user => '', tenant => ''], [$uri, user => '', tenant => '']);

my @warnings = $ng->error_log =~ /^.*\[warn\].*idempotency_scope.*empty.*$/mg;
is(@warnings, 1, 'one warning for many of them') or diag($ng->error_log);

$uri = fresh('/required');
answers(['400 scope_missing'], 'nobody owns the key where one is required', [$uri]);
is(logged($uri), 'INVALID', 'and is told as invalid');
$uri = fresh('/required');
one('a caller where a key is required', [$uri, user => 'a'], [$uri, user => 'a']);
$uri = fresh('/required-none');
one('none is a scope where a key is required', [$uri], [$uri]);

# ---- route ----------------------------------------------------------------

sub by (%opt) { return (user => 'ann', %opt) }

apart('another path is another record', [fresh(), by()], [fresh(), by()]);
apart('paths are taken undecoded: /a%2Fb is not /a/b', ['/a%2Fb', by()], ['/a/b', by()]);
apart('paths are taken undecoded: /%61c is not /ac', ['/%61c', by()], ['/ac', by()]);
apart('paths are taken as sent: /d//e is not /d/e', ['/d//e', by()], ['/d/e', by()]);
$uri = fresh();
apart('another method is another record', [$uri, by()], [$uri, by(method => 'PUT')]);
$uri = fresh();
apart('another host is another record', [$uri, by(host => 'a.test')], [$uri, by(host => 'b.test')]);
$uri = fresh();
one('hosts are the same whatever their case',
    [$uri, by(host => 'a.test')], [$uri, by(host => 'A.Test')]);
$uri = fresh();
one('a target in absolute form is the same route',
    [$uri, by()], ["http://localhost$uri", by()]);
$uri = fresh();
answers(['201 run 1', '422 key_reused'], 'other arguments are no other record',
    ["$uri?a=1", by()], ["$uri?a=2", by()]);

answers(['201 run 1', '422 key_reused', '201 replay of 1'],
    'without the route another path is another request with the same key',
    ['/anywhere/p1', by(key => 'path')], ['/anywhere/p2', by(key => 'path')],
    ['/anywhere/p1', by(key => 'path')]);
answers(['201 run 1', '422 key_reused'], 'without the route another method too',
    ['/anywhere/m', by(key => 'method')], ['/anywhere/m', by(key => 'method', method => 'PUT')]);
one('without the route hosts do not matter', ['/anywhere/h', by(key => 'host', host => 'a.test')],
    ['/anywhere/h', by(key => 'host', host => 'b.test')]);
apart('without the route callers still do not meet',
    ['/anywhere/c', user => 'ann', key => 'caller'], ['/anywhere/c', user => 'bob', key => 'caller']);
apart('with and without the route are two records',
    ['/anywhere/x', by(key => 'mixed')], ['/anywhere/route/x', by(key => 'mixed')]);

ok($ng->stop, 'nginx leaves by itself');
$ng->check_logs;
done_testing();
