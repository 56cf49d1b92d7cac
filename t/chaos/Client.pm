package Client;

# Those who ask: they retry, overlap, disagree and leave, and write down what
# they were told.
#
# A line per request, t= when it was sent, ended= when it was over:
#
#   client key route instance proto via body (digest) phase
#   left          the client hung up after so many seconds, or
#   status code replayed complete execution life worker ident (digest of
#   all that must not differ between answers) sha (digest of the body)
#   error         there was no answer

use v5.36;

use Digest::SHA qw(sha1_hex);
use Time::HiRes qw(sleep);

use Http1 ();
use Http2;
use Lines;
use Workload;

my $PATIENCE = 8;

# name, log, site, seed, began, until, rate (new keys a second), think (seconds
# in the mean), calm (nobody does anything outrageous)
sub new ($class, %opt) {
    return bless { think => 0.1, %opt, say => append_to($opt{log}) }, $class;
}

# ---- what a client does ---------------------------------------------------

sub run ($self) {
    srand(Workload::dice("$self->{seed} client $self->{name}"));
    sleep rand 0.3;
    while (now() < $self->{until}) {
        my $key = some_key(now() - $self->{began}, $self->{rate});
        # Half of them ask again, whatever they were told.
        do {
            $self->ask($key, $self->choose($key));
            sleep $self->think;
        } while (now() < $self->{until} && rand() < 0.5);
    }
}

sub think ($self) { return -$self->{think} * log(1 - rand() * 0.99) }

sub choose ($self, $key) {
    my %how = (
        instance => $self->{site}->instance_for($key),
        proto => rand() < 0.25 ? 'h2' : 'h1',
        via   => !$self->{calm} && rand() < 0.5 ? 'proxy' : 'direct',
        kind  => rand() < 0.08 ? 'other' : 'right',
        wish  => $self->{calm} ? Workload::calm_wish() : Workload::wish($key->{route}),
    );
    $how{leave} = rand() < 0.5 ? rand 0.02 : rand 0.6 if rand() < 0.2;
    return %how;
}

# Asks for a key until its state is clear, or for so long.
sub probe ($self, $key, $seconds) {
    my $until = now() + $seconds;
    my $kind = 'right';
    while (1) {
        my $said = $self->ask($key, instance => $self->{site}->instance_for($key),
            proto => 'h1', via => 'direct', kind => $kind, wish => 'size=50',
            phase => 'probe');
        my $code = $said->{code} // '';
        # The key stands for the other body, then.
        $kind = $kind eq 'right' ? 'other' : 'right' if $code eq 'key_reused';
        return if now() > $until
            || defined $said->{status} && $code !~ /^(?:key_reused|in_progress|store_unavailable)$/;
        sleep 0.1;
    }
}

# ---- one request ----------------------------------------------------------

sub ask ($self, $key, %how) {
    my $body = body_of($key, $how{kind});
    my $port = $self->{site}->port_of(@how{qw(instance proto via)});
    my %line = (
        client => $self->{name}, key => $key->{name}, route => $key->{route},
        instance => $how{instance}, proto => $how{proto}, via => $how{via},
        body => sha1_hex($body), phase => $how{phase} // 'load', t => now(),
    );
    my @request = ('POST', "/$key->{route}", body => $body, timeout => $PATIENCE,
        headers => ['idempotency-key' => $key->{name}, 'x-do' => $how{wish},
            type_of($key) ? ('content-type' => type_of($key)) : ()]);

    my $said = eval {
        $how{proto} eq 'h2' ? ask_h2($port, $how{leave}, @request)
            : ask_h1($port, $how{leave}, @request);
    } // { error => 'no connection' };
    %line = (%line, %$said, ended => now());
    $self->{say}->(%line);
    return \%line;
}

sub ask_h1 ($port, $leave, @request) {
    my $conn = Http1::send_request($port, @request);
    if (defined $leave) {
        sleep $leave;
        rand() < 0.5 ? $conn->close : $conn->reset;
        return { left => sprintf '%.3f', $leave };
    }
    my $response = $conn->response($PATIENCE);
    $conn->close;
    return told($response);
}

sub ask_h2 ($port, $leave, @request) {
    my $h2 = Http2->new($port);
    my $id = $h2->send(@request);
    if (defined $leave) {
        sleep $leave;
        my $odds = rand;
        if    ($odds < 0.4) { $h2->rst($id); sleep 0.01; $h2->close }
        elsif ($odds < 0.7) { $h2->close }
        else                { $h2->reset }
        return { left => sprintf '%.3f', $leave };
    }
    my $response = $h2->response($id, $PATIENCE);
    $h2->close;
    return told($response);
}

# ---- what it was told -----------------------------------------------------

sub told ($response) {
    return { error => $response->{timeout} ? 'timed out' : 'cut off' } if !$response->{status};
    my $headers = $response->{headers};
    my ($code) = $response->{body} =~ /"code":\s*"(\w+)"/;
    my $sha = sha1_hex($response->{body});
    return {
        status => $response->{status}, code => $code, sha => $sha,
        complete => $response->{complete} ? 1 : 0,
        replayed => $headers->{'idempotent-replayed'} ? 1 : 0,
        execution => $headers->{'x-execution'}[0], life => $headers->{'x-life'}[0],
        worker => $headers->{'x-worker'}[0], ident => ident_of($response),
    };
}

# A cut answer has no body to compare, but its header counts.
sub ident_of ($response) {
    my $headers = $response->{headers};
    return sha1_hex(join "\n", $response->{status},
        map { join ',', @{ $headers->{$_} // [] } } qw(content-type location x-execution));
}

1;
