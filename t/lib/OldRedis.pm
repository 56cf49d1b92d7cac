package OldRedis;

# Makes a Redis answer as one before 7.0, which does not know SET ... NX GET.

use v5.36;

use Exporter 'import';

our @EXPORT_OK = qw(old_commands);

# The whole commands in a buffer, taken from it, with the word GET made one that
# Redis does not know either: its refusal comes in its turn and in its words.
sub old_commands ($buffer) {
    my $out = '';
    while (defined(my $command = take_command($buffer))) {
        my ($bytes, @words) = @$command;
        my @options = map {uc} @words[3 .. $#words];
        if (uc $words[0] eq 'SET' && grep({ $_ eq 'NX' } @options) && grep { $_ eq 'GET' } @options) {
            $words[$_] =~ s/^GET$/GOT/i for 3 .. $#words;
            $bytes = join '', '*' . @words . "\r\n",
                map { '$' . length($_) . "\r\n$_\r\n" } @words;
        }
        $out .= $bytes;
    }
    return $out;
}

# [bytes, words...], undef while it is not whole.
sub take_command ($buffer) {
    my ($count) = $$buffer =~ /\A\*(\d+)\r\n/ or return;
    my ($at, @words) = (length("*$count\r\n"));
    for (1 .. $count) {
        pos($$buffer) = $at;
        my ($length) = $$buffer =~ /\G\$(\d+)\r\n/ or return;
        $at += length("\$$length\r\n");
        return if length $$buffer < $at + $length + 2;
        push @words, substr($$buffer, $at, $length);
        $at += $length + 2;
    }
    return [substr($$buffer, 0, $at, ''), @words];
}

1;
