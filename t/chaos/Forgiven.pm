package Forgiven;

# What the documentation does not promise. Where the checker would find a
# violation it asks here first; each answer is a rule with a name, and the report
# says how many keys each rule was used for. A run in which one rule was used for
# more than $SMALL_SHARE of the keys shows little: it is not a PASS.
#
# What Redis loses is put back by the host that wrote it, and until then nobody
# else claims. So a loss alone forgives nothing: there has to be a reason why the
# owner did not put its record back, or why the other did not wait for it.

use v5.36;

use parent 'History';

use List::Util qw(any max min);

use History qw($SLACK $WRITTEN_LATE $RECONNECT ended_by_itself instance_of);

our $SMALL_SHARE = 0.02;

# of: the kinds of loss that it is about, or none where it is about no loss.
# says: the page and the sentence of the documentation, word for word. applies: to
# a run whose record was lost ($c: run, loss, by (when its owner has put it back, if
# it can), and what excuse() was asked).
my @RULES = (
    { name => 'owner died', of => 'restart flush running failover', applies => \&has_died,
        says => 'redis.md: "Nobody puts back what a host wrote that died together with Redis"' },
    { name => 'owner left', of => 'restart flush running failover', applies => \&has_left,
        says => 'redis.md: "A worker that has left (reload, quit) puts back nothing"' },
    { name => 'older than reassert', of => 'restart', applies => \&is_old,
        says => 'redis.md: "all that was settled or put back within reassert"' },
    { name => 'over budget', of => 'restart', applies => \&is_over_budget,
        says => 'redis.md: "that had to make room for newer ones in the 8 megabytes, is not put back"' },
    { name => 'outage too long', of => 'restart', applies => \&was_given_up,
        says => 'redis.md: "It keeps trying for 10 minutes or for the lease, whichever is longer"' },
    { name => 'owner out of reach', of => 'restart', applies => \&is_out_of_reach_of_store,
        says => 'redis.md: "has put it back before failover_grace is over on the other hosts"' },
    { name => 'claimer started', of => 'restart', applies => \&has_started,
        says => 'redis.md: "A worker that starts knows nothing of the server before"' },
    { name => 'flushed', of => 'flush', applies => \&was_settled,
        says => 'guarantees.md: "An outcome that FLUSHALL removes is forgotten"' },
    { name => 'before renewal', of => 'flush running', applies => \&is_not_put_back_yet,
        says => 'redis.md: "A retry that came before has run"' },
    { name => 'outcome not copied', of => 'failover', applies => \&is_not_put_back_yet,
        says => 'redis.md: "Outcomes do not wait either: if an outcome is lost and nobody puts it back"' },
    { name => 'cut off together', says => 'redis.md: "the master and that host die together, '
        . 'or are cut off together"' },
    { name => 'late outcome', says => 'guarantees.md: "the outcome of an earlier attempt, '
        . 'which comes late, can then take the place of a later one"' },
    { name => 'answered before stored', says => 'guarantees.md: "the client gets its response, '
        . 'the outcome is stored late"' },
    { name => 'store out of reach', says => 'guarantees.md: "gets 409 in_progress or 503. When Redis is back, '
        . 'it gets the stored response"' },
    { name => 'not written', says => 'zone.md: "If the machine loses power before all of the file was written, '
        . 'retries of such a request get 409 outcome_unknown"' },
    { name => 'claim left behind', says => 'redis.md: "such a key stays locked although it never ran"' },
);

my %SAYS = map { $_->{name} => $_->{says} } @RULES;

sub rules { return @RULES }

# ---- counting -------------------------------------------------------------

sub forgive ($self, $name, $key) {
    die "no rule '$name' forgives anything\n" if !$SAYS{$name};
    $self->{forgiven}{$name}{$key} = 1;
    return 1;
}

