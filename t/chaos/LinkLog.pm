package LinkLog;

# Writes down what the proxy of an nginx sees, as lines:
#
#   what=seen     a request with a key is on its way to the application
#   what=ended    a connection, by whom
#   what=late     the far side took so long to answer, whatever the reason, or
#                 the proxy itself stood still

use v5.36;

use Lines;
use Proxy;

our @ISA = ('Proxy::Watch');

my $LATE = 0.12;       # seconds

# log => path, instance => number
sub new ($class, %opt) {
    return bless { %opt, say => append_to($opt{log}) }, $class;
}

sub woke ($self, $since) {
    $self->say_late('all', $since) if now() - $since > $LATE;
}

sub saw ($self, $side, $bytes) {
    my $link = $side->{pair}{link}{name};
    $self->note_key($side->{pair}, $bytes) if $link eq 'app' && $side->{name} eq 'near';
    $self->note_time($side) if $link eq 'redis';
}

# Which keys were ever on their way to the application.
sub note_key ($self, $pair, $bytes) {
    return if $pair->{key};
    my ($key) = $bytes =~ /^idempotency-key:\s*(\S+)/mi or return;
    $pair->{key} = $key;
    $self->{say}->(what => 'seen', link => 'app', key => $key, port => $pair->{port});
}

# How long the far side takes to answer.
sub note_time ($self, $side) {
    my $pair = $side->{pair};
    if ($side->{name} eq 'near') {
        $pair->{asked} //= now();
        return;
    }
    my $asked = delete $pair->{asked} // return;
    $self->say_late($pair->{link}{name}, $asked) if now() - $asked > $LATE;
}

# The first end of a connection is the one that counts.
sub ended ($self, $pair, $how) {
    return if $pair->{said}++;
    $self->{say}->(what => 'ended', link => $pair->{link}{name}, port => $pair->{port},
        how => $how, key => $pair->{key});
}

sub closed ($self, $pair) {
    $self->say_late($pair->{link}{name}, $pair->{asked})
        if $pair->{asked} && now() - $pair->{asked} > $LATE;
}

sub knows ($self, $pair) { return $pair->{link}{name} ne 'app' || $pair->{key} }

sub say_late ($self, $name, $since) {
    $self->{say}->(what => 'late', link => $name, instance => $self->{instance}, t => $since,
        until => now());
}

1;
