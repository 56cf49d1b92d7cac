#!/usr/bin/env perl

# The models of the Redis store say what docs/model/README.md says of them: what
# holds, and what does not hold today.  ./build.sh model checks all cases.

use v5.36;

use Test::More;

use Store;

memory_only('needs no store');

plan skip_all => 'spin or gcc is not installed'
    if grep { system("command -v $_ > /dev/null 2>&1") != 0 } qw(spin gcc);

open my $report, '-|', './build.sh model --quick 2>&1' or die "build.sh: $!\n";

my ($cases, @rest) = 0;

while (<$report>) {
    if (/^expected (\w+)(?: today)? +found (\w+) +(\w+) +(\S+)/) {
        $cases++;
        is($2, $1, "$3: $4");

    } else {
        push @rest, $_;
    }
}

ok(close $report, 'all cases are as expected') or diag(@rest);
cmp_ok($cases, '>', 15, 'there are many');

done_testing;
