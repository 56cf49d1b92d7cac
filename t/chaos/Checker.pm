package Checker;

# Decides from what was written down whether the promises were kept.
#
#   my $checker = Checker->new(routes => \%ROUTES, store => 'memory',
#       lease => 1, read_timeout => 4, ledger => [...], answers => [...],
#       links => [...], events => [...], idle => [...], logs => [...]);
#   for ($checker->violations) { print "$_->{rule}: $_->{text}\n" }
#   for ($checker->forgiven) { print "$_->{name}: $_->{keys} keys\n" }
#
# The rules:
#
#   1  under hold a key is executed once; only where the application has said
#      that nothing happened may it run again
#   2  under release each further run is announced as one, and none begins
#      while the owner of another lives
#   3  all 2xx answers of a key are the same, byte for byte, and what was seen
#      once can be seen again
#   4  an answer belongs to an execution of its own key and request, and a
#      replay comes after it
#   5  no key is stuck when all is well again, none is pending two leases after
#      its run
#   6  nothing is left over when all is idle
#   7  no alert, no crash, no sanitizer report
#   8  a run is not given up without need: not because its client left
#   9  after a failover claims are granted again in time
#
# A Redis that loses records is no excuse by itself: their owners put them back.
# What is not promised is forgiven by one of the rules of Forgiven.pm.

use v5.36;

use parent 'Forgiven';

use List::Util qw(first max min none any uniq);

use History qw($SLACK $WRITTEN_LATE $RECONNECT ended_by_itself instance_of is_refused);

# Renewed every third of it, so this much of a lease is left at least.
my $LEFT_OF_LEASE = 0.6;

# A worker knows of a claim that it has returned for so long.
my $KNOWN_FOR = 30;

sub new ($class, %given) {
    my $self = $class->SUPER::new(%given);
    $self->{violations} = [];
    return $self;
}

sub violations ($self) {
    return @{ $self->{violations} } if $self->{checked}++;
    $self->check_runs($_) for sort { $a cmp $b } keys %{ $self->{by_key} };
    $self->check_answers($_) for sort { $a cmp $b } keys %{ $self->{told} };
    $self->check_ends;
    $self->check_idle;
    $self->check_logs;
    $self->check_given_up;
    $self->check_granted;
    return @{ $self->{violations} };
}

# A violation that only the end has shown is of no certain time.
sub blame ($self, $rule, $key, $text, $at = undef) {
    push @{ $self->{violations} }, { rule => $rule, key => $key, text => $text, at => $at };
}

sub is_hold ($self, $route) { return $self->{routes}{$route}{unknown} eq 'hold' }

# ---- runs: rules 1 and 2 --------------------------------------------------

sub check_runs ($self, $name) {
    my ($key, $domain) = split /\t/, $name;
    my @runs = @{ $self->{by_key}{$name} };
    my $route = $self->{routes}{ $runs[0]{route} };
    for my $life ($self->within_ttl($route->{ttl}, @runs)) {
        if ($route->{unknown} eq 'hold') { $self->check_hold($key, @$life) }
        else                             { $self->check_release($key, @$life) }
    }
}

# A record that has lapsed knows nothing of what was before.
sub within_ttl ($self, $ttl, @runs) {
    return \@runs if !defined $ttl;
    my @lives;
    for my $run (@runs) {
        my $last = @lives ? $lives[-1][-1] : undef;
        # An application that is too slow is not waited for.
        my $end = $last ? min(ended_by_itself($last), $last->{sent} + $self->{read_timeout}) : 0;
        push @lives, [] if !$last || $run->{sent} >= $end + $ttl - $SLACK;
        push @{ $lives[-1] }, $run;
    }
    return @lives;
}