# How often each rule was used: its name, the number of keys, their share of all
# that are in a store, the sentence.
sub forgiven ($self) {
    my $all = $self->shared_keys || keys %{ $self->{by_key} } || 1;
    return map {
        my $keys = keys %{ $self->{forgiven}{$_} };
        { name => $_, keys => $keys, share => $keys / $all, says => $SAYS{$_} };
    } sort keys %{ $self->{forgiven} // {} };
}

# The rules that were used too often for this run to show much.
sub says_little ($self) {
    return grep { $_->{share} > $SMALL_SHARE } $self->forgiven;
}

# How many keys had a record that was lost and were asked for again: those that
# show whether records are put back.
sub lost_and_asked ($self) {
    my (%asked, %keys);
    $asked{ $_->{key} } = max($_->{ended}, $asked{ $_->{key} } // 0) for @{ $self->{answers} };
    my @runs = sort { $a->{sent} <=> $b->{sent} }
        grep { $self->domain($_->{route}, $_->{life}) eq 'all' } values %{ $self->{runs} };
    for my $loss (grep { $_->{how} ne 'failover' } @{ $self->{losses} }) {
        # A run that is older than that has ended.
        my $from = $loss->{how} eq 'running' ? $loss->{lost} - 3 * $self->{read_timeout} : $loss->{since};
        for (my $i = first_from($from, \@runs); $i < @runs; $i++) {
            my $run = $runs[$i];
            last if $run->{sent} > $loss->{back} + $SLACK;
            $keys{ $run->{key} } = 1 if ($asked{ $run->{key} } // 0) > $loss->{back}
                && $self->is_lost($run, $loss, $run->{sent}, 0);
        }
    }
    return scalar keys %keys;
}

# The index of the first run that was sent then or later.
sub first_from ($time, $runs) {
    my ($low, $high) = (0, scalar @$runs);
    while ($low < $high) {
        my $middle = int(($low + $high) / 2);
        if ($runs->[$middle]{sent} < $time) { $low = $middle + 1 }
        else                              { $high = $middle }
    }
    return $low;
}

# ---- a record that was lost -----------------------------------------------

# Why the store did not have the record of a run when it was asked for it: the
# rule and the loss, or nothing. came: when what shows it came at the latest;
# asked: when the store was asked at the earliest; other: the run that came of
# it; outcome: it is about the outcome, not about the claim.
sub excuse ($self, $run, %c) {
    my $written = $c{outcome} ? $self->stored_by($run) : $run->{sent};
    for my $loss (sort { $a->{lost} <=> $b->{lost} } @{ $self->{losses} }) {
        last if $c{came} < $loss->{lost} - $WRITTEN_LATE;
        next if !$self->is_lost($run, $loss, $written, $c{outcome});
        my %case = (%c, run => $run, loss => $loss, by => $self->put_back_by($run, $loss));
        for my $rule (grep { ($_->{of} // '') =~ /\b$loss->{how}\b/ } @RULES) {
            return { rule => $rule->{name}, loss => $loss } if $rule->{applies}->($self, \%case);
        }
        $written = $case{by};
    }
    return;
}

# Whether what was written last, at that time at the latest, was lost.
sub is_lost ($self, $run, $loss, $written, $outcome) {
    my ($how, $lost) = @$loss{qw(how lost)};
    return 0 if $how eq 'failover' && !$outcome || $written < $loss->{since};
    return 0 if $how eq 'running' && $self->running_until($run) < $lost - $WRITTEN_LATE;
    return $self->claimed_at($run) <= ($how eq 'restart' ? $lost : $loss->{back});
}

# Until when its record says that it runs: one whose owner was killed, for a lease.
sub running_until ($self, $run) {
    my $killed = $self->{killed}{ $run->{worker} // '' };
    return defined $killed && $killed == $self->owner_ended($run) ? $killed + $self->{lease}
        : $self->stored_by($run);
}

# When a living owner has put its record back: where it notices the loss, as
# soon as it is connected; else with the next renewal or with its outcome.
sub put_back_by ($self, $run, $loss) {
    my ($lost, $back) = @$loss{qw(lost back)};
    return $self->reachable_from($run, $back, $RECONNECT) + $RECONNECT
        if $loss->{how} =~ /^(?:restart|failover)$/;
    my $by = min($back + $self->{lease} / 3, max($self->owner_ended($run), $back)) + $WRITTEN_LATE;
    for my $absence (sort { $a->[0] <=> $b->[0] } $self->absences($run)) {
        my ($from, $to) = @$absence;
        $by = max($by, $to + $self->{lease} / 3 + $WRITTEN_LATE)
            if $from <= $by && $to >= $lost - $SLACK;
    }
    return $by;
}

# ---- the rules ------------------------------------------------------------

sub has_died ($self, $c) {
    my $killed = $self->{killed}{ $c->{run}{worker} // '' };
    return defined $killed && $killed >= $c->{run}{t} - $SLACK && $killed <= $c->{by};
}

# A worker that was asked to leave ends with its last request. What it could not
# store by then it keeps for a lease.
sub has_left ($self, $c) {
    my $run = $c->{run};
    my $ended = $self->owner_ended($run);
    my $gone = $ended <= $c->{loss}{lost} + $WRITTEN_LATE ? $ended : $ended + $self->{lease};
    return $c->{by} >= $gone && any {
        $_->{what} =~ /^(?:quits|reloaded|upgraded)$/ && $_->{instance} == instance_of($run)
            && $_->{t} >= $run->{sent} - $SLACK && $_->{t} <= $c->{by}
    } @{ $self->{disturbed} };
}

sub is_old ($self, $c) {
    return $self->stored_by($c->{run}) <= $c->{loss}{lost} - $self->{reassert} + $SLACK;
}

# Whether the worker has stored more since than it keeps.
sub is_over_budget ($self, $c) {
    return $self->stored_between($c->{run}, ended_by_itself($c->{run}), $c->{loss}{lost})
        > 0.9 * $self->{budget};
}

# Whether its outcome could not be stored for longer than its worker tries.
sub was_given_up ($self, $c) {
    my $ended = $self->owner_ended($c->{run});
    return $self->reachable_from($c->{run}, $ended, $WRITTEN_LATE) - $ended
        >= max($self->{longest_late}, $self->{lease}) - $SLACK;
}

# And the other has waited for the grace, as far as that can be known.
sub is_out_of_reach_of_store ($self, $c) {
    my $back = $c->{loss}{back};
    return $c->{asked} <= $c->{by} && $c->{by} > $back + $RECONNECT
        && $c->{came} >= $back + $self->{grace} - $WRITTEN_LATE;
}

# It had not done anything before the loss, and there is a reason for that.
sub has_started ($self, $c) {
    my $other = $c->{other} // return 0;
    my $lost = $c->{loss}{lost};
    return 0 if $c->{asked} > $c->{by} || $self->first_seen($other) < $lost;
    return any {
        $_->{what} =~ /^(?:killed|reloaded|upgraded|started)$/ && $_->{instance} == instance_of($other)
            && $_->{t} >= $lost - 2 * $RECONNECT && $_->{t} <= $other->{sent}
    } @{ $self->{disturbed} };
}

sub was_settled ($self, $c) {
    return $self->owner_ended($c->{run}) <= $c->{loss}{lost} + $WRITTEN_LATE;
}

sub is_not_put_back_yet ($self, $c) { return $c->{asked} <= $c->{by} }

1;
