package Checker;

# Decides from what was written down whether the promises were kept.
#
#   my $checker = Checker->new(routes => \%ROUTES, store => 'memory',
#       lease => 1, read_timeout => 4, ledger => [...], answers => [...],
#       links => [...], events => [...], idle => [...], logs => [...]);
#   for ($checker->violations) { print "$_->{rule}: $_->{text}\n" }
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
# Where Redis loses its memory (rules 1 to 3), what had ended is forgotten, and
# its key may run again. What still runs is put back by its owner, at its next
# renewal or its end: only until then may a retry run, or if its worker was asked
# to leave and could not store it for a lease. Where nobody notices the loss
# (FLUSHALL), the late outcome of an earlier attempt takes the place of
# a later one that is forgotten, and is what all are told from then on.
#
# A run is ordered by when nginx sent it: what the network holds back arrives
# later than its successor, and nobody could prevent that.

use v5.36;

use List::Util qw(first max min none any uniq);

# Between what happens and what is written down, on a busy machine.
my $SLACK = 0.5;

# An end is written down after it has come; a take-over from a living owner
# would come much earlier.
my $WRITTEN_LATE = 0.15;

# Renewed every third of it, so this much of a lease is left at least.
my $LEFT_OF_LEASE = 0.6;

# A store that is there again is not reached at once.
my $RECONNECT = 1;

# What a worker has settled it puts back for so long.
my $KNOWN_FOR = 30;

