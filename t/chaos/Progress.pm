package Progress;

# Looks at a run while it goes on: a line now and then, and whether a rule is
# broken already. A process of its own checks what was written down so far, so
# that no fault comes late because of it.

use v5.36;

use List::Util qw(max sum0);
use POSIX ();

use Lines;

# What happened so long ago is written down by everybody.
my $SETTLED = 5;

# world, nemesis, seconds, rules, check => sub: a checker of what there is, until_red
sub new ($class, %opt) {
    # Checking takes a small share of a run, however long that is.
    my ($every, $pauses) = $opt{until_red} ? (5, 1) : (20, 20);
    return bless { every => $every, pauses => $pauses, violations => 0, keys => 0, %opt,
        next => now() + $every, file => $opt{world}->path('progress') }, $class;
}

# Whether the run can end, because a rule is broken.
sub is_over ($self) {
    $self->take_result if $self->{pid} && -e $self->{file};
    $self->look if !$self->{pid} && now() >= $self->{next};
    return $self->{until_red} && $self->{violations};
}

sub look ($self) {
    my $began = now();
    $self->{pid} = $self->{world}->spawn(sub {
        POSIX::nice(15);
        my $checker = $self->{check}->();
        my @broken = grep { $_->{at} < $began - $SETTLED } timed($self->{rules}, $checker->violations);
        my $say = append_to("$self->{file}.new");
        $say->(violations => scalar @broken, keys => $checker->counts->{keys}, took => now() - $began);
        rename "$self->{file}.new", $self->{file};
    });
}

sub take_result ($self) {
    my ($seen) = read_lines($self->{file});
    unlink $self->{file};
    $self->{world}->wait_for(5, delete $self->{pid});
    @$self{qw(violations keys)} = @$seen{qw(violations keys)};
    $self->{next} = now() + max($self->{every}, $self->{pauses} * $seen->{took});
    $self->tell;
}

sub tell ($self) {
    my $nemesis = $self->{nemesis};
    my %faults = $nemesis->faults;
    printf "%d s left, %d keys, %d faults, %d violations so far\n",
        max(0, $nemesis->{began} + $self->{seconds} - now()), $self->{keys}, sum0(values %faults),
        $self->{violations};
}

# Those of some rules of which it is known when they happened. Rule 9 needs an
# idle machine.
sub timed ($rules, @violations) {
    return grep { defined $_->{at} && $_->{rule} =~ /^[$rules]$/ } @violations;
}

1;
