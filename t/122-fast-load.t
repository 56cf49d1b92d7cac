#!/usr/bin/env perl

# The fast clients and the fast application of the chaos runs write what those
# in Perl write, so that one checker judges both. The checker gets a history in
# batches, and finds the same as in one piece. nginx has to have http2.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/chaos", "$FindBin::Bin/lib";
use Digest::SHA qw(sha1_hex);
use File::Temp;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep);

use Batches;
use FreePorts ();
use Http1 ();
use Lines;
use Store;
use Workload;
use World;

memory_only('about the harness, not about a store');
my $programs = $ENV{CHAOS_PROGRAMS} or plan skip_all => 'CHAOS_PROGRAMS is not set';

my $SECONDS = 4;
my %lines_seen;    # of a ledger

# ---- the application ------------------------------------------------------

my %OF = (perl => [$^X, "$FindBin::Bin/chaos/upstream.pl"], fast => ["$programs/application"]);

my @cases = ('size=50', 'size=3000&chunked=1', 'size=900&pieces=4', 'size=900&pieces=4&chunked=1', 'refuse=409',
    'refuse=word', 'status=502', 'discard=1', 'sleep=0.050', 'die=unread', 'die=executed', 'die=header',
    'die=body&size=400', 'die=executed&rst=1', 'size=300000');
my %seen = map { $_ => run_application($_) } sort keys %OF;
for my $i (0 .. $#cases) {
    is_deeply($seen{fast}[$i], $seen{perl}[$i], "the applications do the same: $cases[$i]");
}

# ---- a history ------------------------------------------------------------

my $world = World->new(store => 'memory', seed => 7, instances => 2, programs => $programs);
$world->start;
my $began = now();
my %load = (began => $began, until => $began + $SECONDS);
my @clients = ($world->start_clients(1, %load, rate => 100),
    map { $world->start_client("c$_", %load, rate => 100) } 1 .. 12);
ok($world->wait_for($SECONDS + 12, @clients), 'all clients end by themselves');

my @fast = read_lines($world->path('history-f1'));
my @perl = read_lines(grep {/-c\d+$/} $world->history_files);
my @keys = do { my %seen; grep { !$seen{$_}++ } map { $_->{key} } @fast };
cmp_ok(scalar @keys, '>', 100, 'the fast clients ask for many keys');

for my $kind (qw(status left)) {
    is_deeply(names($kind, @fast), names($kind, @perl), "lines with $kind= have the same fields");
}
for my $field (qw(proto via phase replayed)) {
    is_deeply([values_of($field, @fast)], [values_of($field, @perl)], "$field= has the same values");
}

is_deeply([grep { !is_of_workload($_) } @fast], [], 'keys, bodies and instances are those of Workload.pm');

