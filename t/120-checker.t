#!/usr/bin/env perl

# The checker of the chaos runs finds what is planted, rule by rule, and does
# not cry wolf.

use v5.36;

use FindBin;
use lib "$FindBin::Bin/chaos";
use Test::More;

use Nemesis;
use Planted;

# ---- rule 1 ---------------------------------------------------------------

passes('one run, its answer and a replay' => sub {
    run('A1', 10);
    told('A1', 10);
    told('A1', 11, replayed => 1);
    probe('A1');
});

passes('run again when the record of a run that took too long has expired' => sub {
    run('A1', 10, key => 'small', route => 'small', end => 22);
    run('A2', 25, key => 'small', route => 'small');
});

finds(1, 'executed twice under hold' => sub {
    run('A1', 10);
    run('A2', 20);
    told('A1', 10);
    probe('A1');
});

finds(1, 'run again after a run of which nothing is known' => sub {
    run('A1', 10, does => 'unread', answer => undef);
    run('A2', 20);
    told('A2', 20);
    probe('A2');
});

finds(1, 'run again before the first has refused' => sub {
    run('A1', 10, does => 'refuses', end => 12, answer => 500);
    run('A2', 11);
    told('A2', 11);
    probe('A2');
});

finds(1, 'run again after the application died on it' => sub {
    run('A1', 10, end => undef);
    happened('app killed', 10.05, app => 'B1');
    run('A2', 20);
    told('A2', 20);
    probe('A2');
});

passes('run again after a refusal' => sub {
    run('A1', 10, does => 'refuses', answer => 500);
    run('A2', 11);
    told('A2', 11);
    probe('A2');
});

passes('executed in each life of a memory store' => sub {
    run('A1', 10);
    run('A2', 20, life => '0.2');
    told('A1', 10);
    probe('A2', 90, life => '0.2');
});

finds(1, 'executed in two lives of a memory store on a file' => sub {
    run('A1', 10);
    run('A2', 20, life => '0.2');
    told('A1', 10);
    probe('A1', 90, life => '0.2');
}, store => 'file');

passes('replayed in the next life of a memory store on a file' => sub {
    run('A1', 10);
    told('A1', 10);
    probe('A1', 90, life => '0.2');
}, store => 'file');

finds(1, 'executed in two lives, where all share a store' => sub {
    run('A1', 10);
    run('A2', 20, life => '0.2');
    told('A2', 20, life => '0.2');
    probe('A2');
}, store => 'redis');

passes('executed again after its TTL' => sub {
    run('A1', 10, route => 'small');
    run('A2', 17, route => 'small');
    told('A1', 10, route => 'small');
});

finds(1, 'executed again before its TTL' => sub {
    run('A1', 10, route => 'small');
    run('A2', 14, route => 'small');
    told('A1', 10, route => 'small');
});

# The store is away for some seconds, and comes back without its records.
sub forgotten ($away, $end) {
    run('A1', 10, end => $end);
    told('A1', 10, ended => $end + 0.1);
    happened('store away', 10.3, until => 10 + $away);
    happened('memory lost', 10.3, until => 10 + $away);
    run('A2', 20, life => '1.1', worker => 101);
    probe('A2', 90, life => '1.1');
}

finds(1, 'executed again, though its worker could put its outcome back' => sub {
    forgotten(3, 10.8);
}, store => 'redis');

finds(1, 'executed again, though its worker had the time for that before it left' => sub {
    forgotten(0.5, 13);
    happened('reloaded', 10.2, instance => 0);
}, store => 'redis');

passes('executed again, as its worker had left before the store was there' => sub {
    forgotten(3, 10.8);
    happened('reloaded', 10.2, instance => 0);
}, store => 'redis');

# An administrator has said that nothing was executed.
sub settled ($id, $t) {
    push @{ $history{ledger} }, { what => 'answer', id => $id, key => 'k', t => $t, status => 0, sha => '' },
        { what => 'settled', id => $id, key => 'k', t => $t };
}

passes('a run that was not executed, as an administrator said, and another' => sub {
    run('A1', 10, does => 'unread', answer => undef);
    settled('A1', 13);
    run('A2', 14);
    probe('A2');
});

finds(1, 'another run, though the store refused what the administrator said' => sub {
    run('A1', 10, does => 'unread', answer => undef);
    settled('A1', 13);
    push @{ $history{ledger} }, { what => 'not settled', id => 'A1', key => 'k', t => 13.1 };
    run('A2', 14);
    probe('A2');
});