# Whether the other could run because the store had lost the run's record. A key of
# which a record was displaced is counted by the rule that forgave the loss.
sub is_forgotten ($self, $run, $other) {
    return 1 if defined $run->{displaced} && $other->{sent} >= $run->{displaced};
    if ($self->was_cut_off($run, $other)) {
        $self->{forgotten}{ $run->{key} } = 1;
        return $self->forgive('cut off together', $run->{key});
    }
    my $excuse = $self->excuse($run, came => $other->{sent}, asked => $self->claimed_at($other),
        other => $other) or return 0;
    $self->note_displaced($run, $other) if $excuse->{loss}{how} ne 'restart';
    $self->{forgotten}{ $run->{key} } = 1;
    return $self->forgive($excuse->{rule}, $run->{key});
}

# Where nobody notices a loss, a record is not put back in the place of another's:
# who comes later meets that, or nothing. Nor is there what the record had taken
# over from.
sub note_displaced ($self, $run, $other) {
    $_->{displaced} //= $other->{sent} for grep { $_->{sent} <= $run->{sent} } $self->runs_beside($run);
}

sub check_hold ($self, $key, @runs) {
    for my $i (1 .. $#runs) {
        my $run = $runs[$i];
        for my $before (reverse @runs[0 .. $i - 1]) {
            next if is_refused($before) && $before->{answer}{t} <= $run->{sent}
                || $self->is_forgotten($before, $run);
            my $twice = $before->{does} eq 'executes' && $run->{does} eq 'executes';
            return $self->blame(1, $key, $twice ? "executed twice: $before->{id}, $run->{id}"
                : "$run->{id} ran, and nobody had said that $before->{id} did not happen", $run->{t});
        }
    }
}

sub check_release ($self, $key, @runs) {
    my @unsure;
    for my $i (0 .. $#runs) {
        my $run = $runs[$i];
        my $same = first {
            $run->{attempt} <= $_->{attempt} && !$self->is_forgotten($_, $run)
        } reverse @unsure;
        $self->blame(2, $key, "$run->{id} is not announced as more than attempt"
            . " $same->{attempt}, of $same->{id}", $run->{t}) if $same;
        for my $other (reverse @runs[0 .. $i - 1]) {
            next if !$self->is_living($other, $run) || $self->is_forgotten($other, $run);
            $self->blame(2, $key, "$run->{id} began while the owner of $other->{id} lived",
                $run->{t});
        }
        # A later refusal says nothing of what an earlier run has done, but for
        # the application's explicit word.
        push @unsure, $run if !is_refused($run) || any { !$self->is_forgotten($_, $run) } @unsure;
        @unsure = () if is_refused($run) && $run->{does} eq 'releases';
    }
}

# Whether the run's owner was at it, and able to say so, when the other began.
sub is_living ($self, $run, $other) {
    return 0 if $other->{sent} >= $self->owner_ended($run) - $WRITTEN_LATE;
    my ($from, $to) = $self->claim_time($other);
    my $lapse = $LEFT_OF_LEASE * $self->{lease};
    return none { $_->[0] + $lapse <= $to && $from <= $_->[1] + $SLACK } $self->absences($run);
}

# ---- answers: rules 3 and 4 -----------------------------------------------

sub check_answers ($self, $name) {
    my ($key) = split /\t/, $name;
    my @answers = @{ $self->{told}{$name} };
    my @good = grep { $_->{status} =~ /^2/ } @answers;
    $self->check_origin($key, $_) for @good;
    # After its TTL a key may mean something else.
    return if defined $self->{routes}{ $answers[0]{route} }{ttl} || $self->{forgotten}{$key};
    $self->check_sameness($key, @good);
    $self->check_fence($name, @good);
    $self->check_seen_again($key, @answers);
}

