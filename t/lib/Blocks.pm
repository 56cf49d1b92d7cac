package Blocks;

# What the Test::Nginx files share. It starts the test application and the
# store, begins each block with both of them empty, and adds sections:
#
#   --- exchange
#   POST /x | X-User: ann              => 201 run 1
#   POST /x | X-User: ann              => 201 replay of 1
#   POST /x | X-User: ann | body=other => 422 key_reused, REUSED key_reused
#   --- executions: 1
#
# A line of "exchange" is a request and its answer. The request may have
# headers, "body=" and "do=", which is what the application is asked to do, see
# upstream.pl. Headers of all requests stand in "more_headers"; POST, PUT and
# PATCH have a body anyway. The answer is
#
#   201 run 1          the first execution that the application counts
#   201 replay of 1    marked as a replay, with the body of that execution
#   422 key_reused     a whole problem document with this code
#   401                none of these: no execution, no replay
#
# and, behind a comma, what is logged of $idempotency_status and
# $idempotency_error. The other sections of Test::Nginx work as ever, those
# about answers as lists with "eval".
#
#   --- executions: 2            how often the application has run in all
#   --- executions_of            how often each of these paths has run
#   /x 1
#   --- log_lines                how many lines of the error log match
#   1 \[warn\] .* is empty
#   --- emerg                    the whole message of a refused configuration;
#                                "nginx.conf:HERE" is the line marked "# here";
#                                the place that nginx adds may be left out
#   --- lua                      loads Lua, or skips the block without it
#
# A block that does not say "no_error_log" has no [alert], [crit] or [error].
# After each block nginx has to quit by itself, and without an alert.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use JSON::PP ();
use Socket qw(INADDR_LOOPBACK SOCK_STREAM AF_INET pack_sockaddr_in
    unpack_sockaddr_in);
use Test::More ();
use Test::Nginx::Socket ();

use lib dirname(abs_path(__FILE__));
use Ledger;
use Store ();
use Waiting qw(wait_quietly);

my ($bound, %body_of_run, @answers);
my $blocks = 0;

sub import ($class) {
    return if $bound;
    closed_port();
    Test::Nginx::Util::no_root_location();
    Test::Nginx::Util::no_long_string();
    Test::Nginx::Util::add_block_preprocessor(\&prepare);
    Test::Nginx::Util::add_test_cleanup_handler(\&finish);
    Test::Nginx::Socket::add_response_body_check(\&check_body);
}

