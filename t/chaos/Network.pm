package Network;

# A network of its own, in which some machines can be cut off from the others.
# Needs root. Each place is a network namespace behind one router:
#
#   10.77.N.2   a server, N from 1 on
#   10.78.N.2   nginx N, as the Redis servers see it
#   10.79.N.2   a Sentinel, N from 1 on
#
# The nginx, their clients and the application stay where the harness is, so
# whoever is cut off from the servers still has clients. Which nginx a packet is
# from is told by the user of its workers.

use v5.36;

use POSIX ();

use Nginx ();

# Of every Debian. As many as there are nginx.
my @USERS = qw(daemon bin sys);

sub users { return @USERS }

# Called before anything else: goes on in a network namespace, if it may.
sub enter ($program, @arguments) {
    return run_all('link set lo up') if is_ours();
    return if $> != 0 || system('unshare --net true 2>/dev/null') != 0;
    $ENV{CHAOS_NETWORK} = 1;
    exec('unshare', '--net', '--', $^X, $program, @arguments) or die "unshare: $!\n";
}

sub is_ours { return $ENV{CHAOS_NETWORK} ? 1 : 0 }

# servers => count, sentinels => count, hosts => count
sub new ($class, %opt) {
    my $self = bless { %opt, owner => $$, inside => {} }, $class;
    $self->{inside}{$_} = hold_namespace() for 'router', $self->places;
    $self->join_place($_) for $self->places;
    $self->join_host($_) for 0 .. $opt{hosts} - 1;
    $self->run_inside('router', $^X, '-e',
        'open my $f, ">", "/proc/sys/net/ipv4/ip_forward" or die $!; print {$f} 1');
    return $self;
}

sub places ($self) {
    return ((map {"server $_"} 1 .. $self->{servers}), map {"sentinel $_"} 1 .. $self->{sentinels});
}

sub members ($self) { return ($self->places, map {"host $_"} 0 .. $self->{hosts} - 1) }

# What RedisServer has to know.
sub place ($self, $name) {
    return { host => net_of($name) . '.2', netns => $self->{inside}{$name} };
}

sub net_of ($name) {
    my ($kind, $number) = split / /, $name;
    return '10.' . { server => 77, host => 78, sentinel => 79 }->{$kind} . '.' . $number;
}

# ---- cutting --------------------------------------------------------------

# These reach each other, and nobody else.
sub cut_off ($self, @group) {
    my %in = map { $_ => 1 } @group;
    my @rest = grep { !$in{$_} } $self->members;
    $self->{cut} = [map {
        my $one = net_of($_);
        map { ("from $one.0/24 to " . net_of($_) . '.0/24', 'from ' . net_of($_) . ".0/24 to $one.0/24") } @rest;
    } @group];
    $self->at_router(map {"rule add $_ blackhole"} @{ $self->{cut} });
}

sub heal ($self) {
    my $rules = delete $self->{cut} or return;
    $self->at_router(map {"rule del $_ blackhole"} @$rules);
}

# ---- making ---------------------------------------------------------------

# A process that does nothing but be in it, and ends with this one.
sub hold_namespace {
    pipe(my $ready, my $said) or die "pipe: $!\n";
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        open STDOUT, '>&', $said;
        exec(qw(unshare --net -- setpriv --pdeathsig KILL sh -c), 'echo; exec >/dev/null; exec sleep 100000')
            or POSIX::_exit(127);
    }
    close $said;
    readline $ready // die "no network namespace\n";
    return $pid;
}

sub join_place ($self, $name) {
    my ($net, $inside, $router) = (net_of($name), @{ $self->{inside} }{ $name, 'router' });
    my $link = 'r' . $net =~ tr/./-/r;
    run_all("link add far type veth peer name $link netns $router", "link set far netns $inside");
    $self->at_router("addr add $net.1/24 dev $link", "link set $link up");
    $self->run_inside($name, 'ip', '-batch', '-', \join "\n", "addr add $net.2/24 dev far",
        'link set far up', 'link set lo up', "route add default via $net.1");
}

sub join_host ($self, $number) {
    my ($net, $table) = (net_of("host $number"), 100 + $number);
    my $uid = getpwnam($USERS[$number]) // die "no user $USERS[$number]\n";
    run_all("link add h$number type veth peer name r$number netns $self->{inside}{router}",
        "addr add $net.2/24 dev h$number", "link set h$number up",
        "rule add uidrange $uid-$uid lookup $table",
        "route add 10.0.0.0/8 via $net.1 src $net.2 table $table");
    $self->at_router("addr add $net.1/24 dev r$number", "link set r$number up");
}

sub at_router ($self, @lines) {
    $self->run_inside('router', 'ip', '-batch', '-', \join "\n", @lines);
}

sub run_inside ($self, $name, @command) {
    run('nsenter', "--net=/proc/$self->{inside}{$name}/ns/net", '--', @command);
}

sub run_all (@lines) { run('ip', '-batch', '-', \join "\n", @lines) }

# The last word may be a reference to its input.
sub run (@command) {
    my $input = ref $command[-1] ? ${ pop @command } : '';
    local $SIG{PIPE} = 'IGNORE';
    open my $pipe, '|-', @command or die "$command[0]: $!\n";
    print {$pipe} "$input\n" if $input ne '';
    close $pipe or die "@command: failed with $?\n$input\n";
}

# ---- the end --------------------------------------------------------------

# A namespace ends with the last process in it.
sub stop ($self) {
    return if $$ != $self->{owner};
    for my $pid (values %{ $self->{inside} }) {
        kill KILL => $pid;
        waitpid $pid, 0;
    }
    $self->{inside} = {};
}

1;
