package FakeRedis;

# Answers as a Redis would, but for what the test wants otherwise: it stands
# before a real one, as a proxy that understands commands.
#
#   my $fake = FakeRedis->before($redis, sub ($words, $ask) {
#       return "-ERR no\r\n" if $words->[0] eq 'TIME';
#       return $ask->();                   # what the real one says
#   });
#   $fake->url;
#
# The sub runs in the process of the fake. $ask->(@words) asks with other words.

use v5.36;

use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;

use FreePorts qw(free_ports);
use OldRedis ();
use Running qw(run_aside end_process);

# port => one that is known before.
sub before ($class, $redis, $answer, %opt) {
    my $self = bless { redis => $redis, answer => $answer }, $class;
    my $listener;
    for (1 .. 10) {
        $self->{port} = $opt{port} // (free_ports(1))[0];
        last if $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
            LocalPort => $self->{port}, Proto => 'tcp', Listen => 64, ReuseAddr => 1);
    }
    die "the fake Redis cannot listen: $@\n" if !$listener;
    $self->{pid} = run_aside(sub { $self->serve($listener) });
    close $listener;
    return $self;
}

sub address ($self) { return "127.0.0.1:$self->{port}" }

sub url ($self) { return 'redis://' . $self->address }

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    end_process($pid);
}

sub serve ($self, $listener) {
    $SIG{PIPE} = 'IGNORE';
    my $select = IO::Select->new($listener);
    my %peers;
    while (1) {
        for my $sock ($select->can_read(1)) {
            if ($sock == $listener) {
                my $new = $listener->accept or next;
                my $real = IO::Socket::UNIX->new(Peer => $self->{redis}->path('redis.sock'));
                $peers{$new} = { real => $real, in => '' };
                $select->add($new);
                next;
            }
            if (!$self->talk($sock, $peers{$sock})) {
                $select->remove($sock);
                delete $peers{$sock};
                close $sock;
            }
        }
    }
}

sub talk ($self, $sock, $peer) {
    sysread($sock, $peer->{in}, 1 << 16, length $peer->{in}) or return 0;
    while (defined(my $command = OldRedis::take_command(\$peer->{in}))) {
        my (undef, @words) = @$command;
        my $ask = sub (@other) { ask($peer->{real}, @other ? @other : @words) };
        my $reply = $self->{answer}->(\@words, $ask);
        return 0 if !defined $reply;
        syswrite($sock, $reply) // return 0;
    }
    return 1;
}

# One command, and the bytes of its reply.
sub ask ($real, @words) {
    syswrite($real, join '', '*' . @words . "\r\n",
        map { '$' . length($_) . "\r\n$_\r\n" } @words) // return;
    return read_reply($real);
}

sub read_reply ($real) {
    my $line = readline $real // return;
    my ($type, $number) = $line =~ /^([-+:\$*])(-?\d+)?/;
    if ($type eq '$' && $number >= 0) {
        read($real, my $bytes, $number + 2);
        return $line . $bytes;
    }
    return $line if $type ne '*' || $number < 0;
    return join '', $line, map { read_reply($real) } 1 .. $number;
}

1;
