# Every configuration that the documentation offers for pasting, loaded as it
# stands there. Only addresses and paths become those of the test.

use v5.36;

use File::Temp ();
use JSON::PP ();
use Test::More;
use Ledger;
use Keyed;
use Nginx;

my $files = File::Temp->newdir('recipes-XXXXXX', TMPDIR => 1);
chmod 0755, "$files";
write_file("$files/fastcgi_params", join '', map {"fastcgi_param $_;\n"}
    'REQUEST_METHOD $request_method', 'REQUEST_URI $request_uri',
    'CONTENT_TYPE $content_type', 'CONTENT_LENGTH $content_length');

my %recipe = blocks_of('docs/recipes.md');
my %address = (
    'listen 80;'                 => 'listen 127.0.0.1:%%PORT%%;',
    'http://127.0.0.1:9000'      => 'http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT',
    'http://127.0.0.1:9001'      => 'http://127.0.0.1:%%PORT2%%',
    'unix:/run/php/php-fpm.sock' => '127.0.0.1:$TEST_NGINX_FASTCGI_PORT',
    'fastcgi_params;'            => "$files/fastcgi_params;",
    '/var/www/app/public'        => "$files",
    '/var/log/nginx/'            => '%%DIR%%/',
);

# ---- helpers --------------------------------------------------------------

