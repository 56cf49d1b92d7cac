package History;

# What was written down of a run of chaos, joined: which executions a key had,
# when nginx sent them, who owned them and for how long, and when an owner could
# not reach its store. Judges nothing; Forgiven.pm and Checker.pm build on it.
#
# A run is ordered by when nginx sent it: what the network holds back arrives
# later than its successor, and nobody could prevent that.

use v5.36;

use Exporter 'import';
use List::Util qw(any first max min sum0);

our @EXPORT_OK = qw($SLACK $WRITTEN_LATE $RECONNECT ended_by_itself instance_of is_refused);

# Between what happens and what is written down, on a busy machine.
our $SLACK = 0.5;

# An end is written down after it has come; a take-over from a living owner
# would come much earlier.
our $WRITTEN_LATE = 0.15;

# A store that answers again is connected to within this time: the longest pause
# between two attempts is half of the default failover_grace.
our $RECONNECT = 1;

sub new ($class, %given) {
    my $self = bless {
        (map { $_ => [] } qw(ledger answers links events idle logs)), handed_on => {},
        reassert => 30, grace => 1, budget => 8 << 20, longest_late => 600, %given,
    }, $class;
    $self->collect_events;
    $self->collect_runs;
    $self->collect_answers;
    return $self;
}

# ---- collecting -----------------------------------------------------------

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
            push @{ $self->{outages} }, [@$event{qw(t until instance how)}];
        } elsif ($what eq 'memory lost') {
            push @{ $self->{losses} }, loss_of($event);
        } elsif ($what eq 'outcomes lost') {
            push @{ $self->{losses} }, { how => 'failover', since => $event->{t} - $SLACK,
                lost => $event->{t}, back => $event->{until} };
        }
    }
}

# What was written from "since" on is gone, at "lost"; the server answers again
# from "back" on. how: "restart", which hosts notice; "flush" and "running" (only
# records of running requests), which they do not; "failover", of outcomes alone.
sub loss_of ($event) {
    return { how => $event->{how} // 'restart', since => $event->{since} // -9e9,
        lost => $event->{t}, back => $event->{until} };
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
        if ($line->{what} eq 'not settled') { delete @$run{qw(answer settled)} }
        else                                { $run->{ $line->{what} } = $line }
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

# ---- a run and its owner --------------------------------------------------

# The application itself has said that nothing happened, or an administrator.
sub is_refused ($run) { return $run->{settled} || $run->{does} =~ /^(?:refuses|releases)$/ && $run->{answer} }

sub ended_by_itself ($run) {
    my $end = $run->{end} // $run->{answer} // $run;
    return $end->{t};
}

# Its process id alone may come again.
sub worker_of ($line) { return join ' ', $line->{life} // '?', $line->{worker} // '?' }

sub instance_of ($run) { return ($run->{life} // '') =~ /^(\d+)/ ? $1 : -1 }

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

# All runs of its key in the same memory.
sub runs_beside ($self, $run) {
    return @{ $self->{by_key}{ "$run->{key}\t" . $self->domain($run->{route}, $run->{life}) } };
}

# A claim comes shortly before its run is sent, but for a worker that stood
# still in between.
sub claim_time ($self, $run) {
    my $to = $run->{sent};
    my @stops = grep { $_->[0] <= $to && $to <= $_->[1] + $SLACK }
        @{ $self->{stopped}{ $run->{worker} // '' } // [] };
    return (min($to, map { $_->[0] } @stops) - $SLACK, $to);
}

# At the earliest: this much before it was sent, unless its worker stood still.
sub claimed_at ($self, $run) {
    my ($from) = $self->claim_time($run);
    return $from + $SLACK - $WRITTEN_LATE;
}

# Whether it was claimed on a host that was cut off together with the master, before
# that host could know it, and the other by another host before it was put back.
# Known where claims do not wait for replicas.
sub was_cut_off ($self, $run, $other) {
    my $fence = $self->{fence} // return 0;
    my $instance = instance_of($run);
    return 0 if instance_of($other) == $instance;
    return any {
        $_->{what} eq 'cut off' && $_->{instance} == $instance
            && $run->{sent} >= $_->{t} - $SLACK && $run->{sent} <= $_->{t} + $fence + $SLACK
            && $other->{sent} <= $_->{until} + $self->{grace} + $RECONNECT
    } @{ $self->{disturbed} };
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

# From when on the owner could talk to its store, if it was to at some time and
# had some seconds for it.
sub reachable_from ($self, $run, $time, $seconds) {
    my $away = $self->{away}{ worker_of($run) } //= [sort { $a->[0] <=> $b->[0] }
            @{ $self->{stopped}{ $run->{worker} // '' } // [] }, $self->outages_of(instance_of($run))];
    for (@$away) {
        my ($from, $to) = @$_;
        last if $from > $time + $seconds;
        $time = $to if $to > $time;
    }
    return $time;
}

# When the outcome of a run was in the store, at the latest.
sub stored_by ($self, $run) {
    my $ended = $self->owner_ended($run);
    my $reached = $self->reachable_from($run, $ended, $WRITTEN_LATE);
    return $reached > $ended ? $reached + $RECONNECT : $ended + $WRITTEN_LATE;
}

# Of the worker of a run: when it is first known to have done something.
sub first_seen ($self, $run) {
    $self->{first_seen} //= do {
        my %first;
        for ((map { [$_, $_->{t}] } values %{ $self->{runs} }),
            map { [$_, $_->{ended}] } grep { defined $_->{status} } @{ $self->{answers} })
        {
            my ($line, $t) = @$_;
            my $worker = worker_of($line);
            $first{$worker} = min($t, $first{$worker} // $t);
        }
        \%first;
    };
    return $self->{first_seen}{ worker_of($run) } // 0;
}

# How many bytes the worker of a run has stored from one time to another.
sub stored_between ($self, $run, $from, $to) {
    $self->{stored} //= do {
        my %stored;
        note_stored(\%stored, $_, ended_by_itself($_)) for values %{ $self->{runs} };
        \%stored;
    };
    my $stored = $self->{stored}{ worker_of($run) } // {};
    return sum0(map { $stored->{$_} // 0 } slot($from) .. slot($to));
}

# stored: the bytes of each worker in each tenth of a second.
sub note_stored ($stored, $run, $ended) {
    my $size = ($run->{do} // '') =~ /\bsize=(\d+)/ ? $1 : 0;
    $stored->{ worker_of($run) }{ slot($ended) } += 300 + $size;
}

sub slot ($time) { return int($time * 10) }

# ---- telling --------------------------------------------------------------

sub counts ($self) {
    my %count = (keys => 0, requests => 0, executions => 0, refused => 0, 'further attempts' => 0,
        replays => 0, left => 0, 'no answer' => 0, orphans => $self->{orphans} // 0);
    my %asked = map { $_->{key} => 1 } @{ $self->{answers} };
    $count{keys} = keys %asked;
    my $shared = $self->shared_keys;
    $count{'shared keys'} = $shared if $shared;
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

sub shared_keys ($self) {
    my %shared = map { $_->{key} => 1 } grep { $self->domain($_->{route}, $_->{life}) eq 'all' }
        @{ $self->{answers} };
    return scalar keys %shared;
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
