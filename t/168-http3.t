# HTTP/3, where nginx has it, with curl where curl has it: gate, abort, replay.

use v5.36;

use File::Temp ();
use Test::More;
use Ledger;
use Keyed;
use Nginx;
use RedisServer;
use Running qw(run_aside end_process);
use Waiting qw(wait_quietly);

my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
plan(skip_all => 'this nginx has no HTTP/3') if `$nginx -V 2>&1` !~ /http_v3_module/;
plan(skip_all => 'this curl has no HTTP/3') if `curl -V 2>&1` !~ /\bHTTP3\b/;

my $files = File::Temp->newdir('http3-XXXXXX', TMPDIR => 1);
chmod 0755, "$files";
RedisServer::make_certificates("$files");
chmod 0644, "$files/server.key";

my $ng = Nginx->start(main => 'worker_shutdown_timeout 1s;', http => <<"CONF");
idempotency        on;
idempotency_scope  none;
server {
    # TCP too, for those who look whether nginx is up.
    listen 127.0.0.1:%%PORT%% quic reuseport;
    listen 127.0.0.1:%%PORT%% ssl;
    ssl_certificate     $files/server.crt;
    ssl_certificate_key $files/server.key;
    ssl_protocols       TLSv1.3;
    add_header          X-Protocol \$server_protocol always;
    location / { proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
    location /open/ {
        idempotency_hold off;
        proxy_buffering  off;
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF

# What curl got, in one line. Its status too, if it failed.
#
# curl 8.14 with OpenSSL's QUIC sometimes does not send the stream with the
# headers that its request refers to, so nginx waits for it and no request comes
# to be. Then nginx writes a line without one when curl gives up.
sub ask ($key, %opt) {
    my $got;
    for (1 .. 5) {
        my $before = unfinished();
        $got = ask_once($key, %opt);
        last if $got ne 'curl 28' || !wait_quietly(sub { unfinished() > $before }, 1);
    }
    return $got;
}

sub unfinished { return scalar(() = $ng->read('access.log') =~ /"-?" 400 /g) }

sub ask_once ($key, %opt) {
    my $head = "$files/head";
    unlink $head;
    write_file("$files/sent", $opt{body} // 'body');
    my @command = ('curl', '-s', '--http3-only', '-k', '-D', $head, '-o', "$files/body",
        '-m', $opt{seconds} // 20, '-H', "Idempotency-Key: $key",
        '-H', 'X-Behaviour: ' . ($opt{do} // ''), '--data-binary', "\@$files/sent",
        'https://127.0.0.1:' . $ng->port . ($opt{uri} // '/x'));
    my $status = system(@command) >> 8;
    return "curl $status" if $status;
    my $text = Nginx::slurp($head);
    my ($code) = $text =~ m{^HTTP/3 (\d+)} or return "no HTTP/3: $text";
    my ($n) = $text =~ /^x-execution: (\d+)/mi;
    my ($error) = Nginx::slurp("$files/body") =~ /"code":"(\w+)"/;
    return join ' ', $code, $error // (), defined $n ? "#$n" : (),
        $text =~ /^idempotent-replayed: true/mi ? 'replayed' : ();
}

subtest 'gate and replay' => sub {
    is(ask('a'), '201 #1', 'runs');
    is(ask('a'), '201 #1 replayed', 'replays');
    is(ask('a', body => 'other'), '422 key_reused', 'another request');
    # A body that nobody reads can be an error to curl.
    is(ask('"unclosed', body => ''), '400 key_invalid', 'a bad key');
    is(ask('large', body => 'x' x 300_000, do => 'size=200000'), '201 #2', 'much to send');
    my $first = Nginx::slurp("$files/body");
    is(ask('large', body => 'x' x 300_000), '201 #2 replayed', 'much to replay');
    ok(Nginx::slurp("$files/body") eq $first && length $first == 200_000, 'byte by byte');
};

for my $uri ('/x', '/open/x') {
    subtest "a client that leaves, $uri" => sub {
        my $gate = Keyed::Gate->new;
        my $before = ledger_count();
        is(ask("gone$uri", uri => $uri, do => $gate->closed, seconds => 1), 'curl 28', 'gives up');
        is(ledger_count(), $before + 1, 'while it runs');
        is(ask("gone$uri", uri => $uri), '409 in_progress', 'it goes on');
        $gate->open;
        my $got;
        wait_until(sub { ($got = ask("gone$uri", uri => $uri)) !~ /in_progress/ }, 10, 'the end');
        is($got, '201 #' . ($before + 1) . ' replayed', 'and its response is kept');
        is(ledger_count(), $before + 1, 'one execution');
    };
}

subtest 'a client that leaves in the middle of the response' => sub {
    my $before = ledger_count();
    is(ask('middle', uri => '/open/x', do => 'size=100000&pieces=10&gap=0.3', seconds => 1),
        'curl 28', 'gives up');
    my $got;
    wait_until(sub { ($got = ask('middle', uri => '/open/x')) !~ /in_progress/ }, 10, 'the end');
    is($got, '201 #' . ($before + 1) . ' replayed', 'its response is kept');
    is(length Nginx::slurp("$files/body"), 100_000, 'as a whole');
};

subtest 'a worker that has to leave ends the run' => sub {
    my $gate = Keyed::Gate->new;
    my $before = ledger_count();
    my $client;
    for (1 .. 5) {
        $client = run_aside(sub { ask_once('leave', do => $gate->closed, seconds => 10) });
        last if wait_quietly(sub { ledger_count() > $before }, 3);
        end_process($client);
    }
    is(ledger_count(), $before + 1, 'it runs');
    my ($old) = $ng->worker_pids;
    ok($ng->reload, 'nginx reloads');
    ok(wait_until(sub { is_gone($old) }, 5, 'the old worker'), 'the old worker leaves');
    end_process($client);
    is(ask('leave'), '409 outcome_unknown', 'nobody knows the outcome');
    $gate->open;
    is(ledger_count(), $before + 1, 'one execution');
};

ok($ng->stop, 'stops');
$ng->check_logs;
done_testing;