finds(1, 'another run before the administrator said so' => sub {
    run('A1', 10, does => 'unread', answer => undef);
    run('A2', 12);
    settled('A1', 13);
    probe('A2');
});

# ---- rule 2 ---------------------------------------------------------------

finds(2, 'a further run that is not announced' => sub {
    free_run('A1', 10, answer => undef);
    free_run('A2', 20, attempt => 1);
    ended_free('A2');
});

finds(2, 'a further run that is not announced, after a refused one between' => sub {
    free_run('A1', 10, answer => undef);
    free_run('A2', 20, attempt => 2, does => 'refuses', answer => 500);
    free_run('A3', 30, attempt => 1);
    ended_free('A3');
});

passes('a first run after the application\'s explicit word' => sub {
    free_run('A1', 10, answer => undef);
    free_run('A2', 20, attempt => 2, does => 'releases', answer => 502);
    free_run('A3', 30, attempt => 1);
    ended_free('A3');
});

passes('a further run that is announced' => sub {
    free_run('A1', 10, answer => undef);
    free_run('A2', 20, attempt => 2);
    ended_free('A2');
});

finds(2, 'a further run while the owner lives' => sub {
    free_run('A1', 10, end => 14);
    free_run('A2', 12, attempt => 2);
    ended_free('A2');
});

finds(2, 'a further run while the owner of a later refusal lives' => sub {
    free_run('A1', 10, does => 'refuses', end => 14, answer => 500);
    free_run('A2', 12, attempt => 2);
    ended_free('A2');
});

passes('a further run while the owner stands still' => sub {
    free_run('A1', 10, end => 14);
    happened('stopped', 10.5, pid => 100);
    happened('continued', 13, pid => 100);
    free_run('A2', 12, attempt => 2, worker => 101);
    ended_free('A2');
});

finds(2, 'a further run while another worker stands still' => sub {
    free_run('A1', 10, end => 14);
    happened('stopped', 10.5, pid => 101);
    happened('continued', 13, pid => 101);
    free_run('A2', 12, attempt => 2, worker => 102);
    ended_free('A2');
});

finds(2, 'a further run long after the owner went on' => sub {
    free_run('A1', 10, end => 20);
    happened('stopped', 10.5, pid => 100);
    happened('continued', 12, pid => 100);
    free_run('A2', 16, attempt => 2, worker => 101);
    ended_free('A2');
});

finds(2, 'a further run before the lease of one that stands still is over' => sub {
    free_run('A1', 10, end => 14);
    happened('stopped', 10.5, pid => 100);
    happened('continued', 13, pid => 100);
    free_run('A2', 10.8, attempt => 2, worker => 101);
    ended_free('A2');
});

passes('a further run after the owner was killed' => sub {
    free_run('A1', 10, end => 14);
    happened('killed', 11, pids => '100 99');
    free_run('A2', 12.5, attempt => 2, worker => 101);
    ended_free('A2');
});

passes('a further run after the application was killed' => sub {
    free_run('A1', 10, end => undef);
    happened('app killed', 11, app => 'B1');
    free_run('A2', 11.5, attempt => 2, app => 'A1');
    ended_free('A2');
});

passes('a further run after the connection was reset, unknown to the application' => sub {
    link_line('seen', 9.9);
    free_run('A1', 10, end => 14, port => 7);
    link_line('ended', 11, how => 'reset');
    free_run('A2', 12, attempt => 2);
    ended_free('A2');
});

passes('a request that the network held back arrives after its successor' => sub {
    link_line('seen', 10);
    link_line('ended', 14, how => 'near closed');
    free_run('A2', 15, attempt => 2);
    free_run('A1', 16, attempt => 1, port => 7);
    ended_free('A2');
});

passes('a further run while the owner does not reach the store' => sub {
    free_run('A1', 10, end => 14);
    happened('store away', 10.2, until => 12, instance => 0);
    free_run('A2', 12, attempt => 2, worker => 101, life => '1.1');
    ended_free('A2');
}, store => 'redis');

passes('a further run while the store was slow for the owner by itself' => sub {
    free_run('A1', 10, end => 14);
    link_line('late', 10.2, link => 'redis', until => 11, instance => 0);
    free_run('A2', 11.5, attempt => 2, worker => 101, life => '1.1');
    ended_free('A2');
}, store => 'redis');

finds(2, 'a further run while another machine does not reach the store' => sub {
    free_run('A1', 10, end => 14);
    happened('store away', 10.2, until => 12, instance => 1);
    free_run('A2', 12, attempt => 2, worker => 101, life => '1.1');
    ended_free('A2');
}, store => 'redis');