sub check_sameness ($self, $key, @good) {
    my @rules = (
        ['answered before stored', sub ($answer) { $self->is_unstored($answer) }],
        ['not written', sub ($answer) { $self->is_unwritten($answer) }],
        ['late outcome', sub ($answer) { $self->is_shown_before_loss($answer, @good) }],
    );
    my @kept = @good;
    for my $rule (@rules) {
        return if are_same(@kept);
        my ($name, $applies) = @$rule;
        my @left = grep { !$applies->($_) } @kept;
        $self->forgive($name, $key) if @left < @kept;
        @kept = @left;
    }
    return if are_same(@kept) || $self->is_outcome_lost($key, @kept);
    my $other = first { $_->{ident} ne $kept[0]{ident} || $_->{sha} ne $kept[0]{sha} } @kept;
    $self->blame(3, $key, 'the clients were told different things: '
        . join(', ', uniq(map { $_->{execution} // 'none' } @kept)), $other->{ended});
}

# Whether an outcome that was shown was lost, and then another ran by right.
sub is_outcome_lost ($self, $key, @answers) {
    my @runs = sort { $a->{sent} <=> $b->{sent} }
        map { $self->{runs}{ $_ // '' } // () } uniq(map { $_->{execution} } @answers);
    for my $i (1 .. $#runs) {
        my ($run, $other) = @runs[$i - 1, $i];
        my $excuse = $self->excuse($run, came => $other->{sent}, asked => $self->claimed_at($other),
            other => $other, outcome => 1) or return 0;
        $self->forgive($excuse->{rule}, $key);
    }
    return @runs > 1;
}

sub are_same (@answers) {
    my @idents = uniq(map { $_->{ident} } @answers);
    my @bodies = uniq(map { $_->{sha} } grep { $_->{complete} } @answers);
    return @idents <= 1 && @bodies <= 1;
}

# An owner that has lost its record to a successor cannot settle it any more.
sub check_fence ($self, $name, @good) {
    my ($key) = split /\t/, $name;
    for my $answer (grep { $_->{replayed} } @good) {
        my $run = $self->{runs}{ $answer->{execution} // '' } or next;
        for my $heir (@{ $self->{by_key}{$name} // [] }) {
            next if $heir->{attempt} <= $run->{attempt} || $heir->{sent} <= $run->{sent}
                || $heir->{sent} >= $answer->{t};
            if ($self->loss_of_heir($heir, $run, $answer)) {
                $self->forgive('late outcome', $key);
                next;
            }
            return $self->blame(3, $key, "$run->{id} was stored, though $heir->{id} had taken over",
                $answer->{ended});
        }
    }
}

# The loss after which the outcome of the run, as the answer shows it, could be
# stored, because the record of its successor was not there: never again if that
# had ended, else until its owner has put it back.
sub loss_of_heir ($self, $heir, $run, $answer) {
    my $excuse = $self->excuse($heir, came => $answer->{ended}, asked => ended_by_itself($run)) or return;
    return $excuse->{loss};
}

# The answer of a successor that the store has forgotten since, as the outcome
# of an earlier attempt shows.
sub is_shown_before_loss ($self, $answer, @good) {
    my $heir = $self->{runs}{ $answer->{execution} // '' } or return 0;
    for my $later (grep { $_->{replayed} && $_->{ended} > $answer->{t} } @good) {
        my $run = $self->{runs}{ $later->{execution} // '' } or next;
        next if $run->{attempt} >= $heir->{attempt} || $run->{sent} >= $heir->{sent};
        my $loss = $self->loss_of_heir($heir, $run, $later) or next;
        return 1 if $answer->{t} <= $loss->{back}
            && ended_by_itself($heir) <= $loss->{back} + $WRITTEN_LATE;
    }
    return 0;
}

# A store that does not answer does not keep a client from its response: the
# outcome is stored later, or by then the record is another's.
sub is_unstored ($self, $answer) {
    return 0 if $self->{store} ne 'redis' || $answer->{replayed} || !@{ $self->{outages} };
    my $run = $self->{runs}{ $answer->{execution} // '' } or return 0;
    return any {
        $_->[0] <= $answer->{ended} && $run->{t} <= $_->[1] + $self->{lease}
    } $self->absences($run);
}

# When the owner of an answer that was not stored at once has stored it at the latest.
sub stored_late_by ($self, $run) {
    return $self->reachable_from($run, $self->owner_ended($run), $RECONNECT) + $RECONNECT;
}

# Whether its owner had gone by then, or another had taken over.
sub has_lost_outcome ($self, $run) {
    my $by = $self->stored_late_by($run);
    return $self->is_owner_gone($run, $by) || any {
        $_->{attempt} > $run->{attempt} && $_->{sent} > $run->{sent} && $_->{sent} <= $by + $SLACK
    } $self->runs_beside($run);
}

# Whether its owner died before that time, or left a lease before it.
sub is_owner_gone ($self, $run, $by) {
    my $killed = $self->{killed}{ $run->{worker} // '' };
    return 1 if defined $killed && $killed >= $run->{t} - $SLACK && $killed <= $by;
    my $ended = $self->owner_ended($run);
    return any {
        $_->{what} =~ /^(?:quits|reloaded|upgraded)$/ && $_->{instance} == instance_of($run)
            && $_->{t} >= $run->{sent} - $SLACK && max($_->{t}, $ended) + $self->{lease} <= $by
    } @{ $self->{disturbed} };
}

# The disk failed when the run ended: replays tell what is in memory until the
# power is lost.
sub is_unwritten ($self, $answer, $until = 9e9) {
    my $run = $self->{runs}{ $answer->{execution} // '' } or return 0;
    return 0 if $self->{store} ne 'file';
    my ($end, $instance) = (ended_by_itself($run), instance_of($run));
    my $failed = any {
        ($_->[3] // '') eq 'write error' && $_->[0] <= $end + $self->{lease} && $end <= $_->[1]
    } $self->outages_of($instance);
    return $failed && any {
        $_->{what} eq 'power lost' && $_->{instance} == $instance
            && $_->{t} >= $end - $WRITTEN_LATE && $_->{t} <= $until
    } @{ $self->{disturbed} };
}

sub check_origin ($self, $key, $answer) {
    my $reason = $self->wrong_origin($answer) or return;
    $self->blame(4, $key, "an answer at $answer->{ended} $reason", $answer->{ended});
}

sub wrong_origin ($self, $answer) {
    my $id = $answer->{execution} // return 'names no execution';
    my $run = $self->{runs}{$id} or return "names $id, which is not in the ledger";
    return "is of $id, which executed nothing" if $run->{does} ne 'executes';
    return "is of $id, of another key" if $run->{key} ne $answer->{key};
    return "is of $id, of another request body" if $run->{body} ne $answer->{body};
    return "is of $id, which was answered later"
        if !$run->{answer} || $run->{answer}{t} > $answer->{ended};
    return "is of $id, but has another body"
        if $answer->{complete} && $run->{answer}{sha} ne $answer->{sha};
    return;
}

my %FORGOTTEN = map { $_ => 1 } qw(in_progress outcome_unknown);

# Held responses are stored before they are shown.
sub check_seen_again ($self, $key, @answers) {
    return if ($answers[0]{route} // '') =~ /^(?:open|after)$/;
    my @seen = sort { $a->{ended} <=> $b->{ended} } grep { $_->{status} =~ /^2/ } @answers;
    for my $after (grep { $FORGOTTEN{ $_->{code} // '' } } @answers) {
        my $seen = first {
            $_->{ended} < $after->{t} && $_->{body} eq $after->{body} && !$self->is_lost_between($key, $_, $after)
        } @seen or next;
        return $self->blame(3, $key, "was answered at $seen->{ended}, and $after->{code} at $after->{ended}",
            $after->{ended});
    }
}

sub is_lost_between ($self, $key, $seen, $after) {
    my $rule = $self->why_lost($seen, $after) or return 0;
    return $self->forgive($rule, $key);
}

sub why_lost ($self, $seen, $after) {
    my $run = $self->{runs}{ $seen->{execution} // '' } or return;
    my $excuse = $self->excuse($run, came => $after->{ended}, asked => $after->{t}, outcome => 1);
    return $excuse->{rule} if $excuse;
    return 'not written' if $self->is_unwritten($seen, $after->{ended});
    if ($self->is_unstored($seen)) {
        return 'answered before stored' if $self->has_lost_outcome($run)
            || $after->{t} <= $self->stored_late_by($run) + $self->{lease} + $SLACK;
        return 'outage too long' if $self->was_given_up({ run => $run });
    }
    return $self->is_out_of_reach($after) ? 'store out of reach' : undef;
}

# While the store is out of reach nginx may tell what it knew last.
sub is_out_of_reach ($self, $answer) {
    return $self->{store} eq 'redis' && any {
        $_->[0] <= $answer->{ended} && $answer->{t} <= $_->[1] + $RECONNECT
    } $self->outages_of($answer->{instance});
}

# ---- the end: rule 5 ------------------------------------------------------

my $CLAIM_LEFT = 'is unknown, though all its claims were refused and it was never sent on';

sub check_ends ($self) {
    my (%last, %claimed, %doubtful);
    for my $answer (@{ $self->{answers} }) {
        my $key = $answer->{key};
        my $lapses = defined $self->{routes}{ $answer->{route} }{ttl};
        $last{$key} //= undef if !$lapses;
        $last{$key} = $answer if $answer->{phase} eq 'probe';
        my $refused = ($answer->{code} // '') eq 'store_unavailable';
        $claimed{$key} = 1 if $refused;
        # Who may have claimed it and died, or died before the claim was undone.
        $doubtful{$key} = 1 if !defined $answer->{status}
            || $refused && ($self->{killed}{ $answer->{worker} } || $self->left_before_undone($answer));
    }
    $self->{orphans} = 0;
    $self->check_pending(\%last);
    for my $key (sort keys %last) {
        my $reason = $self->stuck($last{$key}, $claimed{$key}) or next;
        next if $reason eq $CLAIM_LEFT && $doubtful{$key} && $self->forgive('claim left behind', $key);
        $self->blame(5, $key, $reason);
    }
}

# A worker that was asked to leave tries to undo its claims for a lease, and is
# not there any more when the store has lost that it did. It knows of them for
# half a minute.
sub left_before_undone ($self, $answer) {
    my @left = grep {
        $_->{what} =~ /^(?:quits|reloaded|upgraded)$/ && $_->{instance} == $answer->{instance}
            && $_->{t} >= $answer->{t} - $self->{read_timeout} - $self->{lease} && $_->{t} <= $answer->{ended} + $KNOWN_FOR
    } @{ $self->{disturbed} };
    return any {
        my ($from, $to) = @$_;
        any { $to >= $answer->{t} && $from <= $_->{t} + $KNOWN_FOR } @left;
    } $self->outages_of($answer->{instance});
}

# Whoever ran it has ended, its lease has expired, and the store is there.
# Those that stay so are stuck.
sub check_pending ($self, $last) {
    my $well = max(0, map { $_->[1] } @{ $self->{outages} });
    my (%ended, %told);
    for my $run (values %{ $self->{runs} }) {
        my $end = min($self->owner_ended($run), $run->{sent} + $self->{read_timeout} + 2 * $SLACK);
        $ended{ $run->{key} } = max($ended{ $run->{key} } // 0, $end);
    }
    for my $answer (grep { $_->{phase} eq 'probe' && ($_->{code} // '') eq 'in_progress' } @{ $self->{answers} }) {
        my $since = max($well + $RECONNECT, $ended{ $answer->{key} } // 0);
        next if $answer->{t} <= $since + 2 * $self->{lease} + $SLACK
            || ($last->{ $answer->{key} }{code} // '') eq 'in_progress' || $told{ $answer->{key} }++;
        $self->blame(5, $answer->{key}, sprintf 'is pending %.1f s after its run', $answer->{t} - $since);
    }
}

sub stuck ($self, $answer, $was_refused) {
    return 'was not asked for in the end' if !$answer;
    my $code = $answer->{code} // '';
    return 'gets no answer: ' . ($answer->{error} // '?') if !defined $answer->{status};
    return if $code eq '' || $code eq 'response_not_kept';
    return "is stuck: $code" if $code ne 'outcome_unknown' || !$self->is_hold($answer->{route});
    return if !$self->is_orphan($answer);
    $self->{orphans}++;
    # A worker may have died between claim and run. But of a claim that was
    # refused nothing may stay.
    return if !$was_refused;
    return $CLAIM_LEFT;
}

# Nobody has ever seen it on its way: not the application, not the network,
# and no nginx that has lived to tell.
sub is_orphan ($self, $answer) {
    my $domain = $self->domain($answer->{route}, $answer->{life});
    return !$self->{by_key}{"$answer->{key}\t$domain"} && !$self->{seen}{ $answer->{key} }
        && !$self->{handed_on}{ $answer->{key} };
}

# ---- what is left: rules 6 and 7 ------------------------------------------

sub check_idle ($self) {
    for my $seen (@{ $self->{idle} }) {
        my ($who, $what, $is, $want) = @$seen{qw(who what is want)};
        my $wrong = $seen->{most} ? $is > $want : $is ne $want;
        $self->blame(6, $who, "$what: $is, not $want") if $wrong;
    }
}

my $TROUBLE = join '|', '\[(?:alert|emerg)\]', 'exited on signal',
    'exited with code [1-9]', '(?:Address|Leak|Thread|Memory)Sanitizer',
    'UndefinedBehaviorSanitizer', 'runtime error:', 'open socket #';

# What nginx has to say about processes that were killed is no news.
sub check_logs ($self) {
    for my $line (grep {/$TROUBLE/} @{ $self->{logs} }) {
        my ($pid) = $line =~ /(?:worker|new binary) process (\d+) exited on signal 9/
            ? $1 : $line =~ /shared memory zone "[^"]*" was locked by (\d+)/;
        next if defined $pid && $self->{killed}{$pid};
        $self->blame(7, '-', $line);
    }
}

# ---- given up: rule 8 -----------------------------------------------------

sub check_given_up ($self) {
    for my $run (values %{ $self->{runs} }) {
        my $cut = $self->nginx_left($run) // next;
        next if $self->had_to_leave($run, $cut);
        $self->blame(8, $run->{key}, "$run->{id} was given up by nginx after "
            . sprintf('%.2f s', $cut - $run->{sent}), $cut);
    }
}

# When nginx ended the exchange before its answer was there, if it did.
sub nginx_left ($self, $run) {
    return if !$run->{cut} || !defined $run->{port};
    return $run->{cut}{t} if !$run->{pair};
    my $ended = $run->{pair}{ended} or return;
    return $ended->{how} =~ /^near/ ? $ended->{t} : undef;
}

sub had_to_leave ($self, $run, $at) {
    my $killed = $self->{killed}{ $run->{worker} // '' };
    return 1 if defined $killed && $killed <= $at + $SLACK;
    my $answer = $run->{answer};
    my $came = $answer && $answer->{t} <= $at && !$self->is_held_back($run, $answer->{t});
    my $last = $came ? $answer->{t} : $run->{sent};
    # It is written down before its first byte is out.
    $last = $run->{sent} if $at - $last < 2 * $SLACK;
    # A busy application sees a request later than nginx has sent it.
    return $at - $last >= $self->{read_timeout} - 2 * $SLACK;
}

# Whether nothing passed between nginx and the application at that time.
sub is_held_back ($self, $run, $at) {
    my $instance = instance_of($run);
    return any {
        $_->{instance} == $instance && $_->{link} eq 'app'
            && $_->{t} - $SLACK <= $at && $at <= $_->{until} + $SLACK
    } @{ $self->{stalls} };
}

# ---- after a failover: rule 9 ----------------------------------------------

# Unless something else has happened to this nginx: then it is not counted.
sub check_granted ($self) {
    for my $late (@{ $self->{not_granted} }) {
        my ($from, $to) = ($late->{since}, $late->{t});
        next if any {
            $_->{instance} == $late->{instance} && $_->{t} <= $to && ($_->{until} // $_->{t}) >= $from - 4
        } @{ $self->{disturbed} };
        $self->blame(9, "nginx $late->{instance}", "no claim was granted within $late->{limit} s"
            . sprintf(' after the failover at %.4f', $from), $to);
    }
}

1;
