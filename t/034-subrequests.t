# A content handler that works by subrequests: what they write goes to one
# peer, and a peer that died under one of them leaves the outcome unknown.
# Peers share one ledger, so that a second run shows wherever it went.

use v5.36;

use File::Temp ();
use Test::More;
use DnsServer;
use Keyed;
use Ledger;
use Nginx;

my $lua = lua_modules();
my $js = join '', map {"load_module $_;\n"} split ' ', $ENV{TEST_NGINX_JS_MODULES} // '';
my $dns = DnsServer->start('127.0.0.1 127.0.0.1');
my $dns_port = $dns->port;
my $dir = File::Temp->newdir('js-XXXXXX', TMPDIR => 1);
chmod 0755, "$dir";

write_file("$dir/app.js", <<'JS');
async function relay(r) {
    let to = r.uri.replace('/js/', '/inner/');
    let reply = await r.subrequest(to, {method: r.headersIn['X-Method'] || 'POST'});
    r.return(r.headersIn['X-Fail'] ? 503 : reply.status >= 300 ? 500 : 201, 'told ' + reply.status);
}
function detached(r) {
    r.subrequest('/inner/pair', {method: 'DELETE', detached: true});
    r.return(Number(r.headersIn['X-Status'] || 201), 'done');
}
async function twice(r) {
    let ok = await r.subrequest('/inner/pair', {method: 'POST'});
    let page = await r.subrequest('/inner/page');
    r.return(201, page.responseText);
}
async function redirect(r) {
    await r.subrequest('/inner/pair', {method: 'POST'});
    r.internalRedirect('/by-name');
}
export default {relay, detached, twice, redirect};
JS

my $js_conf = $js && <<"CONF";
    location /js/ { js_content app.relay; }
    location /js-detached { js_content app.detached; }
    location /js-twice { js_content app.twice; }
    location /js-redirect { js_content app.redirect; }
    location /js/failing { error_page 500 = \@backup; js_content app.relay; }
    location /js/recursive {
        recursive_error_pages on;
        error_page 500 = \@backup;
        js_content app.relay;
    }
CONF
my $js_import = $js && "js_path $dir; js_import app from app.js;";

my $lua_conf = $lua && <<'CONF';
    location /lua/ {
        content_by_lua_block {
            local to = ngx.var.uri:gsub("^/lua/", "/inner/")
            local methods = {POST = ngx.HTTP_POST, PUT = ngx.HTTP_PUT,
                DELETE = ngx.HTTP_DELETE, PATCH = ngx.HTTP_PATCH}
            local method = methods[ngx.var.http_x_method or "POST"]
            local told = ngx.location.capture(to, {method = method})
            local bad = told.status >= 300 or told.truncated
            ngx.status = ngx.var.http_x_fail and 503 or bad and 500 or 201
            ngx.print("told ", told.status)
        }
    }
CONF

