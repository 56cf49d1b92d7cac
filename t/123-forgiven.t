#!/usr/bin/env perl

# What the checker of the chaos runs forgives where Redis has lost records, or a
# response was sent before it was stored, by which rule, and what it does not.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/chaos";
use Test::More;

use Planted;

# Redis is killed at 20 and answers again at 21, without what was written since
# some time. A1 is of worker 100 of nginx 0, A2 of worker 200 of nginx 1, which
# has been there all the time.
sub lost_and_again ($second, %opt) {
    my ($first, $how) = ($opt{first} // 15, $opt{how} // 'restart');
    my $back = $how eq 'restart' ? 21 : 20;
    run('B0', 5, key => 'other', life => '1.1', worker => 200);
    told('B0', 5, key => 'other', life => '1.1', instance => 1, worker => 200);
    probe('B0', 90, key => 'other');
    run('A1', $first, end => $opt{end} // $first + 0.1, $opt{do} ? (do => $opt{do}) : ());
    happened('store away', 20, until => 21) if $how eq 'restart';
    happened('memory lost', 20, until => $back, how => $how, since => $opt{since} // -100);
    run('A2', $second, life => '1.1', worker => $opt{worker} // 200);
    probe('A2', 90, life => '1.1', instance => 1);
}

sub finds_lost ($title, $second, $more = sub { }, %opt) {
    my %checker = map { $_ => delete $opt{$_} } grep { exists $opt{$_} } qw(reassert budget longest_late);
    finds(1, $title => sub { lost_and_again($second, %opt); $more->() }, store => 'redis', %checker);
}

sub forgives_lost ($rule, $title, $second, $more = sub { }, %opt) {
    my %checker = map { $_ => delete $opt{$_} } grep { exists $opt{$_} } qw(reassert budget longest_late);
    forgives($rule, $title => sub { lost_and_again($second, %opt); $more->() }, %checker);
}

finds_lost('executed again 2.5 s after Redis was back, its owner lives', 23.5);
finds_lost('executed again 50 s after Redis was back, its owner lives', 71);
finds_lost('executed again at once, before its owner could put it back', 21.2);
finds_lost('executed again beside a run that began before the loss', 23.5, sub { }, end => 30);
finds_lost('executed again, though only younger records were lost', 23.5,
    sub { happened('killed', 20.5, pids => '100', instance => 0) }, since => 18);

forgives_lost('owner died', 'its worker was killed with Redis', 50,
    sub { happened('killed', 20.5, pids => '100', instance => 0) });
forgives_lost('owner died', 'its worker was killed before', 50,
    sub { happened('killed', 17, pids => '100', instance => 0) });
finds_lost('executed again, and its worker was killed when it had put it back', 50,
    sub { happened('killed', 25, pids => '100', instance => 0) });
finds_lost('executed again, and another worker of its host was killed', 50,
    sub { happened('killed', 20.5, pids => '101', instance => 0) });

forgives_lost('owner left', 'its worker had left', 50,
    sub { happened('reloaded', 17, instance => 0) });
finds_lost('executed again, and its worker left when it had put it back', 50,
    sub { happened('quits', 25, instance => 0) });
finds_lost('executed again, and workers of another host have left', 50,
    sub { happened('quits', 17, instance => 1) });
finds_lost('executed again beside a run whose worker stays for it', 23.5,
    sub { happened('reloaded', 17, instance => 0) }, end => 30);

forgives_lost('older than reassert', 'stored 35 s before', 50, sub { }, first => -15);
finds_lost('executed again, stored 25 s before', 50, sub { }, first => -5);
finds_lost('executed again, stored 35 s before, and reassert is a minute', 50, sub { },
    first => -15, reassert => 60);
finds_lost('executed again, begun 35 s before and still running', 23.5, sub { }, first => -15, end => 30);

sub many_large ($worker) {
    run("C$_", 16, key => "c$_", worker => $worker, do => 'size=2000') for 1 .. 10;
    probe("C$_", 90, key => "c$_") for 1 .. 10;
}

forgives_lost('over budget', 'its worker has stored more since than it keeps', 50,
    sub { many_large(100) }, budget => 20_000);
finds_lost('executed again, and another worker has stored more than it keeps', 50,
    sub { many_large(101) }, budget => 20_000);

# What a worker has stored since is the same for a key, whichever keys are looked at
# together with it.
for my $case (['a large response is within the budget', 1, sub { }, do => 'size=59000'],
    ['many together are over it', 0, sub { many_large(100) }, budget => 20_000])
{
    my ($title, $found, $more, %opt) = @$case;
    my %checker = map { $_ => delete $opt{$_} } grep { exists $opt{$_} } qw(budget);
    fresh();
    lost_and_again(50, %opt);
    $more->();
    for my $count (1, 3, 140) {
        is_deeply([map { $_->{rule} } in_batches($count, %checker)->violations], [(1) x $found],
            "$title, in $count batches");
    }
}

# Redis was away for the last eight seconds of 20 when the run ended.
sub ended_while_away () { happened('store away', 12, until => 20) }

forgives_lost('outage too long', 'ended while Redis was away for longer than its worker tries', 50,
    \&ended_while_away, first => 12.5, longest_late => 5);
finds_lost('executed again, ended while Redis was away, but its worker still tries', 50,
    \&ended_while_away, first => 12.5);

forgives_lost('owner out of reach', 'its host did not reach Redis', 23,
    sub { happened('store away', 20.5, until => 24, instance => 0) });
forgives_lost('owner out of reach', 'its worker stood still', 23, sub {
    happened('stopped', 20.5, pid => 100, instance => 0);
    happened('continued', 24, pid => 100);
});
finds_lost('executed again by one that did not wait for the grace, and its host did not reach Redis', 21.2,
    sub { happened('store away', 20.5, until => 24, instance => 0) });
finds_lost('executed again, long after its host reached Redis', 26,
    sub { happened('store away', 20.5, until => 24, instance => 0) });
finds_lost('executed again, and another host did not reach Redis', 23,
    sub { happened('store away', 20.5, until => 24, instance => 2) });
finds_lost('executed again, and its host did not reach Redis long before', 23,
    sub { happened('store away', 16, until => 19, instance => 0) });

forgives_lost('claimer started', 'by a worker that has just started', 21.2,
    sub { happened('reloaded', 20.9, instance => 1) }, worker => 201);
finds_lost('executed again, by a worker that was there before', 21.2,
    sub { happened('reloaded', 20.9, instance => 1) });
finds_lost('executed again, by a worker that was not started, only idle', 21.2, sub { }, worker => 201);
finds_lost('executed again, by a new worker when the owner had put it back', 23,
    sub { happened('reloaded', 20.9, instance => 1) }, worker => 201);

# Lost, put back, and lost again: "since" of the second loss is after the run.
finds_lost('executed again after a second loss', 50,
    sub { happened('memory lost', 30, until => 31, since => 21.5) });
forgives_lost('owner died', 'its worker was killed with the second loss', 50, sub {
    happened('memory lost', 30, until => 31, since => 21.5);
    happened('killed', 29, pids => '100', instance => 0);
});
finds_lost('executed again, its worker was killed and the second loss was of younger records', 50, sub {
    happened('memory lost', 30, until => 31, since => 28);
    happened('killed', 29, pids => '100', instance => 0);
});

forgives_lost('flushed', 'FLUSHALL after it had ended', 50, sub { }, how => 'flush');
forgives_lost('before renewal', 'FLUSHALL while it ran, before its next renewal', 20.2, sub { },
    how => 'flush', end => 30);
finds_lost('executed again, after FLUSHALL and the next renewal', 21, sub { }, how => 'flush', end => 30);
finds_lost('executed again, only records of running requests were lost', 50, sub { }, how => 'running');
forgives_lost('before renewal', 'its running record was lost, before its next renewal', 20.2, sub { },
    how => 'running', end => 30);
finds_lost('executed again, its running record was lost, after the next renewal', 21, sub { },
    how => 'running', end => 30);

sub killed_at ($t) { happened('killed', $t, pids => '100', instance => 0) }

forgives_lost('owner died', 'its running record was lost, a moment after its worker was killed', 50,
    sub { killed_at(19.5) }, how => 'running', end => 30);
finds_lost('executed again, its worker was killed and its lease had expired', 50,
    sub { killed_at(18) }, how => 'running', end => 30);

# nginx 0 is cut off together with the master, and knows it after 0.6 s.
sub cut_off_at ($t, $first, %second) {
    happened('cut off', $t, instance => 0, until => $t + 4);
    run('A1', $first);
    run('A2', $second{at} // 25, life => $second{life} // '1.1', worker => 200);
    probe('A2', 90, life => '1.1', instance => 1);
}

forgives('cut off together', 'claimed on a host that did not know yet that it was cut off' => sub {
    cut_off_at(20, 20.4);
}, fence => 0.6);
finds(1, 'claimed on a host that had to know that it was cut off' => sub {
    cut_off_at(20, 22);
}, store => 'redis', fence => 0.6);
finds(1, 'claimed long before its host was cut off' => sub {
    cut_off_at(20, 18);
}, store => 'redis', fence => 0.6);
finds(1, 'claimed again on the host that was cut off' => sub {
    cut_off_at(20, 20.4, life => '0.1');
}, store => 'redis', fence => 0.6);
finds(1, 'claimed again long after the host reached the others' => sub {
    cut_off_at(20, 20.4, at => 26.5);
}, store => 'redis', fence => 0.6);
finds(1, 'claimed on a host that was cut off, though claims waited for all replicas' => sub {
    cut_off_at(20, 20.4);
}, store => 'redis');

# ... and what clients see of it (rule 3).
sub outcome_lost ($lost, %opt) {
    run('A1', 15);
    told('A1', 15);
    happened('outcomes lost', $lost, until => 19);
    refused('outcome_unknown', $opt{asked} // 25);
    refused('outcome_unknown', 90, phase => 'probe');
}

forgives('owner died', 'an outcome that was not copied, of a host that died' => sub {
    outcome_lost(15);
    happened('killed', 16, pids => '100', instance => 0);
});
forgives('outcome not copied', 'an outcome that was not copied, before it is put back' => sub {
    run('A1', 15);
    told('A1', 15);
    happened('outcomes lost', 15, until => 19);
    refused('outcome_unknown', 18);
    probe('A1');
});
finds(3, 'an outcome that was not copied, though its host lives' => sub { outcome_lost(15) },
    store => 'redis');
finds(3, 'an outcome that was stored long before a failover' => sub {
    outcome_lost(17);
    happened('killed', 16, pids => '100', instance => 0);
}, store => 'redis');

# ---- an outcome that was shown before it was stored ------------------------

# The client has its answer at 10.6, and the store was away for a moment.
sub answered_then_unknown (@asked) {
    run('A1', 10, end => 10.5);
    told('A1', 10, ended => 10.6);
    happened('store away', 10.2, until => 10.3);
    refused('outcome_unknown', $_) for @asked;
}

finds(3, 'an answer that the store did not take at once, and that is never stored' => sub {
    answered_then_unknown(40);
    refused('outcome_unknown', 90, phase => 'probe');
}, store => 'redis');

finds(3, '... that was replayed, and then not known' => sub {
    answered_then_unknown(12.1);
    told('A1', 11.9, replayed => 1, ended => 12);
    probe('A1');
}, store => 'redis');

forgives('answered before stored', 'an answer that is stored late' => sub {
    answered_then_unknown(12);
    probe('A1');
});

forgives('answered before stored', 'an answer that was not stored when its worker was killed' => sub {
    answered_then_unknown(40);
    happened('killed', 10.7, pids => '100', instance => 0);
    refused('outcome_unknown', 90, phase => 'probe');
});

finds(3, '... long before its worker was killed' => sub {
    answered_then_unknown(40);
    happened('killed', 20, pids => '100', instance => 0);
    refused('outcome_unknown', 90, phase => 'probe');
}, store => 'redis');

finds(3, '... though its worker had a lease for that before it left' => sub {
    answered_then_unknown(40);
    happened('quits', 10.7, instance => 0);
    refused('outcome_unknown', 90, phase => 'probe');
}, store => 'redis');

forgives('answered before stored', 'an answer of a worker that has left before the store was there' => sub {
    run('A1', 10, end => 10.5);
    told('A1', 10, ended => 10.9);
    happened('store away', 10.2, until => 15);
    happened('quits', 10.7, instance => 0);
    refused('outcome_unknown', 90, phase => 'probe');
});

forgives('outage too long', 'an answer that could not be stored for longer than its worker tries' => sub {
    run('A1', 10, end => 10.5);
    told('A1', 10, ended => 10.9);
    happened('store away', 10.2, until => 20);
    refused('outcome_unknown', 90, phase => 'probe');
}, longest_late => 5);

forgives('store out of reach', 'seen, and then in progress for one who waits while the store is away' => sub {
    run('A1', 10);
    told('A1', 10);
    happened('store away', 20, until => 22);
    refused('in_progress', 20.5, ended => 22);
    probe('A1');
});

# The store is away until 13, and the second takes over then.
sub taken_over ($second) {
    free_run('A1', 10, end => 12);
    told('A1', 10, route => 'free', ended => 12.3);
    happened('store away', 10.2, until => 13, instance => 0);
    free_run('A2', $second, attempt => 2, worker => 101, life => '1.1', end => $second + 5);
    refused('in_progress', $second + 4, route => 'free', life => '1.1', instance => 1);
    probe('A2', 90, route => 'free', life => '1.1', instance => 1);
}

forgives('answered before stored', 'an answer that was not stored when its successor began' => sub {
    taken_over(12.5);
});
finds(3, 'an answer that could be stored long before its successor began' => sub {
    taken_over(20);
}, store => 'redis');

# On a file: what ended while the disk failed is lost if the power is lost then.
sub lost_with_power ($away, $power, %opt) {
    run('A1', 10);
    told('A1', 10);
    told('A1', 11, replayed => 1);
    happened('store away', $away, until => $away + 2, instance => 0, how => $opt{how} // 'write error');
    happened('power lost', $power, instance => $opt{instance} // 0) if $power;
    refused('outcome_unknown', 30, phase => 'probe');
}

forgives('not written', 'a response that was replayed, then lost with the power, of a run that ended while '
    . 'the disk failed' => sub { lost_with_power(9.5, 12) }, store => 'file');
finds(3, '... long before the disk failed' => sub { lost_with_power(13, 14) }, store => 'file');
finds(3, '... and the power was never lost' => sub { lost_with_power(9.5, 0) }, store => 'file');
finds(3, '... and the power was lost before' => sub { lost_with_power(9.5, 9.7) }, store => 'file');
finds(3, '... and the power was lost after it was not known any more' => sub { lost_with_power(9.5, 40) },
    store => 'file');
finds(3, '... and another machine lost its power' => sub { lost_with_power(9.5, 12, instance => 1) },
    store => 'file');
finds(3, '... while the disk only stood still' => sub { lost_with_power(9.5, 12, how => 'none') }, store => 'file');

# ---- the rules --------------------------------------------------------------

subtest 'a run in which much is forgiven says little' => sub {
    for my $of (20, 80) {
        fresh();
        lost_and_again(50);
        happened('killed', 20.5, pids => '100', instance => 0);
        for my $i (1 .. $of) {
            run("C$i", 40, key => "c$i");
            probe("C$i", 90, key => "c$i");
        }
        my $checker = checker(store => 'redis');
        is_deeply([$checker->violations], [], 'no violation');
        my ($used) = $checker->forgiven;
        is($used->{keys}, 1, 'one key is forgiven');
        cmp_ok(abs($used->{share} - 1 / ($of + 2)), '<', 0.001, 'its share of all keys');
        is(scalar(() = $checker->says_little), $of < 50 ? 1 : 0, "1 of $of keys");
        is($checker->lost_and_asked, 2, 'records of two keys were lost, and these were asked for again');
    }
};

# A page as it reads, without its markup.
sub text_of ($page) {
    my $path = "$FindBin::Bin/../docs/$page";
    open my $in, '<', $path or die "$path: $!\n";
    my $text = do { local $/; readline $in };
    $text =~ s/\[([^][]*)\]\([^()]*\)/$1/g;
    return $text =~ s/[`*]//gr =~ s/\s+/ /gr;
}

subtest 'each rule rests on a sentence that stands in the documentation' => sub {
    for my $rule (Forgiven::rules()) {
        my ($page, $sentence) = $rule->{says} =~ /^([\w\/]+\.md): "(.+)"$/;
        ok(defined $sentence && index(text_of($page), $sentence) >= 0, $rule->{name}) or diag($rule->{says});
    }
};

# Redis loses records of running requests at 10.5, and nobody notices.
sub second_lost ($third, $attempt) {
    free_run('A1', 9, answer => undef);
    free_run('A2', 10, attempt => 2, end => 12);
    happened('memory lost', 10.5, until => 10.5, how => 'running');
    free_run('A3', $third, attempt => $attempt, worker => 101, end => $third + 0.1);
    probe('A3', 90, route => 'free');
}

forgives('before renewal', 'a first attempt, as the record of the second was lost' => sub {
    second_lost(10.6, 1);
});

finds(2, 'a first attempt, though the second had put its record back' => sub {
    second_lost(13, 1);
}, store => 'redis');

forgives('before renewal', 'a first attempt after a refusal of one that began after a loss' => sub {
    free_run('A1', 10, end => 12);
    happened('memory lost', 10.5, until => 10.5, how => 'running');
    free_run('A2', 10.6, does => 'refuses', answer => 500, end => 13, worker => 101);
    free_run('A3', 13.1, worker => 101);
    ended_free('A3');
});

done_testing();
