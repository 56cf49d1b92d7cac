package DnsServer;

# A name server that knows one name, whose addresses the test changes.
#
#   my $dns = DnsServer->start('127.0.0.1');
#   "resolver 127.0.0.1:" . $dns->port . " ipv6=off valid=1s;"
#   $dns->say('127.0.0.2');            # undef: there is no such name
#   $dns->say('127.0.0.1 127.0.0.2');  # two addresses

use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

use File::Temp ();
use IO::Socket::INET;
use POSIX ();
use Socket qw(inet_aton);

my $owner = $$;
my %running;

END {
    if ($$ == $owner) {
        local $?;
        $_->stop for values %running;
    }
}

sub start ($class, $address) {
    my $sock = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Proto => 'udp')
        or die "the name server has no port: $@\n";
    my $dir = File::Temp->newdir('dns-XXXXXX', TMPDIR => 1);
    my $self = bless { port => $sock->sockport, dir => $dir }, $class;
    $self->say($address);
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        open STDOUT, '>', '/dev/null';
        $self->serve($sock);
        POSIX::_exit(0);
    }
    $self->{pid} = $pid;
    $running{$pid} = $self;
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
    delete $running{$pid};
    kill TERM => $pid;
    waitpid $pid, 0;
}

sub serve ($self, $sock) {
    my $parent = getppid();
    # A test that was killed leaves nobody who asks.
    local $SIG{ALRM} = sub { POSIX::_exit(0) if getppid() != $parent; alarm 2 };
    alarm 2;
    while (1) {
        my $peer = recv($sock, my $query, 512, 0) // next;
        send($sock, $self->answer($query), 0, $peer);
    }
}

# One question, as nginx asks it; for an address of IPv4.
sub answer ($self, $query) {
    open my $file, '<', "$self->{dir}/address" or return;
    my @addresses = split ' ', readline($file) // '';
    my $question = substr($query, 12);
    my $flags = @addresses ? 0x8180 : 0x8183;
    @addresses = () if $question !~ /\0\0\x01\0\x01\z/;
    my @records = map { pack 'n n n N n a4', 0xc00c, 1, 1, 1, 4, inet_aton($_) } @addresses;
    return join '', substr($query, 0, 2), pack('n5', $flags, 1, scalar @records, 0, 0),
        $question, @records;
}

1;
