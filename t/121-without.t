#!/usr/bin/env perl

# The patches of ./build.sh chaos --without apply to the source as it is, so
# that a change to the source cannot leave them behind unseen, and say where
# ./build.sh chaos --mutants is to run them.

use v5.36;

use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Find qw(find);
use File::Temp;
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));
my @patches = glob "$root/t/chaos/without/*.patch";

cmp_ok(scalar @patches, '>', 0, 'there are patches');

for my $file (@patches) {
    my $name = basename($file, '.patch');
    my $patch = read_file($file);
    my @changed = $patch =~ m{^--- a/(\S+)}mg;
    my $copy = File::Temp->newdir;

    like($patch, qr/\ATakes away /, "$name: says what it takes away");
    my ($head) = $patch =~ /\A(.*?)^--- /ms;
    my @runs = ($head // '') =~ /^# chaos: (.*)$/mg;
    my @wrong = grep { !/^--store (?:memory|file|redis|sentinel|cluster)(?: --[a-z-]+(?: [\w:,]+)?)*$/ } @runs;
    my $is_idle = ($head // '') =~ /^This cannot be made to matter/m;
    ok(($is_idle xor @runs) && !@wrong, "$name: says in which runs it matters, or that it does not")
        or diag(@wrong);
    ok(@changed && !(grep { !m{^src/} } @changed), "$name: changes src/ only");

    # As build_without in util/chaos.sh does.
    system('cp', '-R', "$root/src", $copy) == 0 or die "cp failed\n";
    my $output = readpipe "patch -d '$copy' -p1 --quiet --force --fuzz=0 < '$file' 2>&1";
    is($?, 0, "$name: applies") or diag($output);
}

# A switch in the source could be on in a build that serves clients.
my @switches;
find(sub { push @switches, $File::Find::name if -f && read_file($_) =~ /IDEMPOTENCY_BREAK/ },
    "$root/src");
is_deeply(\@switches, [], 'no switch in the source takes a protection away');

done_testing;

sub read_file ($path) {
    open my $in, '<', $path or die "$path: $!\n";
    local $/;
    return readline $in;
}
