package Application;

# The application that contenders stand before: answers at once, and counts how
# often it is asked. The load is this application, too, as long as it lasts: a
# process of its own would sleep now and then, and waking it costs the gateway.
#
#   my $application = Application->new;
#   $application->port('large')           # small: 300 bytes, large: 64 KiB
#   my $said = $gateway->load($application->load, requests => 100);
#   $said->{executions}
#
# Application::answers() is what makes such answers in any nginx.

use v5.36;

use FreePorts qw(free_ports);

our %SIZE = (small => 300, large => 65536);

sub new ($class) {
    my %port;
    @port{qw(small large)} = free_ports(2);
    return bless { port => \%port }, $class;
}

# Variables: nginx takes no word of more than 4 KiB.
sub answers {
    my ($small, $piece) = ('x' x $SIZE{small}, 'x' x 2048);
    my $large = '$piece' x 32;
    return <<"END";
    geo \$small { default $small; }
    geo \$piece { default $piece; }
    map "" \$large { volatile; default "$large"; }
END
}

sub port ($self, $size) { return $self->{port}{$size} }

sub load ($self) {
    return (application => [map {"$self->{port}{$_}:$SIZE{$_}"} sort keys %SIZE]);
}

1;
