# idempotency_first_sent: a request that may have outlived its record does not
# run again.

use v5.36;

use POSIX qw(strftime);
use Test::More;
use Ledger;
use Keyed;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
idempotency            on;
idempotency_scope      none;
idempotency_first_sent $http_first_sent;
idempotency_ttl        10m;
server {
    listen 127.0.0.1:%%PORT%%;
    location /      { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    location /open/ {
        idempotency_first_sent off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /ever/ {
        idempotency_ttl forever;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /short/ {
        idempotency_ttl 3s;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /unkept/ {
        idempotency_ttl 0;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /body/ {
        idempotency_key json:/key;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
    location /dry/ {
        idempotency_dry_run on;
        add_header X-Error $idempotency_error always;
        proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF

sub date ($ago) { return strftime('%a, %d %b %Y %H:%M:%S GMT', gmtime(time - $ago)) }

my $keys = 0;

# What a request with a new key is told that says it was sent so long ago.
sub sent ($ago, %opt) { return at(date($ago), %opt) }

sub at ($time, %opt) {
    return said(raw_at($time, %opt), number => 0);
}

sub raw_at ($time, %opt) {
    my $key = exists $opt{key} ? delete $opt{key} : 'k' . ++$keys;
    return post($ng->port, $key, %opt, headers =>
        [@{ $opt{headers} // [] }, defined $time ? ('First-Sent' => $time) : ()]);
}

subtest 'the time a 200 is kept is the limit' => sub {
    is(sent(0), '201', 'now');
    is(sent(590), '201', 'just in time');
    is(sent(602), '412 key_expired', 'too late');
    is(sent(86400 * 365), '412 key_expired', 'a year ago');
    is(sent(86400 * 365, uri => '/ever/'), '201', 'unless it is kept for ever');
    is(sent(86000, uri => '/unkept/'), '201', 'of outcomes that are not kept, the facts');
    is(sent(86500, uri => '/unkept/'), '412 key_expired', 'are kept for a day');
};

subtest 'clocks' => sub {
    is(sent(-50), '201', 'a clock that is a little fast');
    is(sent(-70), '400 first_sent_invalid', 'a time in the future');
};

subtest 'what is no time' => sub {
    is(at(undef), '400 first_sent_invalid', 'missing');
    is(at(''), '400 first_sent_invalid', 'empty');
    is(at('yesterday'), '400 first_sent_invalid', 'a word');
    is(at(time), '400 first_sent_invalid', 'a number');
    is(at('Mon, 16 Nov 2026 22:00'), '400 first_sent_invalid', 'cut off');
};

subtest 'who is not asked' => sub {
    is(at(undef, key => undef), '201', 'no key');
    is(at(undef, uri => '/open/'), '201', 'switched off');
};

subtest 'retries' => sub {
    my $time = date(5);
    is(at($time, key => 'r'), '201', 'the first');
    is(at($time, key => 'r'), '201 replayed', 'the retry');
    is(at(date(1), key => 'r'), '201 replayed', 'the time is no part of the request');
    is(at(date(700), key => 'r'), '412 key_expired', 'too late, though the record is there');
};

subtest 'a record that has expired' => sub {
    my $time = date(0);
    ledger_reset();
    is(at($time, key => 'e', uri => '/short/'), '201', 'runs');
    is(wait_said('412 key_expired', sub { raw_at($time, key => 'e', uri => '/short/') }),
        '412 key_expired', 'from replay to refusal');
    is(ledger_count(), 1, 'and never runs again');
};

subtest 'keys in the body' => sub {
    my %body = (uri => '/body/', key => undef, body => '{"key":"b"}',
        headers => ['Content-Type' => 'application/json']);
    is(sent(0, %body), '201', 'in time');
    is(sent(700, %body), '412 key_expired', 'too late');
};

my $dry = raw_at(date(700), uri => '/dry/');
is(said($dry, number => 0) . ' ' . header($dry, 'X-Error'), '201 key_expired',
    'a dry run only tells');

ok($ng->stop, 'stops');
$ng->check_logs;
done_testing;
