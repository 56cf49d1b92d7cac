package Planted;

# Histories of a few lines for the tests of the checker: what the ledger, clients,
# network and nemesis of a run of chaos write down, with one thing wrong.

use v5.36;

use Exporter 'import';
use File::Temp;
use Test::More;

use Batches;
use Checker;
use Lines;

our @EXPORT = qw(%history fresh run cut told refused probe happened link_line idle checker in_batches finds
    passes forgives free_run ended_free);

my %ROUTES = (
    hold  => { unknown => 'hold' },
    open  => { unknown => 'hold' },
    free  => { unknown => 'release' },
    small => { unknown => 'hold', ttl => 6, local => 1 },
);

our %history;

# ---- planting -------------------------------------------------------------

sub fresh { %history = map { $_ => [] } qw(ledger answers links events idle logs) }

# A run of a key from t on. does => executes, end => its time (undef: none was
# written), answer => status (undef: none).
sub run ($id, $t, %opt) {
    %opt = (key => 'k', route => 'hold', does => 'executes', attempt => 1, life => '0.1',
        worker => 100, app => 'B1', body => 'right', end => $t + 0.1, answer => 201, %opt);
    my ($end, $status) = delete @opt{qw(end answer)};
    my %ids = (id => $id, key => $opt{key});
    push @{ $history{ledger} }, { port => 1, %opt, %ids, what => 'run', t => $t,
        route => "/$opt{route}" };
    return if !defined $end;
    push @{ $history{ledger} }, { %ids, what => 'answer', t => $end, status => $status,
        sha => "sha $id" } if $status;
    push @{ $history{ledger} }, { %ids, what => 'end', how => 'answered', t => $end };
}

sub cut ($id, $t) {
    push @{ $history{ledger} }, { what => 'cut', id => $id, key => 'k', t => $t };
}

# What a client was told. By default 201, of the run that is named.
sub told ($execution, $t, %opt) {
    my $good = defined $execution
        ? { status => 201, execution => $execution, ident => "ident $execution",
            sha => "sha $execution" } : {};
    push @{ $history{answers} }, {
        key => 'k', route => 'hold', phase => 'load', t => $t, ended => $t + 0.2, body => 'right',
        life => '0.1', instance => 0, worker => 100, complete => 1, replayed => 0,
        %$good, %opt,
    };
}

sub refused ($code, $t, %opt) {
    told(undef, $t, status => $code eq 'store_unavailable' ? 503 : 409, code => $code,
        ident => 'problem', sha => 'problem', %opt);
}

# The question at the end.
sub probe ($execution, $t = 90, %opt) {
    told($execution, $t, phase => 'probe', replayed => 1, %opt);
}

sub happened ($what, $t, %opt) {
    push @{ $history{events} }, { what => $what, t => $t, %opt };
}

sub link_line ($what, $t, %opt) {
    push @{ $history{links} }, { what => $what, link => 'app', key => 'k', port => 7, t => $t, %opt };
}

sub idle ($what, $is, $want, %opt) {
    push @{ $history{idle} }, { who => 'nginx 0', what => $what, is => $is, want => $want, %opt };
}

# Under idempotency_unknown_outcome release.
sub free_run ($id, $t, %opt) { run($id, $t, route => 'free', %opt) }

sub ended_free ($id) {
    told($id, 50, route => 'free');
    probe($id, 90, route => 'free');
}

# ---- asking ---------------------------------------------------------------

sub checker (%opt) {
    return Checker->new(%history, routes => \%ROUTES, store => 'memory', lease => 1,
        read_timeout => 4, %opt);
}

# The same from files, some of the keys at a time.
sub in_batches ($count, %opt) {
    my $folder = File::Temp->newdir;
    my %files;
    for my $kind (qw(ledger answers links)) {
        my $say = append_to("$folder/$kind");
        $say->(%$_) for @{ $history{$kind} };
        $files{$kind} = ["$folder/$kind"];
    }
    my $batches = Batches->new(routes => \%ROUTES, store => 'redis', lease => 1, read_timeout => 4,
        events => $history{events}, count => $count, folder => $folder, files => \%files, %opt);
    $batches->violations;
    return $batches;
}

sub finds ($rule, $title, $plant, %opt) {
    fresh();
    $plant->();
    my @found = map { $_->{rule} } checker(%opt)->violations;
    is_deeply(\@found, [$rule], "rule $rule: $title")
        or diag(map {"$_->{rule}: $_->{text}\n"} checker(%opt)->violations);
}

sub passes ($title, $plant, %opt) {
    fresh();
    $plant->();
    my @found = map {"$_->{rule}: $_->{text}"} checker(%opt)->violations;
    is_deeply(\@found, [], "fine: $title");
}

# No violation, because of this rule of Forgiven.pm alone.
sub forgives ($rule, $title, $plant, %opt) {
    fresh();
    $plant->();
    my $checker = checker(store => 'redis', %opt);
    my @found = map {"$_->{rule}: $_->{text}"} $checker->violations;
    is_deeply(\@found, [], "forgiven: $title");
    is_deeply([map { $_->{name} } $checker->forgiven], [$rule], "... by '$rule'");
}

1;
