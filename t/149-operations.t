#!/usr/bin/env perl

# docs/operations.md is true: its configurations load and log what they
# promise, and its curl lines do what is written above them.

use v5.36;

use JSON::PP ();
use Test::More;

use Admin qw(all_pages answer_of);
use Keyed;
use Ledger;
use Nginx;

my $text = Nginx::slurp('docs/operations.md');
my %conf = map { /^(?:#+ )?([^\n]+)\n.*?```nginx\n(.*?)^```/ms ? ($1 => $2) : () }
    split /^##? /m, $text;
my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

# There is no ngx_otel_module in Debian 12, but its attributes are variables,
# which any log can show.
my @attributes = $conf{OpenTelemetry} =~ /^ *otel_span_attr (\S+) +(\$\w+);$/mg;
my $spans = join ' ', map {"$attributes[2 * $_]=$attributes[2 * $_ + 1]"} 0 .. $#attributes / 2;

my $ng = Nginx->prepare(http => <<"CONF");
    @{[$conf{Operations} =~ s/127\.0\.0\.1:8081/127.0.0.1:%%PORT4%%/r]}
    @{[$conf{Logs} =~ s{/var/log/nginx/}{%%DIR%%/}r]}
    log_format spans '$spans';
    access_log %%DIR%%/spans.log spans;
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name api.example;
        location / { idempotency on; idempotency_scope \$http_authorization; $pass }
        location = /admin { idempotency_admin; access_log off; }
    }
CONF
ok($ng->launch, 'the configurations load') or diag($ng->error_log);
retry_against($ng);

sub run_of ($key, %opt) {
    return post($ng->port, $key, uri => '/orders', headers => [Host => 'api.example',
        Authorization => 'Bearer eyJh…'], %opt);
}

sub last_line ($file, $wanted) {
    my $line;
    wait_until(sub { ($line) = reverse grep {/$wanted/} split /\n/, $ng->read($file) }, 5, 'a line');
    return $line // '';
}

subtest 'Logs' => sub {
    run_of('log') for 1 .. 2;
    my ($run, $replay) = map { JSON::PP::decode_json(last_line('idempotency.log', qr/"$_"/)) }
        qw(NEW REPLAY);
    is($run->{outcome}, 'completed', 'how a run ended');
    is($run->{attempt}, 1, 'its attempt');
    is($replay->{id}, $run->{id}, 'its retry has the same id');
    like($run->{id}, qr/^[0-9a-f]{32}$/, 'which is an id');
    like($replay->{age}, qr/^\d+$/, 'and the age of its answer');
    run_of('log', body => 'other');
    my $refused = JSON::PP::decode_json(last_line('idempotency.log', qr/"REUSED"/));
    is($refused->{error}, 'key_reused', 'a refusal has a code');
    is($refused->{id}, $run->{id}, 'and the id');
};

subtest 'OpenTelemetry' => sub {
    cmp_ok(scalar @attributes, '>=', 12, 'attributes');
    like(last_line('spans.log', qr/REPLAY/), qr/^idempotency\.status=REPLAY idempotency\.id=[0-9a-f]{32} /,
        'have values');
};

# Every curl line below the heading, with the comment above it.
my ($section) = $text =~ /^## Administration\n(.*?)^## /ms;
my @lines;
while ($section =~ /^```sh\n(.*?)^```/msg) {
    my $block = $1 =~ s/\\\n\s*/ /gr;
    my $comment = '';
    for my $line (split /\n/, $block) {
        if    ($line =~ /^# (.*)/) { $comment .= " $1" }
        elsif ($line =~ /^curl/) { push @lines, [$comment, $line] }
        elsif ($line eq '')      { $comment = '' }
    }
}

subtest 'Administration' => sub {
    cmp_ok(scalar @lines, '>=', 7, 'curl lines');
    my $n = 0;
    for my $case (@lines) {
        my ($comment, $line) = @$case;
        my $key = 'order-' . (17 + $n++);
        is(run_of($key, do => 'die=before')->{status}, 502, 'an unknown outcome');
        my ($id) = $ng->error_log =~ /.*outcome of record ([0-9a-f]{32}) is unknown/s;
        local $ENV{admin} = 'http://127.0.0.1:' . $ng->port . '/admin';
        local $ENV{id} = $id;
        my $port = $ng->port;
        $line =~ s/order-17/$key/;
        $line =~ s/port=443/port=$port/;
        my $answer = eval { JSON::PP::decode_json(scalar `$line`) } // {};
        my $what = $line =~ /act=(\w+)/ ? $1 : $line =~ /\?id=/ ? 'id' : 'unknown';
        my $after = said(run_of($key), number => 0);
        if ($what eq 'unknown') {
            ok(ref $answer->{unknown} eq 'ARRAY', $line);
            my $page = sub ($query) { answer_of(request($port, 'GET', "/admin?$query")) };
            ok((grep { $_->{id} eq $id } all_pages($page)), 'it is in the list');
        } elsif ($what =~ /^(?:id|find)$/) {
            is($answer->{id}, $id, $line);
            is($answer->{state}, 'unknown', 'state');
        } else {
            is_deeply($answer, { id => $id, done => $what }, $line);
            is($after, $what eq 'complete' ? '201 replayed' : '201', $comment);
        }
    }
};

ok($ng->stop, 'stops');
$ng->check_logs;

done_testing();