# Where both were told of one execution, they write down the same.
my %told = map { ("$_->{execution} $_->{complete}" => $_) } grep { ($_->{status} // 0) == 201 } @perl;
my @both = grep { ($_->{status} // 0) == 201 && $told{"$_->{execution} $_->{complete}"} } @fast;
cmp_ok(scalar @both, '>', 0, 'some answers went to clients of both kinds');
is_deeply([grep { my $other = $told{"$_->{execution} $_->{complete}"};
    $_->{ident} ne $other->{ident} || $_->{complete} && $_->{sha} ne $other->{sha} } @both], [],
    'they have the same digests');

# Both send the same bodies with the same type.
my %bodies;
$bodies{ $_->{key} }{ $_->{body} } = 1 for @fast, @perl;
is_deeply([map { $_->{key} } grep { ($_->{code} // '') eq 'key_reused' && keys %{ $bodies{ $_->{key} } } < 2 } @fast, @perl],
    [], 'no key is refused as reused that was sent with one body only');

# ---- the question at the end ----------------------------------------------

my $list = $world->path('keys');
open my $file, '>', $list or die "$list: $!\n";
print {$file} map {"$_\n"} @keys;
close $file;
ok($world->wait_for(30, $world->start_fast_clients('p0', probe => $list, seconds => 8)),
    'the fast prober ends by itself');
my %probed = map { $_->{key} => $_ } read_lines($world->path('history-p0'));
is_deeply([grep { !$probed{$_} || $probed{$_}{phase} ne 'probe' } @keys], [], 'it asks for each key');
is_deeply([grep { ($probed{$_}{code} // '') =~ /^(?:in_progress|key_reused)$/ } @keys], [],
    'until its state is clear');

# ---- the checker, in batches ----------------------------------------------

my $files = $world->lines_of_keys;
my @verdicts = map { verdict($_) } 1, 5;
is_deeply($verdicts[0]{violations}, [], 'a history without faults passes');
is_deeply($verdicts[1], $verdicts[0], 'in 5 batches as in one');

# Each of these runs a second time.
my @twice = grep { $_->{what} eq 'run' && $_->{does} eq 'executes' && $_->{key} =~ /^hold/ } read_lines($world->path('ledger'));
my $forge = append_to($world->path('ledger'));
$forge->(%$_, id => "X$_->{id}", t => $_->{t} + 1) for @twice[0 .. 9];
@verdicts = map { verdict($_) } 1, 5;
is(scalar(grep { /^1 / } @{ $verdicts[0]{violations} }), 10, 'second runs are found');
is_deeply($verdicts[1], $verdicts[0], 'in 5 batches as in one');

my $told_of = Batches->new(checker_options(), count => 3, folder => $world->folder, files => $files);
my ($first) = grep { $_->{rule} == 1 } $told_of->violations;
like(join("\n", $told_of->history_of($first->{key})), qr/ledger .*id=X/, 'the history of a violation is told');
is_deeply([glob $world->path('batch-*')], [], 'the files of the batches are removed');

is($world->complaints, '', 'no process complains');
$world->stop;
$world->remove;

done_testing;

# ---- lines ----------------------------------------------------------------

sub names ($kind, @lines) {
    my %names = map { map { $_ => 1 } keys %$_ } grep { defined $_->{$kind} } @lines;
    return [sort keys %names];
}

sub values_of ($field, @lines) {
    my %values = map { $_->{$field} => 1 } grep { defined $_->{$field} } @lines;
    return sort keys %values;
}

sub is_of_workload ($line) {
    my $key = key_of($line->{key} =~ /(\d+)$/);
    return $key->{name} eq $line->{key} && $key->{route} eq $line->{route}
        && $line->{instance} == instance_of($key, 2)
        && grep { $line->{body} eq sha1_hex(body_of($key, $_)) } qw(right other);
}

sub checker_options {
    return (routes => \%ROUTES, store => 'memory', lease => $LEASE, read_timeout => $READ_TIMEOUT);
}

sub verdict ($count) {
    my $checker = Batches->new(checker_options(), count => $count, folder => $world->folder, files => $files);
    return { violations => [sort map {"$_->{rule} $_->{key}"} $checker->violations],
        counts => $checker->counts, forgiven => [$checker->forgiven] };
}

# ---- applications ---------------------------------------------------------

# For each case the lines of the ledger and what came back, without what has to
# differ.
sub run_application ($which) {
    my $folder = File::Temp->newdir;
    my ($port) = FreePorts::free_ports(1);
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        exec @{ $OF{$which} }, '--port', $port, '--ledger', "$folder/ledger", '--name', 'A1', '--parent', getppid
            or POSIX::_exit(127);
    }
    World::wait_listening($port);
    my @seen = map { [exchange($port, $_), lines_since($folder)] } @cases;
    kill KILL => $pid;
    waitpid $pid, 0;
    return \@seen;
}

sub exchange ($port, $wish) {
    my $got = Http1::request($port, 'POST', '/x', body => 'abc', headers => ['Idempotency-Key' => 'k1',
        'X-Do' => $wish, 'X-Attempt' => 1, 'X-Token' => 't', 'X-Life' => '0.1', 'X-Worker' => 5, 'X-Route' => '/hold']);
    return { map { $_ => $got->{$_} } qw(status headers body complete) };
}

sub lines_since ($folder) {
    my @lines;
    # The last line is written after the last byte has gone out.
    for (1 .. 100) {
        @lines = read_lines("$folder/ledger");
        @lines = @lines[($lines_seen{$folder} // 0) .. $#lines];
        last if @lines && $lines[-1]{what} =~ /^(?:end|cut)$/;
        sleep 0.02;
    }
    $lines_seen{$folder} += @lines;
    delete @$_{qw(t port)} for @lines;
    return @lines;
}