sub new ($class, %given) {
    my $self = bless {
        (map { $_ => [] } qw(ledger answers links events idle logs)), handed_on => {}, %given,
    }, $class;
    $self->{violations} = [];
    $self->collect_events;
    $self->collect_runs;
    $self->collect_answers;
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

# ---- what is known --------------------------------------------------------

# Whose memory a record is in: that of one life of an nginx, or of all its lives
# where it is in a file, or all share it.
sub domain ($self, $route, $life) {
    my $local = $self->{routes}{$route}{local};
    return 'all' if $self->{store} eq 'redis' && !$local;
    return $life // '?' if $self->{store} ne 'file' || $local;
    return ($life // '?') =~ s/\..*//r;
}

sub collect_events ($self) {
    $self->{$_} = {} for qw(killed stopped app_killed);
    $self->{$_} = [] for qw(outages stalls losses not_granted disturbed);
    for my $event (sort { $a->{t} <=> $b->{t} } @{ $self->{events} }) {
        my $what = $event->{what};
        push @{ $self->{not_granted} }, $event if $what eq 'not granted';
        push @{ $self->{disturbed} }, $event if defined $event->{instance} && $what !~ /granted/;
        if ($what eq 'killed') {
            $self->{killed}{$_} = $event->{t} for split ' ', $event->{pids};
        } elsif ($what eq 'stopped') {
            push @{ $self->{stopped}{ $event->{pid} } }, [$event->{t}, 9e9];
        } elsif ($what eq 'continued') {
            my $last = $self->{stopped}{ $event->{pid} } or next;
            $last->[-1][1] = $event->{t};
        } elsif ($what eq 'app killed') {
            $self->{app_killed}{ $event->{app} } = $event->{t};
        } elsif ($what eq 'network stands still') {
            push @{ $self->{stalls} }, $event;
        } elsif ($what eq 'store away') {
            push @{ $self->{outages} }, [@$event{qw(t until)}, $event->{instance}];
        } elsif ($what eq 'memory lost') {
            push @{ $self->{losses} }, [@$event{qw(t until unnoticed)}];
        } elsif ($what eq 'outcomes lost') {
            push @{ $self->{outcome_losses} }, [@$event{qw(t until)}];
        }
    }
}

sub collect_runs ($self) {
    my (%runs, %by_key);
    for my $line (@{ $self->{ledger} }) {
        if ($line->{what} eq 'run') {
            my $run = $runs{ $line->{id} } = { %$line };
            $run->{route} =~ s{^/}{};
            next;
        }
        my $run = $runs{ $line->{id} } or next;
        $run->{ $line->{what} } = $line;
    }
    $self->{runs} = \%runs;
    $self->join_links;
    for my $run (values %runs) {
        my $domain = $self->domain($run->{route}, $run->{life});
        push @{ $by_key{"$run->{key}\t$domain"} }, $run;
    }
    for my $runs (values %by_key) {
        @$runs = sort { $a->{sent} <=> $b->{sent} } @$runs;
    }
    $self->{by_key} = \%by_key;
}

# What the network saw of a run: when it was sent, and who ended it first.
sub join_links ($self) {
    my (%seen, %by_port);
    for my $line (@{ $self->{links} }) {
        push @{ $self->{outages} }, [@$line{qw(t until instance)}]
            if $line->{what} eq 'late' && $self->{store} eq 'redis';
        next if $line->{link} ne 'app';
        if ($line->{what} eq 'seen') {
            $seen{ $line->{key} }++;
            push @{ $by_port{ $line->{port} } }, { seen => $line };
        } elsif (my $pair = $by_port{ $line->{port} }) {
            $pair->[-1]{ended} //= $line;
        }
    }
    # A connection that was reset before it was asked has no port any more: its
    # run is the one that is left over.
    my @pairs = sort { $b->{seen}{t} <=> $a->{seen}{t} } map {@$_} values %by_port;
    for my $run (sort { defined $b->{port} <=> defined $a->{port} } values %{ $self->{runs} }) {
        my $pair = first { $_->{seen}{key} eq $run->{key} && $_->{seen}{t} <= $run->{t} }
            defined $run->{port} ? reverse @{ $by_port{ $run->{port} } // [] }
            : grep { !$_->{run} } @pairs;
        $pair->{run} = 1 if $pair;
        $run->{pair} = $pair;
        $run->{sent} = $run->{pair} ? $run->{pair}{seen}{t} : $run->{t};
    }
    $self->{seen} = \%seen;
}

sub collect_answers ($self) {
    my %told;
    for my $answer (@{ $self->{answers} }) {
        next if !defined $answer->{status};
        my $domain = $self->domain($answer->{route}, $answer->{life});
        push @{ $told{"$answer->{key}\t$domain"} }, $answer;
    }
    $self->{told} = \%told;
}

sub is_hold ($self, $route) { return $self->{routes}{$route}{unknown} eq 'hold' }

# The application itself has said that nothing happened.
sub is_refused ($run) { return $run->{does} =~ /^(?:refuses|releases)$/ && $run->{answer} }

# ---- runs: rules 1 and 2 --------------------------------------------------

sub check_runs ($self, $name) {
    my ($key, $domain) = split /\t/, $name;
    my @runs = @{ $self->{by_key}{$name} };
    my $route = $self->{routes}{ $runs[0]{route} };
    my @lives = $domain eq 'all' ? $self->within_memory(@runs) : $self->within_ttl($route->{ttl}, @runs);
    $self->{forgotten}{$key} = 1 if $domain eq 'all' && @lives > 1;
    for my $life (@lives) {
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

# Nor does a store that has lost its memory.
sub within_memory ($self, @runs) {
    my @lives;
    for my $run (@runs) {
        push @lives, [] if !@lives || none { !$self->is_forgotten($_, $run) } @{ $lives[-1] };
        push @{ $lives[-1] }, $run;
    }
    return @lives;
}

# Whether the other could be claimed because the store had lost the run.
sub is_forgotten ($self, $run, $other) {
    my ($first, $second) = map { $self->claimed_at($_) } $run, $other;
    return any {
        my ($lost, $back) = @$_;
        $first <= $back && $other->{sent} >= $lost - $WRITTEN_LATE
            && $second <= $self->put_back_by($run, $lost, $back);
    } @{ $self->{losses} };
}

# At the earliest: this much before it was sent, unless its worker stood still.
sub claimed_at ($self, $run) {
    my ($from) = $self->claim_time($run);
    return $from + $SLACK - $WRITTEN_LATE;
}

# When the owner has put its record back, at the latest.
sub put_back_by ($self, $run, $lost, $back) {
    my $ended = $self->owner_ended($run);
    return 9e9 if $ended <= $lost + $WRITTEN_LATE;
    my $by = min($back + $self->{lease} / 3, max($ended, $back)) + $WRITTEN_LATE;
    for my $absence (sort { $a->[0] <=> $b->[0] } $self->absences($run)) {
        my ($from, $to) = @$absence;
        $by = max($by, $to + $self->{lease} / 3 + $WRITTEN_LATE)
            if $from <= $by && $to >= $lost - $SLACK;
    }
    my $killed = $self->{killed}{ $run->{worker} // '' };
    return 9e9 if $self->gives_up($run, $ended, $by);
    return defined $killed && $killed >= $run->{t} - $SLACK && $killed <= $by ? 9e9 : $by;
}

# A worker that was asked to leave keeps what it could not store for a lease.
sub gives_up ($self, $run, $ended, $by) {
    return $by >= $ended + $self->{lease} && any {
        $_->{what} =~ /^(?:quits|reloaded|upgraded)$/ && $_->{instance} == instance_of($run)
            && $_->{t} >= $run->{sent} - $SLACK && $_->{t} <= $by
    } @{ $self->{disturbed} };
}

sub ended_by_itself ($run) {
    my $end = $run->{end} // $run->{answer} // $run;
    return $end->{t};
}

sub check_hold ($self, $key, @runs) {
    my @executed = grep { $_->{does} eq 'executes' } @runs;
    return $self->blame(1, $key, 'executed ' . @executed . ' times: '
        . join(', ', map { $_->{id} } @executed), $executed[1]{t}) if @executed > 1;
    for my $i (1 .. $#runs) {
        my ($before, $run) = @runs[$i - 1, $i];
        next if is_refused($before) && $before->{answer}{t} <= $run->{sent};
        $self->blame(1, $key, "$run->{id} ran, and nobody had said that $before->{id}"
            . ' did not happen', $run->{t});
    }
}

sub check_release ($self, $key, @runs) {
    my $unsure;
    for my $i (0 .. $#runs) {
        my $run = $runs[$i];
        $self->blame(2, $key, "$run->{id} is not announced as more than attempt"
            . " $unsure->{attempt}, of $unsure->{id}", $run->{t})
            if $unsure && $run->{attempt} <= $unsure->{attempt};
        for my $other (@runs[0 .. $i - 1]) {
            $self->blame(2, $key, "$run->{id} began while the owner of $other->{id} lived",
                $run->{t}) if $self->is_living($other, $run);
        }
        # A later refusal says nothing of what an earlier run has done, but for
        # the application's explicit word.
        $unsure = $run if $unsure || !is_refused($run);
        $unsure = undef if is_refused($run) && $run->{does} eq 'releases';
    }
}

# Whether the run's owner was at it, and able to say so, when the other began.
sub is_living ($self, $run, $other) {
    return 0 if $other->{sent} >= $self->owner_ended($run) - $WRITTEN_LATE;
    my ($from, $to) = $self->claim_time($other);
    my $lapse = $LEFT_OF_LEASE * $self->{lease};
    return none { $_->[0] + $lapse <= $to && $from <= $_->[1] + $SLACK } $self->absences($run);
}

# When the owner of a run no longer was one, whatever the reason.
sub owner_ended ($self, $run) {
    my $killed = $self->{killed}{ $run->{worker} // '' };
    my $link = $run->{pair} ? $run->{pair}{ended} : $run->{cut};
    return min(9e9, map { $_->{t} } grep {defined} $run->{end}, $link,
        defined $killed && $killed >= $run->{t} - $SLACK ? { t => $killed } : undef,
        app_death($self, $run));
}

sub app_death ($self, $run) {
    my $killed = $self->{app_killed}{ $run->{app} // '' };
    return defined $killed ? { t => $killed } : undef;
}

# A claim comes shortly before its run is sent, but for a worker that stood
# still in between.
sub claim_time ($self, $run) {
    my $to = $run->{sent};
    my @stops = grep { $_->[0] <= $to && $to <= $_->[1] + $SLACK }
        @{ $self->{stopped}{ $run->{worker} // '' } // [] };
    return (min($to, map { $_->[0] } @stops) - $SLACK, $to);
}

# Times in which the owner could not renew: it stood still, or its store was
# out of reach.
sub absences ($self, $run) {
    return @{ $self->{stopped}{ $run->{worker} // '' } // [] },
        map { [$_->[0], $_->[1] + $RECONNECT] } $self->outages_of(instance_of($run));
}

sub outages_of ($self, $instance) {
    return grep { !defined $_->[2] || $_->[2] == $instance } @{ $self->{outages} };
}

sub instance_of ($run) { return ($run->{life} // '') =~ /^(\d+)/ ? $1 : -1 }

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
    my @kept = grep { !$self->is_unstored($_) && !$self->is_shown_before_loss($_, @good) } @good;
    my @idents = uniq(map { $_->{ident} } @kept);
    my @bodies = uniq(map { $_->{sha} } grep { $_->{complete} } @kept);
    return if @idents <= 1 && @bodies <= 1;
    my $other = first { $_->{ident} ne $kept[0]{ident} || $_->{sha} ne $kept[0]{sha} } @kept;
    $self->blame(3, $key, 'the clients were told different things: '
        . join(', ', uniq(map { $_->{execution} // 'none' } @kept)), $other->{ended});
}

# An owner that has lost its record to a successor cannot settle it any more.
sub check_fence ($self, $name, @good) {
    my ($key) = split /\t/, $name;
    for my $answer (grep { $_->{replayed} } @good) {
        my $run = $self->{runs}{ $answer->{execution} // '' } or next;
        my $heir = first {
            $_->{attempt} > $run->{attempt} && $_->{sent} > $run->{sent}
                && $_->{sent} < $answer->{t} && !$self->loss_of_heir($_, $run, $answer)
        } @{ $self->{by_key}{$name} // [] };
        next if !$heir;
        return $self->blame(3, $key, "$run->{id} was stored, though $heir->{id} had taken over",
            $answer->{ended});
    }
}

# The loss after which the outcome of the run, as the answer shows it, could be
# stored, because the record of its successor was not there: never again if that
# had ended, else until its owner has put it back.
sub loss_of_heir ($self, $heir, $run, $answer) {
    return first {
        my ($lost, $back, $unnoticed) = @$_;
        $unnoticed && $self->claimed_at($heir) <= $back && $answer->{ended} >= $lost
            && ended_by_itself($run) <= $self->put_back_by($heir, $lost, $back);
    } @{ $self->{losses} };
}

# The answer of a successor that the store has forgotten since, as the outcome
# of an earlier attempt shows.
sub is_shown_before_loss ($self, $answer, @good) {
    my $heir = $self->{runs}{ $answer->{execution} // '' } or return 0;
    for my $later (grep { $_->{replayed} && $_->{ended} > $answer->{t} } @good) {
        my $run = $self->{runs}{ $later->{execution} // '' } or next;
        next if $run->{attempt} >= $heir->{attempt} || $run->{sent} >= $heir->{sent};
        my $loss = $self->loss_of_heir($heir, $run, $later) or next;
        return 1 if $answer->{t} <= $loss->[1] && ended_by_itself($heir) <= $loss->[1] + $WRITTEN_LATE;
    }
    return 0;
}

# A store that does not answer does not keep a client from its response: the
# outcome is stored later, or by then the record is another's.
sub is_unstored ($self, $answer) {
    return 0 if $answer->{replayed} || !@{ $self->{outages} };
    my $run = $self->{runs}{ $answer->{execution} // '' } or return 0;
    return any {
        $_->[0] <= $answer->{ended} && $run->{t} <= $_->[1] + $self->{lease}
    } $self->absences($run);
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

# Held responses are stored before they are shown. While the store is out of
# reach nginx may tell what it knew last.
sub check_seen_again ($self, $key, @answers) {
    return if ($answers[0]{route} // '') eq 'open';
    my $seen = first { !$self->is_unstored($_) }
        sort { $a->{ended} <=> $b->{ended} } grep { $_->{status} =~ /^2/ } @answers or return;
    my $after = first {
        $_->{t} > $seen->{ended} && $_->{body} eq $seen->{body}
            && $FORGOTTEN{ $_->{code} // '' } && !$self->is_out_of_reach($_)
            && !$self->is_lost_between($seen, $_)
    } @answers or return;
    $self->blame(3, $key, "was answered at $seen->{ended}, and $after->{code} at $after->{ended}",
        $after->{ended});
}

sub is_lost_between ($self, $seen, $after) {
    return any { $_->[0] <= $after->{ended} && $seen->{t} <= $_->[1] } @{ $self->{losses} },
        @{ $self->{outcome_losses} };
}

sub is_out_of_reach ($self, $answer) {
    return any { $_->[0] <= $answer->{ended} && $answer->{t} <= $_->[1] + $RECONNECT }
        $self->outages_of($answer->{instance});
}

# ---- the end: rule 5 ------------------------------------------------------

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
            || $refused && ($self->{killed}{ $answer->{worker} } || $self->has_left($answer));
    }
    $self->{orphans} = 0;
    $self->check_pending(\%last);
    for my $key (sort keys %last) {
        my $reason = $self->stuck($last{$key}, $claimed{$key} && !$doubtful{$key}) or next;
        $self->blame(5, $key, $reason);
    }
}

# A worker that was asked to leave tries to undo its claims for a lease, and is
# not there any more when the store has lost that it did. It knows of them for
# half a minute.
sub has_left ($self, $answer) {
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
    return 'is unknown, though all its claims were refused and it was never sent on';
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

# ---- telling --------------------------------------------------------------

sub counts ($self) {
    my %count = (keys => 0, requests => 0, executions => 0, refused => 0, 'further attempts' => 0,
        replays => 0, left => 0, 'no answer' => 0, orphans => $self->{orphans} // 0);
    my %asked = map { $_->{key} => 1 } @{ $self->{answers} };
    $count{keys} = keys %asked;
    my %shared = map { $_->{key} => 1 } grep { $self->domain($_->{route}, $_->{life}) eq 'all' } @{ $self->{answers} };
    $count{'shared keys'} = keys %shared if %shared;
    for my $run (grep { $asked{ $_->{key} } } values %{ $self->{runs} }) {
        $count{ $run->{does} eq 'executes' ? 'executions' : 'refused' }++;
        $count{'further attempts'}++ if ($run->{attempt} // 1) > 1;
    }
    for my $answer (@{ $self->{answers} }) {
        $count{requests}++;
        $count{left}++ if defined $answer->{left};
        $count{'no answer'}++ if defined $answer->{error};
        $count{replays}++ if $answer->{replayed};
        $count{"code $answer->{code}"}++ if defined $answer->{code};
    }
    return \%count;
}

# All that is known of a key, as it happened.
sub history_of ($self, $key) {
    my @lines = map { +{ %$_, at => $_->{t}, from => 'ledger' } }
        grep { $_->{key} eq $key } @{ $self->{ledger} };
    push @lines, map { +{ %$_, at => $_->{t}, from => 'network' } }
        grep { ($_->{key} // '') eq $key } @{ $self->{links} };
    push @lines, map { +{ %$_, at => $_->{t}, from => 'client' } }
        grep { $_->{key} eq $key } @{ $self->{answers} };
    my @parts;
    for my $line (sort { $a->{at} <=> $b->{at} } @lines) {
        my @fields = map {"$_=$line->{$_}"} grep { !/^(?:at|from|t|key|route)$/ } sort keys %$line;
        push @parts, sprintf '%.4f %-7s %s', $line->{at}, $line->{from}, join ' ', @fields;
    }
    return @parts;
}

1;
