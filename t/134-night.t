# The night operator's story, with what the documentation offers: a client
# complains about a key, and the way leads by the access log and the error log
# to the record, its reason and its settlement.

use v5.36;

use Test::More;
use Admin;
use Keyed;
use Ledger;
use Nginx;

# The access log of docs/recipes.md, and the error log as Debian has it.
my ($format) = Nginx::slurp('docs/recipes.md') =~ /^## An access log.*?^```nginx\n(.*?)^server /ms
    or die "no access log in docs/recipes.md\n";

my $ng = Nginx->prepare(http => $format . <<'CONF');
error_log %%DIR%%/night.log error;
server {
    listen 127.0.0.1:%%PORT%%;
    location /payments/ {
        access_log        %%DIR%%/idempotency.log idempotency;
        idempotency       on;
        idempotency_scope $http_x_api_key;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;
    }
}
server {
    listen 127.0.0.1:%%PORT4%%;
    location = /admin {
        idempotency_admin;
        error_log            %%DIR%%/acts.log notice;
        auth_basic           "administrators";
        auth_basic_user_file %%DIR%%/users;
    }
}
CONF
write_file($ng->path('users'), "eve:{PLAIN}secret\n");
$ng->launch or die 'nginx does not start: ' . $ng->error_log;

my @EVE = (headers => [Authorization => 'Basic ZXZlOnNlY3JldA==', 'X-Idempotency-Admin' => 1]);

sub pay ($key, %opt) {
    return said(post($ng->port, $key, uri => '/payments/42', %opt,
        headers => ['X-Api-Key' => 'ann']));
}

# The lines of the access log with the start of a key, as hashes.
sub found_by_key ($key, $count) {
    my $start = substr $key, 0, 6;
    my @lines;
    wait_until(sub {
        @lines = grep {/ key=\Q$start\E/} split /\n/, $ng->read('idempotency.log');
        return @lines == $count;
    }, 5, "$count lines in the access log");
    return map { +{ /(\w+)=(\S+)/g } } @lines;
}

sub admin_says ($query) { return answer_of(Admin::ask($ng, $query, @EVE)) }

sub settle (@fields) { return act($ng, {@EVE}, @fields)->{status} }

# What happens to a client, and what the operator finds out from its key alone.
sub complaint ($key) {
    is(pay($key, do => 'die=before'), '502', 'the client gets an error');
    is(pay($key), '409 outcome_unknown', 'and its retry is refused: it complains');

    my @lines = found_by_key($key, 2);
    is_deeply([map { join ' ', @$_{qw(idempotency outcome error)} } @lines],
        ['NEW unknown -', 'UNKNOWN - outcome_unknown'], 'the access log has both, by the key');
    is($lines[1]{id}, $lines[0]{id}, 'with one id');

    my $id = $lines[0]{id};
    my ($reason) = grep {/\Q$id\E/} split /\n/, $ng->read('night.log');
    like($reason, qr/\[error\] .* outcome of record $id is unknown: the request was sent, but no complete response arrived; check in the application.*request: "POST \/payments\/42/,
        'the error log says by the id what happened, to which request, and what to do');

    my $record = admin_says("id=$id");
    is_deeply([@$record{qw(id state attempt)}], [$id, 'unknown', 1], 'the record is there');
    ok(scalar(grep { $_->{id} eq $id } all_pages(\&admin_says)),
        'and in the list of unknown outcomes');
    return $id;
}

my $PAID = '8e03a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b';
my $LOST = '17c4d9e0-aaaa-4bbb-8ccc-0123456789ab';

subtest 'the payment was made: its retry gets the response' => sub {
    my $id = complaint($PAID);
    is(settle(act => 'complete', id => $id, status => 201, header => 'Location: /payments/42',
        type => 'application/json', body => '{"paid":true}'), 200, 'settled');
    is(pay($PAID), '201 replayed', 'the retry gets it');
    is((found_by_key($PAID, 3))[2]{id}, $id, 'by the same record');
    is(ledger_count(), 1, 'the application saw one payment');
};

ledger_reset();
subtest 'the payment was not made: its retry runs' => sub {
    my $id = complaint($LOST);
    is(settle(act => 'release', id => $id), 200, 'settled');
    like(pay($LOST), qr/^201 #\d+$/, 'the retry runs');
    is_deeply([@{ (found_by_key($LOST, 3))[2] }{qw(idempotency outcome id)}],
        ['NEW', 'completed', $id], 'and completes');
};

ok($ng->stop, 'stops');
like($ng->read('acts.log'), qr/\[notice\] .*administrator "eve" at 127\.0\.0\.1: $_ record/,
    "the log has who did it: $_") for 'complete', 'release';
unlike($ng->read($_), qr/$PAID|$LOST/, "no key in $_")
    for 'idempotency.log', 'night.log', 'acts.log', 'error.log';
$ng->check_logs;

done_testing();
