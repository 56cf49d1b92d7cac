package Batches;

# Feeds the checker with a history that is larger than memory: some of the keys
# at a time. It stands for the checker, and is told the same but for the lines of
# keys, which it reads from files:
#
#   my $checker = Batches->new(folder => ..., files => { ledger => [paths],
#       answers => [paths], links => [paths] }, events => [...], ...);
#
# Most rules are about one key. What is about none (idle, logs, claims after a
# failover) is checked once, by a checker that is told of no key. What a rule
# has to know of other keys each checker is told: what was done to the processes,
# when a worker was first seen, and how much it has stored when.

use v5.36;

use List::Util qw(max);

use Checker;
use Lines;

my $MOST_BYTES = 16 << 20;    # of lines at a time; in memory they take ten times that
my $MOST_TOLD  = 50;          # keys whose history is kept for the report

# count: of batches, if it is not to follow from the sizes of the files
sub new ($class, %given) {
    my ($folder, $files, $count) = delete @given{qw(folder files count)};
    my $bytes = 0;
    $bytes += -s $_ // 0 for map {@$_} values %$files;
    return bless { given => \%given, folder => $folder, files => $files,
        count => $count // 1 + int($bytes / $MOST_BYTES),
        counts => {}, told => {}, rules => {}, in_stores => 0, lost_and_asked => 0 }, $class;
}

sub violations ($self) {
    return @{ $self->{violations} } if $self->{violations};
    my %given = %{ $self->{given} };
    my @violations = $self->check(%given);
    delete @given{qw(idle logs)};
    $given{events} = [grep { $_->{what} ne 'not granted' } @{ $given{events} // [] }];
    @given{qw(first_seen stored)} = $self->split_lines;
    for my $number (1 .. $self->{count}) {
        push @violations, $self->check(%given, map { $_ => $self->lines_of($_, $number) } keys %{ $self->{files} });
    }
    unlink map { $self->path($_, 0) } keys %{ $self->{files} };
    $self->{violations} = \@violations;
    return @violations;
}

sub check ($self, %given) {
    my $checker = Checker->new(%given);
    my @violations = $checker->violations;
    my $counts = $checker->counts;
    $self->{counts}{$_} += $counts->{$_} for keys %$counts;
    for my $rule ($checker->forgiven) {
        $self->{rules}{ $rule->{name} } = { %$rule, keys => $rule->{keys} + ($self->{rules}{ $rule->{name} }{keys} // 0) };
    }
    $self->{lost_and_asked} += $checker->lost_and_asked;
    $self->{in_stores} += $checker->shared_keys || keys %{ $checker->{by_key} };
    for my $key (map { $_->{key} } @violations) {
        last if keys %{ $self->{told} } >= $MOST_TOLD;
        $self->{told}{$key} //= [$checker->history_of($key)];
    }
    return @violations;
}

# ---- the report -----------------------------------------------------------

sub counts ($self) {
    $self->violations;
    return $self->{counts};
}

sub forgiven ($self) {
    $self->violations;
    return map { { %$_, share => $_->{keys} / max(1, $self->{in_stores}) } }
        @{ $self->{rules} }{ sort keys %{ $self->{rules} } };
}

sub lost_and_asked ($self) {
    $self->violations;
    return $self->{lost_and_asked};
}

sub says_little ($self) {
    return grep { $_->{share} > $Forgiven::SMALL_SHARE } $self->forgiven;
}

sub history_of ($self, $key) { return @{ $self->{told}{$key} // ['see the files that are kept'] } }

# ---- files ----------------------------------------------------------------

# Each kind of line into a file for each batch, and file 0 for all of them.
# Returns when each worker was first seen, and how much it has stored when.
sub split_lines ($self) {
    my (%first, %stored, %runs);
    for my $kind (keys %{ $self->{files} }) {
        my @out = map { open_new($self->path($kind, $_)) } 0 .. $self->{count};
        each_line(sub ($line) {
            my $key = field($line, 'key');
            # A connection without a key has ended: that is of no run.
            return if !defined $key && (field($line, 'what') // '') eq 'ended';
            note_worker(\%first, $line) if $kind ne 'links';
            note_run(\%stored, \%runs, $line) if $kind eq 'ledger';
            print { $out[defined $key ? 1 + batch_of($key, $self->{count}) : 0] } "$line\n";
        }, @{ $self->{files}{$kind} });
        close $_ or die "$!\n" for @out;
    }
    History::note_stored(\%stored, $_, $_->{t}) for values %runs;
    return (\%first, \%stored);
}

# As ended_by_itself() of History.pm: the line "end" counts, else "answer", else "run".
# runs: those of which "end" has not come.
sub note_run ($stored, $runs, $line) {
    my ($what, $id, $t) = map { field($line, $_) } qw(what id t);
    if    ($what eq 'run')    { $runs->{$id} = { t => $t, map { $_ => field($line, $_) } qw(life worker do) } }
    elsif (!$runs->{$id})     { return }
    elsif ($what eq 'answer') { $runs->{$id}{t} = $t }
    elsif ($what eq 'end')    { History::note_stored($stored, delete $runs->{$id}, $t) }
}

# As first_seen() of History.pm.
sub note_worker ($first, $line) {
    my $t = (field($line, 'what') // '') eq 'run' ? field($line, 't')
        : defined field($line, 'status') ? field($line, 'ended') : undef;
    return if !defined $t;
    my $worker = join ' ', field($line, 'life') // '?', field($line, 'worker') // '?';
    $first->{$worker} = $t if $t < ($first->{$worker} // 9e9);
}

sub field ($line, $name) { return $line =~ /(?:^|\t)\Q$name\E=([^\t]*)/ ? $1 : undef }

sub open_new ($path) {
    open my $file, '>', $path or die "$path: $!\n";
    return $file;
}

sub lines_of ($self, $kind, $number) {
    my $path = $self->path($kind, $number);
    my @lines = read_lines($path, $self->path($kind, 0));
    unlink $path;
    return \@lines;
}

# Another process may look at the same run.
sub path ($self, $kind, $number) { return "$self->{folder}/batch-$$-$kind-$number" }

sub batch_of ($key, $count) { return ($key =~ /(\d+)$/ ? $1 : unpack '%32C*', $key) % $count }

1;
