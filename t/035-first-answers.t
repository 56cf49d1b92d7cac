# What a first answer is: whole or cut off, and never marked as a replay.

use v5.36;

use Test::More;
use Keyed;
use Ledger;
use Nginx;

my $APP = 'http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT';

my $ng = Nginx->start(http => <<"CONF");
idempotency on;
idempotency_scope none;
idempotency_methods POST;

server {
    listen 127.0.0.1:%%PORT%%;

    location / { proxy_http_version 1.1; proxy_pass $APP; }
    location /named { idempotency_replay_header X-Again; proxy_http_version 1.1; proxy_pass $APP; }
    location /unmarked { idempotency_replay_header off; proxy_http_version 1.1; proxy_pass $APP; }
    location /off { idempotency off; proxy_http_version 1.1; proxy_pass $APP; }
    location /streamed { idempotency_hold off; proxy_buffering off; proxy_http_version 1.1; proxy_pass $APP; }

    location /old { proxy_pass $APP; }
    location /old/streamed { idempotency_hold off; proxy_pass $APP; }
    location /old/small { idempotency_max_response 10; proxy_pass $APP; }
    location /old/dry { idempotency_dry_run on; proxy_pass $APP; }
    location /quiet { proxy_pass $APP; }
    location /scgi {
        scgi_param CONTENT_LENGTH \$content_length;
        scgi_param REQUEST_METHOD \$request_method;
        scgi_param REQUEST_URI \$request_uri;
        scgi_param SCGI 1;
        scgi_pass 127.0.0.1:\$TEST_NGINX_SCGI_PORT;
    }
}
CONF
retry_against($ng);

sub escape ($text) { return $text =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger }

sub header_values ($response, $name) { return @{ $response->{headers}{ lc $name } // [] } }

# ---- the mark of a replay -------------------------------------------------

for my $uri ('/', '/streamed') {
    for my $name ('Idempotent-Replayed', 'idempotent-replayed') {
        claim "$uri: $name of the application is not passed on" => sub {
            my $first = write_to($uri, do => "h=$name:true&h=X-Other:1");
            is($first->{status}, 201, 'it runs');
            is(header($first, $name), undef, 'a first answer has no mark');
            is(header($first, 'X-Other'), 1, 'but all else');
            my $retry = write_to($uri);
            is_deeply([header_values($retry, $name)], ['true'], 'a replay has one');
        };
    }
}

claim 'the mark has the name that is set' => sub {
    my $first = write_to('/named', do => 'h=X-Again:yes&h=Idempotent-Replayed:1');
    is(header($first, 'X-Again'), undef, 'it is removed');
    is(header($first, 'Idempotent-Replayed'), 1, 'and no other');
    my $retry = write_to('/named');
    is_deeply([header_values($retry, 'X-Again')], ['true'], 'a replay has one');
};

claim 'without a key it is no mark either' => sub {
    is(header(write_to('/', key => undef, do => 'h=Idempotent-Replayed:true'),
        'Idempotent-Replayed'), undef, 'removed');
};

claim 'where there is no mark nothing is removed' => sub {
    for my $uri ('/unmarked', '/off') {
        is(header(write_to($uri, do => 'h=Idempotent-Replayed:1'), 'Idempotent-Replayed'), 1, $uri);
    }
};

# ---- answers that end with their connection -------------------------------

my $WHOLE = '{"id":"pay_1","note":"a \"quoted\" } brace","list":[1,2,{"x":[]}]}';

sub body ($text, $more = '') {
    return 'nolength=1&type=application/json&body=' . escape($text) . $more;
}

for my $cut (1, 2, 10, 25, 36, 50, length($WHOLE) - 1) {
    for my $uri ('/', '/old', '/scgi') {
        claim "$uri: JSON that is cut off after $cut bytes" => sub {
            ends($uri, do => body(substr $WHOLE, 0, $cut), first => 502, then => 'unknown');
        };
    }
}

for my $cut ('[', '"abc', '"abc\\', '"abc\\"', 'tru', 'n', "[1,\n", ' ') {
    claim "a document that has not ended: <$cut>" => sub {
        ends('/old', do => body($cut), first => 502, then => 'unknown');
    };
}

claim 'the same with hold off' => sub {
    ends('/old/streamed', do => body(substr $WHOLE, 0, 20), first => 201, then => 'unknown');
};

claim 'in pieces' => sub {
    ends('/old', do => body(substr($WHOLE, 0, 40), '&pieces=7&gap=0.01'), first => 502,
        then => 'unknown');
    };

for my $text ($WHOLE, "$WHOLE\r\n", '', " $WHOLE", '[]', '"abc"', 'true', 'null', '12', '{"a":NaN,"a":1,}',
    "{'a':1}", '<html>', "{\"latin\":\"\xe9\"}", '}{') {
    claim "an answer that is whole, or no JSON: <$text>" => sub {
        ends('/old', do => body($text), first => 201, then => 'replayed');
    };
}

claim 'a length says more than the end of a document' => sub {
    ends('/', do => 'type=application/json&body=' . escape('{"a":'), first => 201,
        then => 'replayed');
    };

claim 'so does a chunk' => sub {
    ends('/', do => 'chunked=1&type=application/json&body=' . escape('{"a":'), first => 201,
        then => 'replayed');
};

claim 'encoded JSON is not looked into' => sub {
    ends('/old', do => body('{"a":', '&h=Content-Encoding:gzip'), first => 201, then => 'replayed');
};

claim 'an error that is cut off says nothing' => sub {
    ends('/old', do => body('{"error":', '&status=500'), first => 502, then => 'unknown');
};

# ---- the warning ----------------------------------------------------------

my $WARNING = qr/\[warn\].* response ended with the connection.*proxy_http_version 1\.1/;

sub warnings_about ($uri) {
    return scalar grep { /$WARNING/ && m{location "\Q$uri\E"} } split /\n/, $ng->error_log;
}

claim 'whoever cannot tell is warned once' => sub {
    write_to('/quiet', do => body($WHOLE));
    write_to('/quiet', do => 'type=text/plain&body=x', key => 'with-length');
    is(warnings_about('/quiet'), 0, 'not while it can be told');
    write_to('/quiet', do => 'nolength=1&type=text/plain&body=x', key => "plain-$_") for 1 .. 3;
    is(warnings_about('/quiet'), 1, 'once');
    write_to('/old/small', do => body($WHOLE));
    is(warnings_about('/old/small'), 1, 'once for each location');
};

ok($ng->stop, 'nginx quits gracefully');
$ng->check_logs;

done_testing();
