package Rounds;

# Runs of chaos.pl one after the other, each a process of its own: so that a
# night needs no more memory and disk than one run.

use v5.36;

# program, how many, the first one's seed, and the arguments of all. Returns
# the exit code.
sub play ($program, $rounds, $seed, @arguments) {
    my ($keys, $began) = (0, time);
    $| = 1;
    for my $round (1 .. $rounds) {
        print "round $round of $rounds\n";
        # The last of an option counts.
        my ($passed, $seen) = play_one($^X, $program, @arguments, '--rounds', 1, '--seed', $seed + $round - 1);
        $keys += $seen;
        printf "%d rounds, %d keys, %.1f hours, %s\n", $round, $keys, (time - $began) / 3600,
            $passed ? 'no violation' : 'FAIL';
        return 1 if !$passed;
    }
    return 0;
}

# Whether it passed, and how many keys it had.
sub play_one (@command) {
    my $keys = 0;
    open my $out, '-|', @command or die "$command[0]: $!\n";
    while (my $line = readline $out) {
        print $line;
        $keys = $1 if $line =~ /^seen: .*?(?<![\w ])\s?(\d+) keys/;
    }
    return (close($out) ? 1 : 0, $keys);
}

1;
