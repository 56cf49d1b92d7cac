package DnsServer;

# A name server that knows one name, whose addresses the test changes.
#
#   my $dns = DnsServer->start('127.0.0.1');
#   "resolver 127.0.0.1:" . $dns->port . " ipv6=off valid=1s;"
#   $dns->say('127.0.0.2');            # undef: there is no such name
#   $dns->say('127.0.0.1 127.0.0.2');  # two addresses

use v5.36;

use File::Temp ();
use IO::Socket::INET;
use Net::DNS ();
use POSIX ();

use FreePorts qw(free_ports);
use Running qw(run_aside end_process);

sub start ($class, $address) {
    my $dir = File::Temp->newdir('dns-XXXXXX', TMPDIR => 1);
    my $self = bless { port => (free_ports(1))[0], dir => $dir }, $class;
    $self->say($address);
    # Listens before anybody can ask.
    my $sock = IO::Socket::INET->new(Proto => 'udp', LocalAddr => '127.0.0.1',
        LocalPort => $self->{port}) or die "the name server has no port\n";
    $self->{pid} = run_aside(sub { $self->serve($sock) });
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

# Not by Net::DNS::Nameserver, whose later versions have another interface.
sub serve ($self, $sock) {
    my $parent = getppid();
    # A test that was killed leaves nobody who asks.
    local $SIG{ALRM} = sub { POSIX::_exit(0) if getppid() != $parent; alarm 2 };
    alarm 2;
    while (1) {
        my $asker = recv($sock, my $bytes, 4096, 0) // next;
        my $query = Net::DNS::Packet->new(\$bytes) or next;
        send($sock, $self->reply($query)->data, 0, $asker);
    }
}

sub reply ($self, $query) {
    my ($question) = $query->question;
    my $reply = $query->reply;
    open my $file, '<', "$self->{dir}/address" or die "$!\n";
    my $addresses = readline($file);
    $reply->header->rcode(defined $addresses ? 'NOERROR' : 'NXDOMAIN');
    return $reply if $question->qtype ne 'A';
    $reply->push(answer => Net::DNS::RR->new($question->qname . " 1 IN A $_"))
        for split ' ', $addresses // '';
    return $reply;
}

1;