# ---- rule 3 ---------------------------------------------------------------

finds(3, 'two executions shown' => sub {
    free_run('A1', 10, end => 11, answer => 201);
    free_run('A2', 20, attempt => 2);
    told('A1', 10, route => 'free', ended => 30);
    told('A2', 20, route => 'free');
    probe('A2', 90, route => 'free');
});

finds(3, 'another header on a replay' => sub {
    run('A1', 10);
    told('A1', 10);
    probe('A1', 90, ident => 'another');
});

finds(3, 'seen, and then not known' => sub {
    run('A1', 10);
    told('A1', 10);
    refused('outcome_unknown', 20);
    probe('A1');
});

finds(3, 'seen, and then in progress' => sub {
    run('A1', 10);
    told('A1', 10);
    refused('in_progress', 20);
    probe('A1');
});

passes('in progress to one who asked before it was seen' => sub {
    run('A1', 10);
    told('A1', 10, ended => 12);
    refused('in_progress', 11, ended => 12.5);
    probe('A1');
});

passes('seen while it streams, and then unknown' => sub {
    run('A1', 10, route => 'open', end => undef, answer => undef);
    push @{ $history{ledger} }, { what => 'answer', id => 'A1', key => 'k', t => 10,
        sha => 'sha A1', status => 201 };
    told('A1', 10, route => 'open', complete => 0);
    refused('outcome_unknown', 20, route => 'open');
    refused('outcome_unknown', 90, route => 'open', phase => 'probe');
});

finds(3, 'an owner that lost its record answers all the same' => sub {
    free_run('A1', 10, end => 12);
    happened('stopped', 10.5, pid => 100);
    happened('continued', 13, pid => 100);
    free_run('A2', 12.2, attempt => 2, worker => 101);
    told('A1', 10, route => 'free', ended => 13.1);
    told('A2', 12.2, route => 'free', ended => 12.5);
    probe('A2', 90, route => 'free');
});

finds(3, 'an owner that lost its record stores all the same' => sub {
    free_run('A1', 10, end => 12);
    happened('stopped', 10.5, pid => 100);
    happened('continued', 13, pid => 100);
    free_run('A2', 12.2, attempt => 2, worker => 101, end => 15);
    probe('A1', 90, route => 'free');
});

passes('an answer that the store did not take, and that of its successor' => sub {
    free_run('A1', 10, end => 12);
    happened('store away', 10.2, until => 13, instance => 0);
    free_run('A2', 12.5, attempt => 2, worker => 101, life => '1.1');
    told('A1', 10, route => 'free', ended => 12.3);
    told('A2', 12.5, route => 'free', life => '1.1', instance => 1, ended => 14);
    probe('A2', 90, route => 'free');
}, store => 'redis');

