package DnsServer;

# A name server that knows one name, whose addresses the test changes.
#
#   my $dns = DnsServer->start('127.0.0.1');
#   "resolver 127.0.0.1:" . $dns->port . " ipv6=off valid=1s;"
#   $dns->say('127.0.0.2');            # undef: there is no such name
#   $dns->say('127.0.0.1 127.0.0.2');  # two addresses

use v5.36;

use File::Temp ();
use Net::DNS ();
use Net::DNS::Nameserver;
use POSIX ();

use FreePorts qw(free_ports);
use Running qw(run_aside end_process);

sub start ($class, $address) {
    my $dir = File::Temp->newdir('dns-XXXXXX', TMPDIR => 1);
    my $self = bless { port => (free_ports(1))[0], dir => $dir }, $class;
    $self->say($address);
    # Listens before anybody can ask.
    my $server = Net::DNS::Nameserver->new(LocalAddr => '127.0.0.1', LocalPort => $self->{port},
        ReplyHandler => sub ($name, $class, $type, @) { $self->reply($name, $class, $type) })
        or die "the name server has no port\n";
    $self->{pid} = run_aside(sub { serve($server) });
    return $self;
}

sub port ($self) { return $self->{port} }

sub say ($self, $address) {
    open my $file, '>', "$self->{dir}/new" or die "$!\n";
    print {$file} $address // '';
    close $file;
    rename "$self->{dir}/new", "$self->{dir}/address";
}

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    end_process($pid);
}

sub serve ($server) {
    my $parent = getppid();
    # A test that was killed leaves nobody who asks.
    local $SIG{ALRM} = sub { POSIX::_exit(0) if getppid() != $parent; alarm 2 };
    alarm 2;
    $server->main_loop;
}

sub reply ($self, $name, $class, $type) {
    open my $file, '<', "$self->{dir}/address" or return 'SERVFAIL';
    my @addresses = split ' ', readline($file) // return 'NXDOMAIN';
    @addresses = () if $type ne 'A';
    return ('NOERROR', [map { Net::DNS::RR->new("$name 1 $class A $_") } @addresses]);
}

1;