# The blocks of nginx configuration in a page, by the heading above them.
sub blocks_of ($page) {
    my $text = Nginx::slurp($page) || die "no $page here\n";
    my ($heading, %blocks) = ('');
    while ($text =~ /^(?:#+ ([^\n]+)|```nginx\n(.*?)^```)$/msg) {
        if (defined $1) { $heading = $1 }
        else            { $blocks{$heading} .= $2 }
    }
    return %blocks;
}

# Runs $check->($nginx) against the recipe, with more lines in http{}.
sub with_recipe ($name, $check, $more = '') {
    my $conf = delete $recipe{$name} // die "no recipe '$name'\n";
    my $pattern = join '|', map {quotemeta} sort keys %address;
    $conf =~ s/($pattern)/$address{$1}/g;
    subtest $name => sub {
        ledger_reset();
        my $ng = Nginx->start(http => $conf . $more);
        $check->($ng);
        ok($ng->stop, 'stops');
        $ng->check_logs;
    };
}

sub by ($caller, %opt) {
    return (%opt, headers => ['X-Api-Key' => $caller, @{ $opt{headers} // [] }]);
}

sub authorized ($token) { return (headers => [Authorization => $token]) }

# What the log says of $idempotency_status, in order.
sub logged ($ng, $file = 'access.log') {
    return [$ng->read($file) =~ /\bidempotency=(\S+)/g];
}

# ---- recipes --------------------------------------------------------------

with_recipe "An API like Stripe's", sub ($ng) {
    my $port = $ng->port;
    my %ann = authorized('Bearer sk_ann');
    is(said(post($port, 'a', uri => '/v1/charges', %ann)), '201 #1', 'runs');
    is(said(post($port, 'a', uri => '/v1/charges', %ann)), '201 #1 replayed', 'replays');
    is(said(post($port, 'a', uri => '/v1/refunds', %ann)), '400 key_reused',
        'a key counts on any path');
    my $error = JSON::PP::decode_json(post($port, 'a', uri => '/v1/refunds', %ann)->{body});
    is_deeply([@{ $error->{error} }{qw(type code)}], ['idempotency_error', 'key_reused'],
        'an error in the form of the API');
    like($error->{error}{message}, qr/^This idempotency key was already used/, 'its message');
    is(said(post($port, 'a', uri => '/v1/charges', authorized('Bearer sk_bob'))),
        '201 #2', 'and for one account');
    is(said(post($port, 'b', uri => '/v1/charges', do => 'status=500', %ann)),
        '500 #3', 'an error');
    is(said(post($port, 'b', uri => '/v1/charges', %ann)), '500 #3 replayed', 'is kept');
    is(said(post($port, 'c', uri => '/v1/charges', do => 'status=429', %ann)),
        '429 #4', 'too many requests');
    is(said(post($port, 'c', uri => '/v1/charges', %ann)), '201 #5', 'is not');
    is(said(post($port, 'a', uri => '/v1/charges', method => 'DELETE', %ann)),
        '201 #6', 'only POST is protected');
};

with_recipe 'The subject of a token', sub ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/payments/1');
    is(said(post($port, 'a', %to, authorized('old'))), '201 #1', 'runs');
    is(said(post($port, 'a', %to, authorized('new'))), '201 #1 replayed',
        'replays with a refreshed token');
    is(said(post($port, 'a', %to, authorized('other'))), '201 #2', 'another caller');
    is(said(post($port, 'a', %to, authorized('revoked'))), '401', 'no access, no replay');
    is(post($port, 'a', uri => '/check-token')->{status}, 404, 'the check is internal');
    is(ledger_count(), 2, 'executions');
}, <<'CONF';
map $http_authorization $token_subject {
    old   ann;
    new   ann;
    other bob;
}
server {
    listen 127.0.0.1:%%PORT2%%;
    if ($token_subject = '') { return 401; }
    add_header X-Subject $token_subject;
    return 204;
}
CONF

with_recipe 'PHP with try_files', sub ($ng) {
    my $port = $ng->port;
    is(said(post($port, 'a', by('ann', uri => '/orders'))), '201 #1', 'runs');
    is(said(post($port, 'a', by('ann', uri => '/orders'))), '201 #1 replayed', 'replays');
    is(said(post($port, 'a', by('ann', uri => '/refunds'))), '201 #2',
        'the key belongs to the path of the client');
    is(said(post($port, 'a', by('bob', uri => '/orders'))), '201 #3', 'another caller');
};

with_recipe 'Browsers', sub ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/carts/1', authorized('Bearer ann'));
    my $preflight = request($port, 'OPTIONS', '/carts/1', headers => [
        Origin => 'https://shop.example.com', 'Access-Control-Request-Method' => 'POST',
        'Access-Control-Request-Headers' => 'idempotency-key']);
    is($preflight->{status}, 204, 'the preflight request is answered');
    like(header($preflight, 'Access-Control-Allow-Headers'), qr/Idempotency-Key/, 'the key is allowed');
    my @answers = (post($port, 'a', %to), post($port, 'a', %to), post($port, 'a', %to, body => 'other'));
    is_deeply([map { said($_) } @answers], ['201 #1', '201 #1 replayed', '422 key_reused'],
        'a run, a replay, an error');
    for my $answer (@answers) {
        is(header($answer, 'Access-Control-Allow-Origin'), 'https://shop.example.com',
            'the page may read it');
        like(header($answer, 'Access-Control-Expose-Headers'), qr/Idempotent-Replayed/,
            'and the mark of a replay');
    }
};

with_recipe 'Uploads', sub ($ng) {
    my $port = $ng->port;
    my $upload = sub ($boundary, $file) {
        return by('ann', uri => '/files/1',
            headers => ['Content-Type' => "multipart/form-data; boundary=$boundary"],
            body => join "\r\n", "--$boundary",
            'Content-Disposition: form-data; name="file"; filename="f"', '',
            $file, "--$boundary--", '');
    };
    my $large = 'x' x 2_000_000;
    is(said(post($port, 'a', $upload->('one', $large))), '201 #1', 'runs');
    is(said(post($port, 'a', $upload->('two', $large))), '201 #1 replayed',
        'replays whatever the boundary');
    is(said(post($port, 'a', $upload->('one', "${large}y"))), '422 key_reused', 'another file');
};

with_recipe 'Waiting instead of 409', sub ($ng) {
    my $port = $ng->port;
    my ($gate, $first) = start_run($port, 'a', by('ann', uri => '/orders/1'));
    my $retry = send_post($port, 'a', by('ann', uri => '/orders/1'));
    ok(!IO::Select->new($retry->sock)->can_read(0.3), 'a retry waits');
    $gate->open;
    is(said($first->response), '201 #1', 'the first one runs');
    is(said($retry->response), '201 #1 replayed', 'and the retry gets its response');
};

with_recipe 'MCP and JSON-RPC', sub ($ng) {
    my $port = $ng->port;
    my ($call) = Nginx::slurp('docs/recipes.md') =~ /^```json\n(.*?)\n```/ms;
    my $ask = sub ($body, $do = undef) {
        return post($port, undef, by('ann', uri => '/mcp', do => $do, body => $body,
            headers => ['Content-Type' => 'application/json']));
    };
    my $answer = 'status=200&body={"jsonrpc":"2.0","id":7,"result":{}}';
    my $again = $call =~ s/"id":7/"id":8/r =~ s/"p1"/"p2"/r;
    isnt($again, $call, 'the retry has an id and a progress token of its own');
    is(said($ask->($call, $answer)), '200 #1', 'runs');
    my $replay = $ask->($again);
    is(said($replay), '200 #1 replayed', 'replays');
    is(member($replay, 'id'), 8, 'with the id of the retry');
    is(said($ask->($call =~ s/5/6/r)), '422 key_reused', 'another amount');
    my $list = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}';
    is(said($ask->($list)), "201 #$_", 'a call without a key runs') for 2, 3;
};

with_recipe 'Keys in X-Request-Id', sub ($ng) {
    my $port = $ng->port;
    my $ask = sub ($key, @headers) {
        return said(post($port, $key, by('ann', uri => '/orders/1', headers => \@headers)));
    };
    is($ask->(undef, 'X-Request-Id' => 'r1'), '201 #1', 'runs');
    is($ask->(undef, 'X-Request-Id' => 'r1'), '201 #1 replayed', 'replays');
    is($ask->(undef, 'X-Request-Id' => ''), "201 #$_", 'empty: runs') for 2, 3;
    is($ask->(undef), '201 #4', 'none: runs');
    is($ask->('k', 'X-Request-Id' => 'r2'), '201 #5', 'the first source decides: runs');
    is($ask->('k', 'X-Request-Id' => 'r3'), '201 #5 replayed', 'and replays');
};

# ---- rolling out ----------------------------------------------------------

with_recipe 'Step 1: dry run', sub ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/payments/1');
    is(said(post($port, 'a', by('ann', %to))), "201 #$_", 'runs') for 1, 2;
    is(said(post($port, 'a', by('ann', %to, body => 'other'))), '201 #3', 'runs');
    is(said(post($port, 'a', %to)), '201 #4', 'runs');
    wait_until(sub { @{ logged($ng, 'dry.log') } == 4 }, 5, 'the log');
    is_deeply([map {s/,//r} @{ logged($ng, 'dry.log') }], [qw(NEW REPLAY REUSED UNSCOPED)],
        'the log shows what would happen');
}, <<'CONF';
log_format short 'idempotency=$idempotency_status';
access_log %%DIR%%/dry.log short;
CONF

with_recipe 'Step 2: protect requests that have a key', sub ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/payments/1');
    is(said(post($port, 'a', by('ann', %to))), '201 #1', 'runs');
    is(said(post($port, 'a', by('ann', %to))), '201 #1 replayed', 'replays');
    is(said(post($port, undef, by('ann', %to))), "201 #$_", 'no key: runs') for 2, 3;
};

with_recipe 'Step 3: require a key', sub ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/payments/1');
    is(said(post($port, 'a', by('ann', %to))), '201 #1', 'runs');
    is(said(post($port, 'a', by('ann', %to))), '201 #1 replayed', 'replays');
    is(said(post($port, undef, by('ann', %to))), '400 key_missing', 'no key');
    is(said(post($port, 'a', %to)), '400 scope_missing', 'no caller');
};

