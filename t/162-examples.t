# Every example in docs/examples: loaded as it stands there, and asked. Only
# addresses and paths become those of the test.

use v5.36;

use Cwd qw(abs_path);
use Digest::SHA qw(hmac_sha256);
use File::Temp ();
use JSON::PP ();
use MIME::Base64 qw(encode_base64url);
use Test::More;
use Ledger;
use Keyed;
use Nginx;
use Http2;
use RedisServer;

my $CONF = abs_path('conf');
my %untried = map { $_ => 1 } glob 'docs/examples/*.conf docs/examples/*.yaml';

my $files = File::Temp->newdir('examples-XXXXXX', TMPDIR => 1);
chmod 0755, "$files";
for (['fastcgi', 'fastcgi_param'], ['uwsgi', 'uwsgi_param']) {
    my ($name, $directive) = @$_;
    write_file("$files/${name}_params", join '', map {"$directive $_;\n"}
        'REQUEST_METHOD $request_method', 'REQUEST_URI $request_uri',
        'CONTENT_TYPE $content_type', 'CONTENT_LENGTH $content_length');
}

my @addresses = (
    qr{listen 80\b}                     => 'listen 127.0.0.1:%%PORT%%',
    qr{listen 50051\b}                  => 'listen 127.0.0.1:%%PORT%%',
    qr{grpc://127\.0\.0\.1:50052}       => 'grpc://127.0.0.1:%%PORT2%%',
    qr{127\.0\.0\.1:9000}               => '127.0.0.1:$TEST_NGINX_UPSTREAM_PORT',
    qr{unix:/run/php/php-fpm\.sock}     => '127.0.0.1:$TEST_NGINX_FASTCGI_PORT',
    qr{unix:/run/uwsgi/app\.sock}       => '127.0.0.1:$TEST_NGINX_UWSGI_PORT',
    qr{include (\w+_params);}           => sub ($name) {"include $files/$name;"},
    qr{include  +(\w+_params);}         => sub ($name) {"include $files/$name;"},
    qr{include  +idempotency/}          => "include $CONF/",
    qr{/var/www/app/public}             => "$files",
    qr{/var/lib/nginx/}                 => '%%DIR%%/',
    qr{js_path   /etc/nginx}            => "js_path $files",
);

# ---- helpers --------------------------------------------------------------

sub adapted ($text, @more) {
    my @pairs = (@more, @addresses);
    while (my ($from, $to) = splice @pairs, 0, 2) {
        $text =~ s/$from/ref $to ? $to->($1) : $to/ge;
    }
    return $text;
}

# The http{} of an example; what else is in it has to be what is said here.
sub http_of ($name) {
    my $path = "docs/examples/$name.conf";
    my $text = Nginx::slurp($path) || die "no $path\n";
    delete $untried{$path};
    $text =~ s/^ *#.*\n//mg;
    my ($before, $http, $after) = $text =~ /\A(.*?)^http \{\n(.*?)^\}\n(.*)\z/ms
        or die "$path has no http{}\n";
    like($before, qr/^load_module modules\/ngx_http_idempotency_module\.so;\n\nevents \{\}\n/m,
        'is a whole configuration');
    return $http;
}

# Runs $check->($nginx) against an example. adapt: more addresses; main, http:
# more configuration.
sub example ($name, $check, %opt) {
    subtest $name => sub {
        ledger_reset();
        my $http = adapted(http_of($name), @{ $opt{adapt} // [] });
        my $ng = Nginx->start(main => $opt{main} // '', http => $http . ($opt{http} // ''));
        $check->($ng);
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

sub by ($caller, %opt) {
    return (%opt, headers => ['X-Api-Key' => $caller, @{ $opt{headers} // [] }]);
}

# ---- payments-jwt ---------------------------------------------------------

my $SECRET = 'a secret of the test';

sub token ($claims, %opt) {
    my $text = join '.', map { encode_base64url(JSON::PP::encode_json($_), '') }
        { typ => 'JWT', alg => $opt{alg} // 'HS256' }, $claims;
    my $signature = encode_base64url(hmac_sha256($text, $opt{secret} // $SECRET), '');
    return (headers => [Authorization => "Bearer $text.$signature"]);
}

sub jwt_example ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/payments');
    my $exp = time + 600;
    my %ann = token({ sub => 'ann', exp => $exp });
    is(said(post($port, 'a', %to, %ann)), '201 #1', 'runs');
    is(said(post($port, 'a', %to, token({ sub => 'ann', exp => $exp + 60 }))),
        '201 #1 replayed', 'replays with a refreshed token');
    is(said(post($port, 'a', %to, token({ sub => 'bob', exp => $exp }))), '201 #2',
        'another caller');
    is(said(post($port, undef, %to, %ann)), '400 key_missing', 'a key is required');
    is(said(post($port, 'busy', %to, %ann, do => 'status=429')), '429 #3', 'too many');
    is(said(post($port, 'busy', %to, %ann)), '201 #4', 'later it runs');

    my $claims = { sub => 'ann', exp => $exp };
    my @bad = (
        ['no token'], ['no subject', token({ exp => $exp })],
        ['expired', token({ sub => 'ann', exp => time - 1 })],
        ['no end', token({ sub => 'ann' })],
        ['not yet', token({ sub => 'ann', exp => $exp, nbf => $exp })],
        ['signed by another', token($claims, secret => 'other')],
        ['another algorithm', token($claims, alg => 'none')],
        ['no JSON', headers => [Authorization => 'Bearer a.b.c']],
    );
    for (@bad) {
        my ($title, %token) = @$_;
        is(said(post($port, 'a', %to, %token)), '401', $title);
    }
    is(ledger_count(), 4, 'executions');
}

my $js = join '', map {"load_module $_;\n"} split ' ', $ENV{TEST_NGINX_JS_MODULES} // '';

if ($js) {
    write_file("$files/jwt.key", $SECRET);
    write_file("$files/jwt.js",
        Nginx::slurp('docs/examples/jwt.js') =~ s{/etc/nginx/jwt\.key}{$files/jwt.key}r);
    example 'payments-jwt', \&jwt_example, main => $js;
} else {
    SKIP: { skip 'payments-jwt: no njs for this nginx', 1 }
    delete $untried{'docs/examples/payments-jwt.conf'};
}

# ---- callers --------------------------------------------------------------

example 'multi-tenant', sub ($ng) {
    my $ask = sub ($host, $caller, $key, %opt) {
        return said(post($ng->port, $key, by($caller, uri => '/api/x', %opt, headers => [Host => $host])));
    };
    is($ask->('a.paying.example.com', 'ann', 'k'), '201 #1', 'a tenant');
    is($ask->('a.paying.example.com', 'ann', 'k'), '201 #1 replayed', 'its retry');
    is($ask->('b.paying.example.com', 'ann', 'k'), '201 #2', 'another tenant');
    is($ask->('a.paying.example.com', 'bob', 'k'), '201 #3', 'another user');
    is($ask->('a.trial.example.com', 'ann', 'k'), '201 #4', 'a trial');
    is($ask->('a.trial.example.com', 'ann', 'large', do => 'size=20000'), '201 #5', 'much');
    is($ask->('a.trial.example.com', 'ann', 'large'), '409 response_not_kept', 'is too much');
    is($ask->('example.com', 'ann', 'k'), '404', 'no tenant');
};

# ---- applications ---------------------------------------------------------

example 'php-fastcgi', sub ($ng) {
    my $ask = sub ($uri, $session = 'ann') {
        return said(post($ng->port, 'k', uri => $uri, headers => [Cookie => "PHPSESSID=$session"]));
    };
    is($ask->('/orders'), '201 #1', 'runs');
    is($ask->('/orders'), '201 #1 replayed', 'replays');
    is($ask->('/refunds'), '201 #2', 'another path');
    is($ask->('/orders', 'bob'), '201 #3', 'another caller');
};

example 'python-uwsgi', sub ($ng) {
    my %ann = (headers => [Cookie => 'sessionid=ann',
            'Content-Type' => 'application/x-www-form-urlencoded'], body => 'item=tea');
    my @clicks = parallel(2, sub ($i) { post_args($ng->port, undef, %ann, uri => '/orders?form=1&sleep=0.5') });
    is_deeply([sort map { said($_) } @clicks], ['201 #1', '201 #1 replayed'], 'two clicks');
    is(said(post($ng->port, undef, %ann, uri => '/orders?form=2')), '201 #2', 'another form');
    is(said(post($ng->port, 'k', %ann)), '201 #3', 'by header');
    is(said(post($ng->port, 'k', %ann)), '201 #3 replayed', 'replays');
};

example grpc => sub ($ng) {
    my $call = sub ($key, $status = 0, $service = 'Payments') {
        my $response = Http2->new($ng->port)->request('POST', "/shop.$service/Call",
            headers => ['content-type' => 'application/grpc', te => 'trailers',
                authorization => 'ann', 'idempotency-key' => $key, 'x-grpc-status' => $status,
                'x-behaviour' => 'status=200&type=application/grpc&body=reply'],
            body => "\0\0\0\0\5hello");
        return join ' ', ($response->{trailers}{'grpc-status'}
                // $response->{headers}{'grpc-status'} // ['-'])->[0],
            header($response, 'Idempotent-Replayed') ? 'replayed' : (),
            header($response, 'idempotency-error') // ();
    };
    is($call->('a'), '0', 'runs');
    is($call->('a', 7), '0 replayed', 'replays');
    is($call->('b', 14), '14', 'not available');
    is($call->('b'), '0', 'releases the key');
    is($call->('c', 4), '4', 'a deadline');
    is($call->('c'), '9 outcome_unknown', 'leaves the outcome unknown');
    is($call->('d', 0, 'Reports'), '0', 'another service') for 1, 2;
    is(ledger_count(), 6, 'executions');
}, http => <<'CONF';
server {
    listen 127.0.0.1:%%PORT2%% http2;
    add_trailer grpc-status $http_x_grpc_status always;
    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
}
CONF

example uploads => sub ($ng) {
    my $large = 'x' x 3_000_000;
    my %to = (uri => '/files/1', headers => ['Content-Type' => 'application/octet-stream']);
    is(said(post($ng->port, 'a', by('ann', %to, body => $large))), '201 #1', 'runs');
    is(said(post($ng->port, 'a', by('ann', %to, body => $large))), '201 #1 replayed', 'replays');
    is(said(post($ng->port, 'a', by('ann', %to, body => "$large.")) ), '422 key_reused', 'another file');
};

example waiting => sub ($ng) {
    my %to = by('ann', uri => '/orders');
    my ($gate, $first) = start_run($ng->port, 'a', %to);
    my $retry = send_post($ng->port, 'a', %to);
    ok(!IO::Select->new($retry->sock)->can_read(0.3), 'a retry waits');
    $gate->open;
    is(said($first->response), '201 #1', 'the first one runs');
    is(said($retry->response), '201 #1 replayed', 'and the retry gets its response');
};

example mcp => sub ($ng) {
    my $call = sub ($id, $key, $do) {
        return post($ng->port, undef, uri => '/mcp', do => $do,
            headers => [Authorization => 'ann', 'Content-Type' => 'application/json'],
            body => qq({"jsonrpc":"2.0","id":$id,"method":"tools/call",)
                . qq("params":{"name":"pay","arguments":{"idempotencyKey":"$key"}}}));
    };
    my $answer = 'status=200&type=text/event-stream&body='
        . Ledger::escape(qq(event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n));
    like($call->(1, 'a', $answer)->{body}, qr/"id":1/, 'runs');
    my $replay = $call->(2, 'a', $answer);
    is(header($replay, 'Idempotency-Replay'), 'true', 'replays');
    like($replay->{body}, qr/"id":2/, 'with the id of the call');
    is(ledger_count(), 1, 'executions');
};

# ---- Redis ----------------------------------------------------------------

subtest 'two-hosts-redis-tls' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    delete $untried{'docs/examples/two-hosts-redis-tls.conf'};
    ledger_reset();
    my $redis = RedisServer->start(tls => 1);
    write_file("$files/redis.password", "secret\n");
    $redis->command('ACL', 'SETUSER', 'nginx', 'on', '>secret', '~*', '&*', '+@all');
    my $conf = adapted(http_of('two-hosts-redis-tls'),
        qr{redis\.internal:6380} => '127.0.0.1:' . $redis->port,
        qr{/etc/nginx/redis\.password} => "$files/redis.password",
        qr{/etc/nginx/redis-ca\.crt} => $redis->path('ca.crt'),
        qr{timeout=300ms} => 'timeout=5s connect_timeout=5s');
    my @hosts = map { Nginx->start(http => $conf) } 1, 2;
    my %to = by('ann', uri => '/payments', headers => [Host => 'api.example.com']);
    is(said(post($hosts[0]->port, 'a', %to)), '201 #1', 'runs on one');
    is(said(post($hosts[1]->port, 'a', %to)), '201 #1 replayed', 'replays on the other');
    ok($_->stop, 'stops') for @hosts;
    $_->check_logs for @hosts;
};
delete $untried{'docs/examples/two-hosts-redis-tls.conf'};

# The text of a block of YAML.
sub snippet ($text, $name) {
    my ($indent, $block) = $text =~ /^( *)[\w.\/-]*\b\Q$name\E: \|\n((?:\1  .*\n)+)/m
        or die "no $name\n";
    return $block =~ s/^ +//mgr;
}

subtest 'ingress-nginx' => sub {
    plan(skip_all => 'about Redis') if !on_redis();
    ledger_reset();
    my $text = Nginx::slurp('docs/examples/ingress-nginx.yaml');
    is(snippet($text, 'main-snippet'),
        "load_module /etc/nginx/modules/ngx_http_idempotency_module.so;\n", 'loads the module');
    my $redis = RedisServer->start;
    my $http = snippet($text, 'http-snippet') =~ s{//redis\.[\w.]+}{'//127.0.0.1:' . $redis->port}er;
    my $location = snippet($text, 'configuration-snippet');
    my $ng = Nginx->start(http => <<"CONF");
$http
server {
    listen 127.0.0.1:%%PORT%%;
    location /payments {
        $location
        proxy_pass http://127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT;
    }
}
CONF
    is(said(post($ng->port, 'a', by('ann', uri => '/payments'))), '201 #1', 'runs');
    is(said(post($ng->port, 'a', by('ann', uri => '/payments'))), '201 #1 replayed', 'replays');
    ok($ng->stop, 'stops');
    $ng->check_logs;
};
delete $untried{'docs/examples/ingress-nginx.yaml'};

is_deeply([sort keys %untried], [], 'no example is left untried');

done_testing;
