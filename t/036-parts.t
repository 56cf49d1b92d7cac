# Responses that more than one writes: a content handler and its subrequests,
# filters that add to them or reject them.

use v5.36;

use File::Basename qw(dirname);
use Test::More;
use Keyed;
use Ledger;
use Nginx;

# Where Debian's modules can be loaded, those of these names that are there.
sub debian_modules (@names) {
    my ($lua) = split ' ', $ENV{TEST_NGINX_LUA_MODULES} // '';
    return grep {-e} map { dirname($lua // '/nowhere/x') . "/ngx_http_${_}_module.so" } @names;
}

my @echo  = debian_modules('echo');
my @image = debian_modules('image_filter');

my $PASS = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my $SUBS = '';
my $PLAIN = '';

# The same handlers without the module, with hold on and with hold off.
my %ECHO = (
    between => 'echo one; echo_location /sub; echo three;',
    proxied => 'echo one; echo_location /app; echo three;',
    at_once => 'echo one; echo_location_async /sub; echo three;',
    at_once_proxied => 'echo one; echo_location_async /app; echo three;',
    two     => 'echo one; echo_location_async /app; echo_location_async /sub; echo four;',
    nested  => 'echo one; echo_location /outer; echo three;',
    first   => 'echo_location /app; echo two;',
    long    => 'echo_duplicate 3000 one; echo_location_async /app; echo_duplicate 3000 three;',
);

if (@echo) {
    for my $name (sort keys %ECHO) {
        $PLAIN .= "location = /plain/$name { idempotency off; $ECHO{$name} }\n"
            . "location = /held/$name { $ECHO{$name} }\n"
            . "location = /streamed/$name { idempotency_hold off; $ECHO{$name} }\n"
            . "location = /small/$name { idempotency_max_response 2; $ECHO{$name} }\n";
    }
    $SUBS = 'location = /sub { echo two; }'
        . ' location = /outer { echo outer; echo_location_async /app; echo end; }';
}

my $LUA = lua_modules() ? <<'CONF' : '';
    location /captures {
        idempotency_hold off;
        idempotency_max_response 8m;
        content_by_lua_block {
            ngx.print(string.rep("x", 3000000))
            ngx.flush()
            ngx.print(ngx.location.capture("/app-late").body)
        }
    }
CONF

my $IMAGE = @image ? <<"CONF" : '';
    location /picture {
        idempotency_max_response 1k;
        access_log %%DIR%%/status.log status;
        image_filter resize 10 10;
        $PASS
    }
    location /picture/kept {
        image_filter resize 10 10;
        $PASS
    }
CONF

my $ng = Nginx->start(
    main => join('', lua_modules(), map {"load_module $_;\n"} @echo, @image),
    http => <<"CONF");
client_max_body_size 10m;
log_format status '\$uri \$idempotency_status';
proxy_http_version 1.1;

server {
    listen 127.0.0.1:%%PORT%%;

    idempotency on;
    idempotency_scope none;
    idempotency_methods GET POST;

    location = /app { proxy_method GET; proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        proxy_set_header X-Behaviour "status=200&type=text/plain&body=app.";
        $PASS }
    location = /app-late { proxy_method GET; proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        proxy_set_header X-Behaviour "status=200&sleep=1&type=text/plain&body=app.";
        $PASS }
    $SUBS
    $PLAIN
    $LUA
    $IMAGE

    location /ssi {
        ssi on; ssi_types text/plain;
        client_body_in_file_only clean;
        $PASS
    }
    location /ssi/streamed {
        ssi on; ssi_types text/plain;
        idempotency_hold off;
        $PASS
    }
    location /after {
        add_after_body /app;
        addition_types *;
        client_body_in_file_only clean;
        $PASS
    }
    location /posted {
        internal;
        $PASS
    }

    location /sliced {
        slice 3;
        proxy_set_header Range \$slice_range;
        proxy_pass http://127.0.0.1:%%PORT2%%;
    }
    location /plain-sliced {
        idempotency off;
        slice 3;
        proxy_set_header Range \$slice_range;
        rewrite ^ /sliced break;
        proxy_pass http://127.0.0.1:%%PORT2%%;
    }
}

server {
    listen 127.0.0.1:%%PORT2%%;
    root %%DIR%%;
    location / { try_files /sliced =404; }
}
CONF
retry_against($ng);

open my $file, '>', $ng->path('sliced') or die $!;
print {$file} '0123456789abcdef';
close $file;

# ---- a handler and its subrequests ----------------------------------------

SKIP: {
    skip 'no echo module here', 1 if !@echo;

    for my $name (sort keys %ECHO) {
        for my $way (qw(held streamed small)) {
            claim "$name, $way: the order is nginx's own" => sub {
                my $plain = write_to("/plain/$name", key => undef);
                my $first = write_to("/$way/$name");
                ok($first->{complete}, 'the response ends');
                is($first->{status}, 200, 'with its status');
                ok($first->{body} eq $plain->{body}, 'and is what nginx sends')
                    or diag(substr("$first->{body}\nnot\n$plain->{body}", 0, 200));

                my $retry = write_to("/$way/$name");
                is_refused($retry, 'response_not_kept');
                is(member($retry, 'original_status'), 200, 'it ran');
            };
        }
    }
}

SKIP: {
    skip 'no Lua here', 1 if !$LUA;

    # The client reads while the subrequest runs, so that nginx goes on sending.
    claim 'a subrequest whose response the handler reads is no part' => sub {
        my $conn = start_write('/captures');
        select undef, undef, undef, 0.3;
        my $first = $conn->response(20);
        is(length $first->{body}, 3_000_004, 'the response');
        is_replay(write_to('/captures'), $first);
    };
}

# ---- what filters add -----------------------------------------------------

my $PAGE = 'type=text/plain&status=200&body=a<!--%23include virtual="/app"-->b'
    . '<!--%23include virtual="/app"-->c';

for my $uri ('/ssi', '/ssi/streamed') {
    for my $more ('', '&pieces=4&gap=0.05') {
        claim "includes are made anew for a replay: $uri $more" => sub {
            my $body = 'x' x 50_000;
            my $first = write_to($uri, do => "$PAGE$more", body => $body);
            is($first->{body}, 'aapp.bapp.c', 'the first response');
            my $retry = write_to($uri, body => $body);
            is_replay($retry, $first);
        };
    }
}

claim 'what is added after the body, with the request in a file' => sub {
    my $body = 'x' x 50_000;
    my $first = write_to('/after', do => 'status=200&type=text/plain&body=main.', body => $body);
    is($first->{body}, 'main.app.', 'the first response');
    is_replay(write_to('/after', body => $body), $first);
};

claim 'an include gets the request body, which is in a file' => sub {
    my $body = 'x' x 50_000;
    my $do = 'type=text/plain&status=200&body=<!--%23include virtual="/posted?status=200%26body=in"-->';
    my $first = write_to('/ssi', do => $do, body => $body);
    unlike($first->{body}, qr/502/, 'the included part is there');
    unlike($ng->error_log, qr/Bad file descriptor/, 'the file was still open');
};

# ---- slices ---------------------------------------------------------------

for my $range (undef, 'bytes=2-10', 'bytes=0-1', 'bytes=7-7', 'bytes=-4', 'bytes=90-') {
    claim 'slices come in their order: ' . ($range // 'all') => sub {
        my @ask = (method => 'GET', body => undef,
            headers => [defined $range ? (Range => $range) : ()]);
        my $plain = write_to('/plain-sliced', @ask, key => undef);
        my $first = write_to('/sliced', @ask);
        is_deeply([@$first{qw(status complete body)}, header($first, 'Content-Range')],
            [@$plain{qw(status complete body)}, header($plain, 'Content-Range')],
            'as nginx sends them');
        is_refused(write_to('/sliced', @ask), 'response_not_kept') if $first->{status} < 400;
    };
}

# ---- filters that reject --------------------------------------------------

SKIP: {
    skip 'no image filter here', 1 if !@image;

    for my $more ('', '&chunked=1', '&pieces=3&gap=0.05', '&chunked=1&pieces=3&gap=0.05',
        '&chunked=1&pieces=50&gap=0.01', '&nolength=1&pieces=10&gap=0.01') {
        claim "a large response that a filter rejects ends $more" => sub {
            my $first = write_to('/picture', do => "status=200&size=5000&type=image/png$more",
                timeout => 5);
            is($first->{status}, 415, 'the filter rejects it');
            ok($first->{complete}, 'the response ends');
            # The filter makes a 415 of our refusal too.
            write_to('/picture');
            # nginx logs a request after the client has its response.
            ok(wait_until(sub { $ng->read('status.log') =~ / (?:NOT_KEPT|UNKNOWN)\n\z/ }),
                'a retry is refused');
            is(executions(), 1, 'executions');
        };
    }

    claim 'a kept response that a filter rejects' => sub {
        my $first = write_to('/picture/kept', do => 'status=200&size=5000&type=image/png');
        is($first->{status}, 415, 'the filter rejects it');
        is(write_to('/picture/kept')->{status}, 415, 'and its replay');
        is(executions(), 1, 'executions');
    };
}

ok($ng->stop, 'nginx quits gracefully');
$ng->check_logs;

done_testing();
