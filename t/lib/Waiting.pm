package Waiting;

# Waits until something is so, and returns what the condition says at last.
#
#   wait_until(sub { -e $file }, 5, 'the file') or die;   # tells what it waited for
#   wait_quietly(sub { -e $file }, 5);

use v5.36;

use Exporter 'import';
use List::Util qw(min);
use Test::More ();
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(wait_until wait_quietly);

# A machine can stand still for minutes. Nothing has been done in that time, so
# one look counts for no more than this many seconds.
my $LONGEST_LOOK = 3;

sub wait_until ($condition, $seconds = 5, $what = 'a condition') {
    my $began = time;
    my $value = wait_quietly($condition, $seconds);
    Test::More::diag(sprintf 'waited %g s for %s, until %.1f s had passed',
        $seconds, $what, time - $began) if !$value;
    return $value;
}

# Looks once more when the time is over.
sub wait_quietly ($condition, $seconds = 5) {
    while (1) {
        my $began = time;
        my $value = $condition->();
        return $value if $value || $seconds <= 0;
        sleep 0.01;
        $seconds -= min(time - $began, $LONGEST_LOOK);
    }
}

1;
