#!/usr/bin/env perl

# The unit tests of t/unit/, a line for each test case.

use v5.36;

use Test::More;

use Store;

memory_only('needs no store');

my $unit = $ENV{TEST_UNIT_BINARY};

plan skip_all => 'TEST_UNIT_BINARY is not set' if !$unit;

my %entity = (lt => '<', gt => '>', quot => '"', apos => "'", amp => '&');
my $name;

open my $report, '-|', $unit, '--reporter', 'xml' or die "$unit: $!\n";

while (<$report>) {
    if (/<TestCase name="([^"]*)"/) {
        $name = $1 =~ s/&(\w+);/$entity{$1} \/\/ ''/ger;

    } elsif (/<OverallResult success="(\w+)"/) {
        ok($1 eq 'true', $name);
        undef $name;
    }
}

close $report;
my $status = $?;

ok($status == 0 && !defined $name,
    defined $name ? "ends, in $name" : 'every test case passes');

# The same once more, in words.
diag(`'$unit' 2>&1`) if $status != 0;

done_testing();
