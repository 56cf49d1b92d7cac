package Profile;

# Where the CPU time of a gateway goes, by perf: kernel, nginx, libraries.
#
#   my $profile = Profile->start($pid);
#   ...
#   my $shares = $profile->stop;       # { kernel => 0.6, nginx => 0.2, ... }

use v5.36;

use Running qw(run_aside end_process);
use Waiting qw(wait_quietly);

our @PARTS = qw(kernel nginx module libc OpenSSL simdjson);

my @NAMES = (qr/^\[k|^\[vdso/ => 'kernel', qr/^nginx/ => 'nginx', qr/idempotency/ => 'module',
    qr/^libc\./ => 'libc', qr/^lib(?:crypto|ssl)/ => 'OpenSSL', qr/^libsimdjson/ => 'simdjson');

sub start ($class, $pid) {
    my $file = "$ENV{BENCH_OUT}/perf.data";
    unlink $file;
    my $self = bless { file => $file }, $class;
    $self->{pid} = run_aside(sub {
        exec qw(perf record -q -e cpu-clock -F 4000 -o), $file, '-p', $pid;
        die "there is no perf: install linux-perf\n";
    });
    wait_quietly(sub { -s $file }) or die "perf does not record\n";
    return $self;
}

sub stop ($self) {
    end_process($self->{pid}, 'INT');
    my %shares;
    for (`perf report -i '$self->{file}' --sort dso --stdio 2> /dev/null`) {
        my ($percent, $object) = /^\s+([\d.]+)%\s+(\S+)/ or next;
        $shares{ part_of($object) } += $percent / 100;
    }
    unlink $self->{file};
    return \%shares;
}

# rows: [contender, column, kind, microseconds, shares], ...
sub table (@rows) {
    my $lines = '| | ' . join(' | ', @PARTS, 'all') . " |\n|" . ' --- |' x (@PARTS + 2) . "\n";
    for (@rows) {
        my ($who, $column, $kind, $time, $shares) = @$_;
        my @cells = map { $shares->{$_} ? sprintf('%.1f', $shares->{$_} * $time) : '' } @PARTS;
        $lines .= '| ' . join(' | ', "$column, $kind: $who", @cells, sprintf '%.1f', $time) . " |\n";
    }
    return $lines;
}

sub part_of ($object) {
    my @names = @NAMES;
    while (my ($pattern, $name) = splice @names, 0, 2) {
        return $name if $object =~ $pattern;
    }
    return 'other';
}

1;