with_recipe 'An access log', sub ($ng) {
    my $port = $ng->port;
    my %to = (uri => '/payments/1?secret=1');
    my $key = '8e03a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b';
    post($port, $_, by('ann', %to)) for $key, $key, undef, 'short';
    post($port, $key, by('ann', %to, body => 'other'));
    wait_until(sub { $ng->read('idempotency.log') =~ tr/\n// == 5 }, 5, 'the log');

    my $log = $ng->read('idempotency.log');
    my $end = 'store_time=\S+ request_time=\S+ upstream=';
    like((split /\n/, $log)[0], qr{"POST /payments/1" 201 idempotency=NEW outcome=completed error=- key=8e03a1\.\.\. id=[0-9a-f]{32} attempt=1 age=- expires=\d+ ${end}127}, 'a run');
    like((split /\n/, $log)[1], qr{ 201 idempotency=REPLAY outcome=- error=- key=8e03a1\.\.\. id=[0-9a-f]{32} attempt=- age=\d+ expires=\d+ ${end}-}, 'a replay');
    like((split /\n/, $log)[2], qr{ 201 idempotency=- outcome=- error=- key=- id=- attempt=- age=- expires=- ${end}127}, 'no key');
    like((split /\n/, $log)[3], qr{ key=\(short\) }, 'a short key is hidden');
    like((split /\n/, $log)[4], qr{ 422 idempotency=REUSED outcome=- error=key_reused key=8e03a1}, 'a refusal');
    my @ids = $log =~ / id=(\S+)/g;
    is_deeply([@ids[1, 4]], [@ids[0, 0]], 'one record has one id');
    unlike($log, qr/\Q$key\E|secret/, 'no key and no arguments');
};

is_deeply([sort keys %recipe], [], 'no recipe is left untried');

# ---- README ---------------------------------------------------------------

my %readme = blocks_of('README.md');
my ($http) = $readme{'Use it'} =~ /^http \{\n(.*)^\}/ms;
%recipe = ('README' => $readme{'Roll it out'} . $http);
%address = ('listen 8000;' => $address{'listen 80;'}, %address);

with_recipe 'README', sub ($ng) {
    my $port = $ng->port;
    is(said(post($port, 'a', by('ann'))), '201 #1', 'runs');
    is(said(post($port, 'a', by('ann'))), '201 #1 replayed', 'replays');
    is(said(post($port, 'a', by('bob'))), '201 #2', 'another caller');
    wait_until(sub { @{ logged($ng, 'idempotency.log') } == 3 }, 5, 'the log');
    like($ng->read('idempotency.log'), qr{^\S+ \S+ "POST /\S*" 201 idempotency=REPLAY outcome=- error=- id=[0-9a-f]{32} attempt=- age=0$}m,
        'the log has a replay');
};

done_testing;
