package Lines;

# What happened, one line each: fields with names, in files that several
# processes append to. All times are of the one monotonic clock, which no
# fault touches.

use v5.36;

use Exporter 'import';
use Fcntl qw(O_WRONLY O_APPEND O_CREAT);
use IO::Handle ();
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(now append_to read_lines each_line field_text);

sub now { return clock_gettime(CLOCK_MONOTONIC) }

# A sub that appends fields as one line. sync => 1: it is on the disk when the
# sub returns, whoever is killed then.
sub append_to ($path, %opt) {
    sysopen(my $file, $path, O_WRONLY | O_APPEND | O_CREAT) or die "$path: $!\n";
    return sub (%fields) {
        # One write, as others append too.
        syswrite($file, field_text(%fields) . "\n") // die "$path: $!\n";
        $file->sync if $opt{sync};
    };
}

sub field_text (%fields) {
    $fields{t} //= now();
    $_ = sprintf '%.4f', $_ for grep {defined} @fields{qw(t until ended)};
    return join "\t", map { "$_=" . ($fields{$_} =~ tr/\t\n\r/   /r) }
        grep { defined $fields{$_} } sort keys %fields;
}

sub read_lines (@paths) {
    my @lines;
    each_line(sub ($line) { push @lines, parse($line) }, @paths);
    return sort { $a->{t} <=> $b->{t} } @lines;
}

# Calls the sub with the text of each line, so that files can be larger than
# memory. A last line that was cut short by a kill is not one.
sub each_line ($take, @paths) {
    for my $path (@paths) {
        open my $file, '<', $path or next;
        while (my $line = readline $file) {
            $take->($line) if chomp $line;
        }
    }
}

sub parse ($line) {
    my %fields = map { /^(\w+)=(.*)$/s ? ($1, $2) : () } split /\t/, $line;
    return \%fields;
}

1;
