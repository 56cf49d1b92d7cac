#!/usr/bin/env perl

# A retry with the same bytes is recognised without being parsed, and never
# taken for what it is not.

use v5.36;

use Test::More;

use Keyed;
use Ledger;
use Nginx;

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my $JSON = ['Content-Type' => 'application/json'];
my $FORM = ['Content-Type' => 'application/x-www-form-urlencoded'];
my $KNOWN = qr/same bytes as before, fingerprint known/;

my $HTTP = <<"CONF";
idempotency on;
idempotency_scope \$http_x_user;
idempotency_scope_route off;
client_body_buffer_size 16k;
log_format told '\$idempotency_status \$idempotency_fingerprint';
access_log %%DIR%%/access.log told;

server {
    listen 127.0.0.1:%%PORT%%;
    location / { $PASS }
    location /including { idempotency_fingerprint_include /a; $PASS }
    location /excluding { idempotency_fingerprint_exclude /b; $PASS }
    location /rpc { idempotency_jsonrpc on; $PASS }
    location /keyed { idempotency_key json:/a; $PASS }
    location /raw { idempotency_fingerprint raw; $PASS }
}
CONF

my $ng = Nginx->start(http => $HTTP, debug => 1, workers => 2);
retry_against($ng);

my $PAD = 'x' x 2000;
my ($BODY, $SPACED, $OTHER) = (qq({"a":"1","b":2,"pad":"$PAD"}),
    qq({ "b": 2.0, "pad": "$PAD", "a": "1" }), qq({"a":"1","b":3,"pad":"$PAD"}));

sub known { return scalar(my @lines = lines_in($ng, $KNOWN)) }

sub write_body ($uri, $body, %opt) {
    my @headers = ('X-User' => delete $opt{user} // 'ann', @{ delete $opt{headers} // $JSON });
    return write_to($uri, body => $body, headers => \@headers, %opt);
}

# How many of these requests were recognised by their bytes.
sub recognised ($work) {
    my $before = known();
    $work->();
    return known() - $before;
}

claim 'the same bytes are recognised, by all workers' => sub {
    my $first = write_body('/x', $BODY);
    is($first->{status}, 201, 'the first runs');
    is(recognised(sub { is_replay(write_body('/x', $BODY), $first) for 1 .. 8 }), 8);
    is(executions(), 1);
    my %fingerprints = map { /^(?:NEW|REPLAY) (\w+)$/ ? ($1 => 1) : () }
        split /\n/, $ng->access_log;
    is(scalar keys %fingerprints, 1, 'and have the fingerprint of the first');
};

claim 'the same value in other bytes is replayed, parsed once' => sub {
    my $first = write_body('/x', $BODY);
    is(recognised(sub { is_replay(write_body('/x', $SPACED), $first) }), 0, 'parsed');
    is(recognised(sub { is_replay(write_body('/x', $SPACED), $first) }), 1, 'then known');
    is(executions(), 1);
};

claim 'another value is refused, known or not' => sub {
    my $first = write_body('/x', $BODY);
    is_refused(write_body('/x', $OTHER), 'key_reused', 422);
    is(recognised(sub { is_refused(write_body('/x', $OTHER), 'key_reused', 422) }), 1);
    is_replay(write_body('/x', $BODY), $first);
    is(executions(), 1);
};

claim 'what is not JSON counts as bytes, known or not' => sub {
    my $first = write_body('/x', "$BODY,");
    is(recognised(sub { is_replay(write_body('/x', "$BODY,"), $first) }), 1);
    is_refused(write_body('/x', "$BODY ,"), 'key_reused', 422);
    is(executions(), 1);
};

claim 'all that is not the body counts as well' => sub {
    my $first = write_body('/x', $BODY);
    is(recognised(sub {
        for (['/x?a=1'], ['/y'], ['/x', method => 'PUT'],
            ['/x', headers => ['Content-Type' => 'text/plain']])
        {
            my ($uri, @how) = @$_;
            is_refused(write_body($uri, $BODY, @how), 'key_reused', 422);
        }
    }), 0, 'none is recognised');
    is_replay(write_body('/x', $BODY), $first);
    is(executions(), 1);
};

claim 'another caller or key has not sent it before' => sub {
    write_body('/x', $BODY);
    is(recognised(sub {
        is(write_body('/x', $BODY, user => 'bob')->{status}, 201);
        is(write_body('/x', $BODY, key => claim_key() . '-2')->{status}, 201);
    }), 0);
};

claim 'forms too' => sub {
    my @form = (headers => $FORM);
    my $first = write_body('/x', "a=1&b=2&pad=$PAD", @form);
    is(recognised(sub { is_replay(write_body('/x', "a=1&b=2&pad=$PAD", @form), $first) }), 1);
    is(recognised(sub { is_replay(write_body('/x', "b=2&a=1&pad=$PAD", @form), $first) }), 0);
    is_refused(write_body('/x', "a=1&b=3&pad=$PAD", @form), 'key_reused', 422);
    is(executions(), 1);
};

# Their fingerprint depends on settings, or they are parsed anyway.
for (['/including', $OTHER], ['/excluding', $OTHER], ['/rpc'], ['/raw']) {
    my ($uri, $same) = @$_;
    claim "$uri does without" => sub {
        my $first = write_body($uri, $BODY);
        is(recognised(sub {
            is_replay(write_body($uri, $_), $first) for $BODY, $same // ();
        }), 0);
        is(executions(), 1);
    };
}

claim 'so does a key in the body' => sub {
    my $first = write_body("/keyed", $BODY, key => undef);
    is(recognised(sub { is_replay(write_body('/keyed', $BODY, key => undef), $first) }), 0);
};

claim 'so do small bodies, and such as are in a file' => sub {
    for my $body ('{"a":1}', qq({"a":"@{[ 'x' x 100_000 ]}"})) {
        my $key = claim_key() . length $body;
        my $first = write_body('/x', $body, key => $key);
        is(recognised(sub { is_replay(write_body('/x', $body, key => $key), $first) }), 0);
    }
};

claim 'a reload forgets nothing, but heeds the new settings' => sub {
    my $first = write_body('/x', $BODY);
    ok($ng->reload, 'reloaded');
    is(recognised(sub { is_replay(write_body('/x', $BODY), $first) }), 1, 'recognised');
    ok($ng->reload_config($HTTP =~ s{location / \{}{$& idempotency_fingerprint_exclude /b;}r),
        'the location excludes a member');
    is(recognised(sub { is_refused(write_body('/x', $BODY), 'key_reused', 422) }), 0,
        'another fingerprint');
    ok($ng->reload_config($HTTP), 'as before');
    is_replay(write_body('/x', $BODY), $first);
    is(executions(), 1);
};

# Another secret: tags of one nginx say nothing to another.
claim 'after a restart the body is parsed again' => sub {
    plan skip_all => 'the records are gone as well' if !on_redis() && !on_file();
    my $first = write_body('/x', $BODY);
    $ng->restart;
    is(recognised(sub { is_replay(write_body('/x', $BODY), $first) }), 0, 'parsed');
    is(recognised(sub { is_replay(write_body('/x', $BODY), $first) }), 1, 'then known');
    is(executions(), 1);
};

ok($ng->stop, 'stops');
$ng->check_logs;
done_testing();