# A port that refuses connections and that nobody else can take.
sub closed_port {
    socket($bound, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    bind($bound, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\n";
    $ENV{TEST_NGINX_CLOSED_PORT} = (unpack_sockaddr_in(getsockname $bound))[0];
}

# ---- before a block -------------------------------------------------------

sub prepare ($block) {
    @answers = ();
    %body_of_run = ();
    use_fresh_zone($block) if reloads() && !Store::on_redis();
    load_lua($block) if defined $block->lua;
    expand_exchange($block) if defined $block->exchange;
    expect_emerg($block) if defined $block->emerg;
    $block->set_value(no_error_log => "[alert]\n[crit]\n[error]")
        if !defined $block->no_error_log;
}

sub append ($block, $section, $text) {
    $block->set_value($section => ($block->$section // '') . "\n$text");
}

sub reloads { return $ENV{TEST_NGINX_USE_HUP} }

# A reload keeps the records of a zone, so each block has one of its own.
sub use_fresh_zone ($block) {
    my $http = $block->http_config // '';
    return if defined $block->must_die || $http =~ /\bidempotency_store\s+default\s/;
    my $name = 'block-' . ++$blocks;
    my $config = $block->config =~ s/\bidempotency\s+on;/idempotency $name;/gr;
    $http =~ s/\bidempotency\s+on;/idempotency $name;/g;
    $block->set_value(config => $config);
    $block->set_value(http_config => "idempotency_store $name memory:1m;\n$http");
}

sub load_lua ($block) {
    my @modules = split ' ', $ENV{TEST_NGINX_LUA_MODULES} // '';
    return append($block, main_config => join '', map {"load_module $_;"} @modules)
        if @modules;
    Test::More->builder->skip($block->name . ': lua is not there');
    $block->set_value(SKIP => 1);
    $block->set_value(executions => undef);
}

# Else Test::Nginx prints it.
sub expect_emerg ($block) {
    $block->set_value(error_log => '[emerg]');
    $block->set_value(suppress_stderr => 1);
}

sub expand_exchange ($block) {
    my $common = $block->more_headers // '';
    my (@requests, @headers);
    for my $line (grep {/^\s*[^#\s]/} split /\n/, $block->exchange) {
        my ($request, $answer) = $line =~ /^\s*(.*\S)\s+=>\s+(.*\S)\s*$/
            or die "no request and answer: $line\n";
        my ($first, $more, $body) = parse_request($request);
        push @requests, "$first\n$body";
        push @headers, join "\n", grep {length} $common =~ s/\n+\z//r, @$more;
        push @answers, parse_answer($answer);
    }
    my $more = $block->response_headers;
    $block->set_value(request => \@requests);
    $block->set_value(more_headers => \@headers);
    $block->set_value(error_code => [map { $_->{status} } @answers]);
    $block->set_value(response_headers => [map {
        join "\n", $answers[$_]{headers}, ref $more ? $more->[$_] // () : $more // ()
    } 0 .. $#answers]);
    append($block, http_config => <<'CONF') if grep { defined $_->{logged} } @answers;
log_format idempotency escape=none '$host $idempotency_status $idempotency_error';
access_log logs/idempotency.log idempotency;
CONF
}

sub parse_request ($text) {
    my ($first, @parts) = split /\s+\|\s+/, $text;
    my $body = $first =~ /^P(?:OST|UT|ATCH) / ? 'x' : '';
    my @headers;
    for my $part (@parts) {
        if    ($part =~ /^body=(.*)/) { $body = $1 }
        elsif ($part =~ /^do=(.*)/)   { push @headers, "X-Behaviour: $1" }
        else                          { push @headers, $part }
    }
    return ($first, \@headers, $body);
}

sub parse_answer ($text) {
    my ($status, $how, $n, $code, $logged) =
        $text =~ /^(\d{3})(?: (run|replay of) (\d+)| (\w+))?(?:, (\S.*))?$/
        or die "no answer: $text\n";
    my @headers = (defined $n ? "X-Execution: $n" : '! X-Execution',
        ($how // '') eq 'replay of' ? 'Idempotent-Replayed: true' : '! Idempotent-Replayed',
        defined $code ? 'Content-Type: application/problem+json' : ());
    return { status => $status, how => $how // '', n => $n, code => $code,
        logged => $logged, headers => join "\n", @headers };
}

# ---- answers --------------------------------------------------------------

sub check_body ($block, $body, $i, $, $dry_run) {
    my $answer = $answers[$i];
    return if !$answer || $dry_run;
    my $name = $block->name . " - request $i";
    if ($answer->{how} eq 'run') {
        $body_of_run{ $answer->{n} } = $body;
    } elsif ($answer->{how} eq 'replay of') {
        Test::More::is($body, $body_of_run{ $answer->{n} }, "$name - the body is the first one");
    } elsif (defined $answer->{code}) {
        check_problem($body, $answer, $name);
    }
}

sub check_problem ($body, $answer, $name) {
    my $problem = eval { JSON::PP::decode_json($body) } // {};
    Test::More::is($problem->{code}, $answer->{code}, "$name - the code of the problem");
    Test::More::is($problem->{status}, $answer->{status}, "$name - its status");
    Test::More::like($problem->{$_} // '', qr/\S/, "$name - its $_") for qw(type title detail);
}

# ---- after a block --------------------------------------------------------

sub finish ($block) {
    return if defined $block->SKIP;
    my $name = $block->name;
    wait_for_executions($block);
    check_executions_of($block);
    check_logged($name) if grep { defined $_->{logged} } @answers;
    quit($name) if !reloads();
    check_log_lines($block);
    check_emerg($block) if defined $block->emerg;
}

# Some run after the answer, such as those of a mirror.
sub wait_for_executions ($block) {
    my $wanted = $block->executions // return;
    wait_quietly(sub { ledger_count() >= $wanted });
}

sub check_executions_of ($block) {
    for my $line (split /\n/, $block->executions_of // '') {
        my ($uri, $count) = split ' ', $line;
        wait_quietly(sub { ledger_count(uri => $uri) >= $count });
        Test::More::is(ledger_count(uri => $uri), $count, $block->name . " - executions of $uri");
    }
}

# nginx logs a request after it has answered it. With reloads Test::Nginx asks
# a host of its own which configuration is in use.
sub check_logged ($name) {
    my @logged;
    wait_quietly(sub {
        @logged = map { /^(?!test-nginx )\S+ (.*\S)/i ? $1 : () }
            split /\n/, content_of('idempotency.log');
        @logged >= @answers;
    });
    Test::More::is(join("\n", map { defined $answers[$_]{logged} ? $logged[$_] // '' : () }
        0 .. $#answers), join("\n", map { $_->{logged} // () } @answers), "$name - logged");
}

# Under valgrind it is gone by now.
sub quit ($name) {
    my ($pid) = read_file($Test::Nginx::Util::PidFile) =~ /^(\d+)/ or return;
    kill QUIT => $pid;
    # Dead is enough: who has to reap it may take its time.
    my $gone = wait_quietly(sub { read_file("/proc/$pid/stat") !~ /\) [^Z]/ });
    Test::More::ok($gone, "$name - nginx quits by itself");
    # Test::Nginx starts nginx again when somebody else holds its port.
    my @bad = grep { !/bind\(\)/ && /\[(?:alert|emerg)\]|exited (?:on signal|with code [1-9])/ }
        split /\n/, content_of('error.log');
    Test::More::is(join("\n", @bad), '', "$name - nothing alarming in the log");
}

sub check_log_lines ($block) {
    for my $line (split /\n/, $block->log_lines // '') {
        my ($count, $pattern) = $line =~ /^(\d+) (.+)$/ or die "no count: $line\n";
        my $found = () = content_of('error.log') =~ /^.*$pattern.*$/mg;
        Test::More::is($found, $count, $block->name . " - lines like $pattern");
    }
}

sub check_emerg ($block) {
    my @lines = split /\n/, read_file($Test::Nginx::Util::ConfFile);
    my ($here) = grep { $lines[ $_ - 1 ] =~ /# here$/ } 1 .. @lines;
    my $wanted = $block->emerg =~ s/\n+\z//r =~ s/nginx\.conf:HERE/'nginx.conf:' . ($here \/\/ 0)/er;
    my $got = join "\n", map {s{ /\S+/(nginx\.conf:)}{ $1}gr}
        content_of('error.log') =~ /\[emerg\] (?:\d+#\d+: )?(.*)$/mg;
    $got =~ s/ in nginx\.conf:\d+\z// if $wanted !~ / in nginx\.conf:\d+\z/;
    Test::More::is($got, $wanted, $block->name . ' - what nginx says');
}

# ---- files ----------------------------------------------------------------

sub content_of ($log) { return read_file("$Test::Nginx::Util::LogDir/$log") }

sub read_file ($path) {
    open my $file, '<', $path or return '';
    local $/;
    return readline($file) // '';
}

1;
