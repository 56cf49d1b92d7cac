package Operator;

# The administrator of a run: lists unknown outcomes, looks keys up, and settles
# some as the ledger of the applications tells it, since an administrator has
# to ask the application first.
#
# What was executed is completed, with the response that the application gave or
# would have given. What the application has not even read is released; its run
# gets the line what=settled in the ledger before, since the next run may come at
# once, and what=not settled after an answer that nothing was changed. No answer
# leaves open whether it was. A request that the network holds
# back is in no ledger yet, so nothing is released where Redis can lose the
# record of an earlier run.

use v5.36;

use Digest::SHA qw(sha1_hex);
use Time::HiRes qw(sleep);

use Admin ();
use Http1 ();
use Lines;
use Site;
use Workload;

my $PAUSE = 0.3;
my $AT_ONCE = 4;

# site, ledger (path), until
sub new ($class, %opt) {
    return bless { %opt, say => append_to($opt{ledger}), keys => {} }, $class;
}

sub run ($self) {
    while (now() < $self->{until}) {
        sleep $PAUSE;
        $self->read_ledger;
        $self->look_around;
        my @keys = grep { $self->is_doubtful($self->{keys}{$_}) } keys %{ $self->{keys} };
        for (1 .. $AT_ONCE) {
            last if !@keys;
            $self->settle(splice @keys, rand @keys, 1);
        }
    }
}

# Nothing comes of it.
sub look_around ($self) {
    my $port = $self->{site}->port_of(int rand $self->{site}{count}, 'h1', 'direct');
    eval { Http1::request($port, 'GET', '/admin?store=default&unknown', timeout => 1) };
}

# ---- what the application knows -------------------------------------------

sub read_ledger ($self) {
    $self->{file} //= do { open my $file, '<', $self->{ledger} or return; $file };
    seek $self->{file}, 0, 1;
    while (my $line = readline $self->{file}) {
        $line = delete($self->{rest}) . $line if defined $self->{rest};
        if (!chomp $line) { $self->{rest} = $line; last }
        $self->take(Lines::parse($line));
    }
}

sub take ($self, $line) {
    my $runs = $self->{keys}{ $line->{key} } //= [];
    if ($line->{what} eq 'run') { push @$runs, { %$line } }
    else {
        my ($run) = grep { $_->{id} eq $line->{id} } @$runs;
        $run->{ $line->{what} } = $line if $run;
    }
}

# Old enough that its lease has expired, and nobody has been told yet.
sub is_doubtful ($self, $runs) {
    my $last = $runs->[-1];
    my $route = $ROUTES{ $last->{route} =~ s{^/}{}r } or return 0;
    return !$self->{tried}{ $last->{key} } && $route->{unknown} eq 'hold' && !$route->{local}
        && now() > $last->{t} + 2.5 * $LEASE && !$last->{settled}
        && (!$last->{answer} || !$last->{end} || $last->{answer}{status} =~ /^50[24]$/);
}

# ---- what is done about it ------------------------------------------------

sub settle ($self, $key) {
    my @runs = @{ $self->{keys}{$key} };
    my $last = $runs[-1];
    $self->{tried}{$key} = 1;
    my ($instance) = ($last->{life} // '') =~ /^(\d+)/ or return;
    $self->{port} = $self->{site}->port_of($instance, 'h1', 'direct');
    my ($life, $found) = $self->act(act => 'find', key => $key, host => 'localhost', method => 'POST',
        path => $last->{route});
    return if ($found->{state} // '') ne 'unknown' || !$self->is_of($last, $life);
    if    ($last->{does} eq 'executes') { $self->complete($last, $found->{id}) }
    elsif ($last->{does} eq 'unread')   { $self->release($last, $found->{id}) }
}

# Whether the record is of this run, not of one in another memory.
sub is_of ($self, $run, $life) {
    return 1 if $run->{does} eq 'executes' && $self->{site}{store} eq 'redis';
    return $self->{site}{store} ne 'redis' && ($self->{site}{store} eq 'file' || $run->{life} eq $life);
}

sub complete ($self, $run, $id) {
    my %do = map { split /=/, $_, 2 } split /&/, $run->{do} // '';
    my $body = response_body(@$run{qw(id key body)}, $do{size} // 0);
    if (!$run->{answer}) { $self->note($run, 'answer', status => 201, sha => sha1_hex($body)) }
    elsif ($run->{answer}{sha} ne sha1_hex($body)) { return }
    $self->act(act => 'complete', id => $id, status => 201, type => 'application/json',
        header => "Location: /orders/$run->{id}", header => "X-Execution: $run->{id}", body => $body);
}

sub release ($self, $run, $id) {
    $self->note($run, 'answer', status => 0, sha => '');
    $self->note($run, 'settled');
    my (undef, $said) = $self->act(act => 'release', id => $id);
    my $is_open = ($said->{code} // 'store_unavailable') eq 'store_unavailable';
    $self->note($run, 'not settled') if !$said->{done} && !$is_open;
}

sub note ($self, $run, $what, %more) {
    $self->{say}->(what => $what, id => $run->{id}, key => $run->{key}, app => 'operator', %more);
}

# (the life of the nginx that has answered, its answer)
sub act ($self, @fields) {
    my $response = eval {
        Http1::request($self->{port}, 'POST', '/admin', timeout => 2,
            body => Admin::form(store => 'default', @fields), headers => [
                'Content-Type' => 'application/x-www-form-urlencoded', 'X-Idempotency-Admin' => '1']);
    } // {};
    return ($response->{headers}{'x-life'}[0] // '', Admin::answer_of({ body => $response->{body} // '' }));
}

1;