# The second has taken over from the first, whose outcome comes late. Ends as
# told; the store is emptied at 14.
sub late_first ($second_ends, %opt) {
    free_run('A1', 10, end => $opt{first_ends} // 12);
    happened('store away', 10.2, until => 14.1, instance => 0);
    free_run('A2', 12.5, attempt => 2, worker => 101, life => '1.1', end => $second_ends);
    happened('memory lost', $opt{lost} // 14, until => $opt{lost} // 14, how => $opt{how} // 'flush');
    told('A2', 12.5, route => 'free', life => '1.1', instance => 1, ended => 12.8) if $opt{shown};
    told('A1', $opt{replayed}, route => 'free', replayed => 1) if $opt{replayed};
    probe('A1', 90, route => 'free');
}

passes('a late outcome, when that of the successor was forgotten' => sub { late_first(13) }, store => 'redis');

passes('... and had been seen' => sub { late_first(12.7, shown => 1) }, store => 'redis');

passes('... when the successor runs, before its record is put back' => sub { late_first(16) }, store => 'redis');

finds(3, 'a late outcome, when the successor had put its record back' => sub {
    late_first(20, first_ends => 16);
}, store => 'redis');

finds(3, 'a late outcome before anything was forgotten' => sub { late_first(13, replayed => 13.5) }, store => 'redis');

finds(3, 'a late outcome, and what was forgotten was before both' => sub {
    late_first(13, lost => 9);
}, store => 'redis');

finds(3, 'a late outcome, when all were to put back what they knew' => sub {
    late_first(13, how => 'restart');
}, store => 'redis');

finds(3, 'another answer of a successor that was not forgotten' => sub {
    late_first(16);
    told('A2', 15.9, route => 'free', life => '1.1', instance => 1, ended => 16.1);
}, store => 'redis');

# ---- rule 4 ---------------------------------------------------------------

finds(4, 'a replay of nothing' => sub {
    told('A1', 10, replayed => 1);
    probe('A1', 90, status => 409, code => 'response_not_kept');
});

finds(4, 'a replay before its execution has answered' => sub {
    run('A1', 10, end => 12);
    told('A1', 10.5, replayed => 1);
    probe('A1');
});

finds(4, 'an answer of another key' => sub {
    run('A1', 10, key => 'other');
    told('A1', 10);
    probe(undef, 90, status => 500);
});

finds(4, 'an answer to another body' => sub {
    run('A1', 10, body => 'other');
    told('A1', 10);
    probe(undef, 90, status => 500);
});

finds(4, 'an answer with other bytes than the application gave' => sub {
    run('A1', 10);
    told('A1', 10, sha => 'another');
    probe(undef, 90, status => 500);
});

finds(4, 'an answer of a run that executed nothing' => sub {
    run('A1', 10, does => 'refuses');
    told('A1', 10);
    probe(undef, 90, status => 500);
});

finds(4, 'a good answer that names no execution' => sub {
    told(undef, 10, status => 200, ident => 'x', sha => 'x');
    probe(undef, 90, status => 500);
});

# ---- rule 5 ---------------------------------------------------------------

passes('a claim that was refused by a worker that left while the store was away' => sub {
    refused('store_unavailable', 10);
    happened('quits', 11, instance => 0);
    happened('store away', 9, until => 14);
    refused('outcome_unknown', 90, phase => 'probe');
});

finds(5, 'a claim that was refused stays, and the worker of another nginx has left' => sub {
    refused('store_unavailable', 10);
    happened('quits', 11, instance => 1);
    happened('store away', 9, until => 14);
    refused('outcome_unknown', 90, phase => 'probe');
});

finds(5, 'a claim that was refused stays, though the store was there when its worker left' => sub {
    refused('store_unavailable', 10);
    happened('store away', 8, until => 9);
    happened('quits', 11, instance => 0);
    refused('outcome_unknown', 90, phase => 'probe');
});

finds(5, 'in progress for more than two leases after its run' => sub {
    run('A1', 10, end => undef);
    refused('in_progress', 12);
    refused('in_progress', 18, phase => 'probe');
    refused('outcome_unknown', 19, phase => 'probe');
});

passes('in progress until its lease has expired' => sub {
    run('A1', 10, end => undef);
    refused('in_progress', 16, phase => 'probe');
    refused('outcome_unknown', 19, phase => 'probe');
});

passes('in progress two leases after the store is back' => sub {
    run('A1', 10);
    happened('store away', 12, until => 30);
    refused('in_progress', 32, phase => 'probe');
    probe('A1', 33);
});

finds(5, 'in progress for ever' => sub {
    refused('in_progress', 90, phase => 'probe');
});

finds(5, 'refused by the store for ever' => sub {
    refused('store_unavailable', 90, phase => 'probe');
});

finds(5, 'unknown under release' => sub {
    free_run('A1', 10, answer => undef);
    refused('outcome_unknown', 90, phase => 'probe', route => 'free');
});

finds(5, 'no answer' => sub {
    push @{ $history{answers} }, { key => 'k', route => 'hold', phase => 'probe', t => 90,
        ended => 98, body => 'right', instance => 0, error => 'timed out' };
});

finds(5, 'never asked for in the end' => sub {
    refused('in_progress', 10);
});

passes('unknown under hold' => sub {
    run('A1', 10, answer => undef);
    refused('outcome_unknown', 90, phase => 'probe');
});

passes('executed, its response not kept' => sub {
    run('A1', 10);
    refused('response_not_kept', 90, phase => 'probe');
});

finds(5, 'a claim that was refused has stayed' => sub {
    refused('store_unavailable', 10);
    refused('outcome_unknown', 90, phase => 'probe');
}, store => 'redis');

passes('a claim that was refused by a worker that was killed then' => sub {
    refused('store_unavailable', 10);
    happened('killed', 11, pids => '100');
    refused('outcome_unknown', 90, phase => 'probe');
}, store => 'redis');

# ---- rule 6 ---------------------------------------------------------------

finds(6, 'a connection too many' => sub { idle('active connections', 2, 1) });
finds(6, 'a file too many' => sub { idle('open files', 21, 20, most => 1) });
finds(6, 'less room in a zone' => sub { idle('room in the small zone', 229, 230) });
finds(6, 'an nginx that does not leave' => sub { idle('leaves when asked', 0, 1) });
passes('fewer files than at the beginning' => sub { idle('open files', 19, 20, most => 1) });

# ---- rule 7 ---------------------------------------------------------------

for my $line (
    '[alert] 7#7: worker process 8 exited on signal 11 (core dumped)',
    '[alert] 7#7: worker process 8 exited on signal 9',
    '[notice] 7#7: worker process 8 exited with code 2',
    '[alert] 8#8: *3 open socket #12 left in connection 5',
    '[emerg] 7#7: bind() to 127.0.0.1:80 failed',
    '==8==ERROR: AddressSanitizer: heap-use-after-free',
    'zone.cpp:10:3: runtime error: signed integer overflow',
    )
{
    finds(7, $line => sub { push @{ $history{logs} }, $line });
}

passes('what nginx says of those that were killed' => sub {
    happened('killed', 10, pids => '8');
    push @{ $history{logs} }, '[alert] 7#7: worker process 8 exited on signal 9',
        '[alert] 7#7: new binary process 8 exited on signal 9',
        '[alert] 7#7: shared memory zone "idempotency:default" was locked by 8',
        '[error] 9#9: connect() failed (111: Connection refused)';
});

# ---- rule 8 ---------------------------------------------------------------

passes('a run that has answered when it was too late' => sub {
    run('A1', 10, end => undef);
    push @{ $history{ledger} }, { what => 'answer', id => 'A1', key => 'k', t => 13.5, status => 201, sha => 'x' };
    cut('A1', 14);
    refused('outcome_unknown', 90, phase => 'probe');
});

finds(9, 'nothing is granted for long after a failover' => sub {
    happened('killed', 2, pids => 7, instance => 1);
    happened('not granted', 13.5, instance => 1, since => 10, limit => 3.2);
});

passes('nothing is granted by an nginx that was killed meanwhile' => sub {
    happened('killed', 12, pids => 7, instance => 1);
    happened('not granted', 13.5, instance => 1, since => 10, limit => 3.2);
});

finds(9, 'nothing is granted, and another nginx was killed' => sub {
    happened('killed', 12, pids => 7, instance => 0);
    happened('not granted', 13.5, instance => 1, since => 10, limit => 3.2);
});

finds(8, 'a run that nginx gave up' => sub {
    run('A1', 10, end => undef);
    cut('A1', 10.5);
    refused('outcome_unknown', 90, phase => 'probe');
});

finds(8, 'the same, seen by the network' => sub {
    link_line('seen', 9.99);
    run('A1', 10, end => undef, port => 7);
    link_line('ended', 10.5, how => 'near closed');
    cut('A1', 10.5);
    refused('outcome_unknown', 90, phase => 'probe');
});

passes('a run that the network cut' => sub {
    link_line('seen', 9.99);
    run('A1', 10, end => undef, port => 7);
    link_line('ended', 10.5, how => 'reset');
    cut('A1', 10.5);
    refused('outcome_unknown', 90, phase => 'probe');
});

passes('a run of a worker that was killed' => sub {
    run('A1', 10, end => undef);
    happened('killed', 10.5, pids => '100');
    cut('A1', 10.5);
    refused('outcome_unknown', 90, phase => 'probe');
});

passes('a run that took longer than nginx waits' => sub {
    run('A1', 10, end => undef);
    cut('A1', 14);
    refused('outcome_unknown', 90, phase => 'probe');
});

# ---- the whole ------------------------------------------------------------

subtest 'a key\'s history tells all of it in order' => sub {
    fresh();
    told('A1', 9.9);
    run('A1', 10);
    link_line('seen', 9.95);
    my @history = checker()->history_of('k');
    is(@history, 5, 'each line');
    like($history[0], qr/^9\.9000 client /, 'the client first');
    like($history[1], qr/^9\.9500 network /, 'then the network');
    like($history[2], qr/^10\.0000 ledger .*what=run/, 'then the application');
};

subtest 'the same seed gives the same faults' => sub {
    my @first = Nemesis::plan(7, 60, 3, 'redis');
    is_deeply([Nemesis::plan(7, 60, 3, 'redis')], \@first, 'again');
    isnt(join(' ', map { $_->{kind} } Nemesis::plan(8, 60, 3, 'redis')),
        join(' ', map { $_->{kind} } @first), 'another seed, others');
    my %kinds = map { $_->{kind} => 1 } @first, Nemesis::plan(7, 60, 3, 'file');
    is(scalar(grep { !Nemesis->can($_) } keys %kinds), 0, 'each kind can be done');
    cmp_ok(scalar keys %kinds, '>=', 20, 'all kinds in a minute');
};

done_testing();