my $ng = Nginx->start(main => "$lua$js", http => <<"CONF");
$js_import
resolver 127.0.0.1:$dns_port ipv6=off;
proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;
upstream pair {
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
    server 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT max_fails=0;
}
map \$host \$address { default 127.0.0.1:\$TEST_NGINX_UPSTREAM_PORT; }
map \$host \$name { default two.test:\$TEST_NGINX_UPSTREAM_PORT; }
server {
    listen 127.0.0.1:%%PORT%%;
    idempotency on;
    idempotency_scope none;
    proxy_next_upstream error timeout invalid_header http_500 http_502 http_503
        http_504 http_403 http_404 http_429 non_idempotent;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_read_timeout 1s;

    location /inner/pair { internal; proxy_pass http://pair; }
    location /inner/unbuffered { internal; proxy_buffering off; proxy_pass http://pair; }
    location /inner/address { internal; proxy_pass http://\$address; }
    location /inner/name { internal; proxy_pass http://\$name; }
    location /inner/backup {
        internal;
        error_page 502 504 = \@backup;
        proxy_pass http://\$address;
    }
    location /inner/failing { internal; proxy_pass http://\$address; }
    location /inner/recursive { internal; proxy_pass http://\$address; }
    location /inner/page { internal; return 200 page; }
    location \@backup { proxy_pass http://pair; }
    $lua_conf
    $js_conf

    location /by-name { proxy_pass http://\$name; }

    location /cached {
        proxy_cache cache;
        proxy_cache_methods POST;
        proxy_cache_key cached;
        proxy_cache_valid 201 1s;
        proxy_cache_use_stale updating;
        proxy_cache_background_update on;
        proxy_pass http://pair;
    }
}
CONF
retry_against($ng);

my @handlers = ($lua ? 'lua' : (), $js ? 'js' : ());
my @METHODS = qw(POST PUT DELETE PATCH);

sub sent_by ($handler, $to, $method, %opt) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($status, $then) = delete @opt{qw(first then)};
    my $first = write_to("/$handler/$to", do => $opt{do}, headers => ['X-Method' => $method]);
    is($first->{status}, $status, "the client gets $status");
    my $retry = write_to("/$handler/$to", headers => ['X-Method' => $method]);
    if    ($then eq 'unknown')  { is_refused($retry, 'outcome_unknown') }
    elsif ($then eq 'replayed') { is_replay($retry, $first) }
    else                        { is_rerun($retry) }
    is(executions(), $then eq 'runs' ? 2 : 1, 'executions') or diag(join "\n", ledger_of());
}

for my $handler (@handlers) {
    for my $to (qw(pair unbuffered address)) {
        claim "$handler: what comes back from $to is no HTTP" => sub {
            my @ask = ("/$handler/$to", do => 'bad=1', headers => ['X-Fail' => 1]);
            is(write_to(@ask)->{status}, 503, 'the handler says that it failed');
            is_refused(write_to(@ask), 'outcome_unknown');
            is(executions(), 1, 'executions');
        };
    }
}

for my $handler (@handlers) {
    for my $to (qw(pair unbuffered address name backup)) {
        claim "$handler: a subrequest to $to completes" => sub {
            sent_by($handler, $to, 'POST', first => 201, then => 'replayed');
        };

        claim "$handler: a refusal by $to is the application's word" => sub {
            sent_by($handler, $to, 'POST', do => 'status=422', first => 500,
                then => 'runs');
        };

        for my $method ($to =~ /pair|name/ ? @METHODS : 'PUT') {
            for my $fault ('die=before', 'die=header', 'sleep=2.5') {
                claim "$handler: a $method to $to is sent once ($fault)" => sub {
                    sent_by($handler, $to, $method, do => $fault, first => 500,
                        then => 'unknown');
                };
            }
        }

        claim "$handler: a cut answer of $to is none" => sub {
            sent_by($handler, $to, 'POST', do => 'truncate=1&size=5000',
                first => 500, then => 'unknown');
        } if $handler eq 'lua';
    }
}

if ($js) {
    claim 'a detached subrequest is sent once' => sub {
        my $first = write_to('/js-detached', do => 'die=before');
        is($first->{status}, 201, 'the handler answers by itself');
        ok(wait_until(sub { executions() >= 1 }), 'it is sent');
        is_replay(write_to('/js-detached'), $first);
        # What was sent last is in the ledger before what comes after it.
        write_to('/js/pair', key => undef);
        is(executions(), 1, 'executions');
    };

    claim 'a key is not released while a subrequest is under way' => sub {
        my $first = write_to('/js-detached', do => 'sleep=0.3',
            headers => ['X-Status' => 500]);
        is($first->{status}, 500, 'the handler answers by itself');
        is_refused(write_to('/js-detached'), 'outcome_unknown');
        ok(wait_until(sub { executions() >= 1 }), 'it is sent');
        is(executions(), 1, 'executions');
    };

    claim 'a handler may ask by a subrequest, and then send the request on' => sub {
        my $first = write_to('/js-redirect');
        is($first->{status}, 201, 'it runs');
        is_replay(write_to('/js-redirect'), $first);
        is(executions(), 2, 'executions, of the subrequest and of the request');
    };

    for my $uri ('/js/failing', '/js/recursive') {
        claim "an error page does not do again what a subrequest did ($uri)" => sub {
            my $first = write_to($uri, do => 'die=before');
            cmp_ok($first->{status}, '>=', 500, 'the client gets an error');
            is_refused(write_to($uri), 'outcome_unknown');
            is(executions(), 1, 'executions');
        };
    }

    claim 'a handler that reads and writes completes' => sub {
        my $first = write_to('/js-twice');
        is($first->{body}, 'page', 'the handler answers');
        is_replay(write_to('/js-twice'), $first);
        is(executions(), 1, 'executions');
    };
}

for my $method (@METHODS) {
    claim "a $method to a name with two addresses is sent once" => sub {
        ends('/by-name', method => $method, do => 'die=before', first => 502,
            then => 'unknown');
    };
}

for my $handler (@handlers) {
    for my $to (qw(pair address name)) {
        claim "$handler: a subrequest to $to goes to its end without the client" => sub {
            my $conn = start_write("/$handler/$to", do => "sleep=0.3");
            ok(wait_until(sub { executions() == 1 }), 'it runs');
            $conn->close;
            my $retry;
            wait_until(sub { ($retry = write_to("/$handler/$to"))->{status} == 201 });
            is(header($retry, 'Idempotent-Replayed'), 'true', 'its answer is there');
            is(executions(), 1, 'executions');
        };
    }
}

claim 'a refresh of the cache in the background is sent once' => sub {
    write_to('/cached', key => undef);
    select undef, undef, undef, 2.1;
    my $first = write_to('/cached', do => 'die=before');
    is($first->{status}, 201, 'the client gets what was cached');
    ok(wait_until(sub { executions() >= 1 }), 'the refresh is sent');
    write_to('/js/pair', key => undef);
    write_to('/lua/pair', key => undef);
    is(executions(), 1, 'executions') or diag(join "\n", ledger_of());
    is_replay(write_to('/cached'), $first);
};

ok($ng->stop, 'nginx leaves when asked');
$ng->check_logs;

done_testing();
