package MemoryPressure;

# Memory pressure for the processes of one nginx: the system takes from them
# every page that it can read again from its file.
#
#   my $pressure = MemoryPressure->new or plan skip_all => ...;
#   local $ENV{TEST_NGINX_BINARY} = $pressure->wrapped('nginx');
#   $pressure->reclaim;

use v5.36;

use File::Temp ();

my $count = 0;

# Undefined where there is no group of processes whose memory can be taken.
sub new ($class) {
    return undef if $>;
    my $root = -e '/sys/fs/cgroup/memory/memory.force_empty' || -e '/sys/fs/cgroup/memory/cgroup.procs'
        ? '/sys/fs/cgroup/memory'
        : '/sys/fs/cgroup';
    my $group = "$root/test-idempotency-$$-" . ++$count;
    mkdir $group or return undef;
    my $self = bless { group => $group, folder => File::Temp->newdir }, $class;
    $self->{door} = (grep { -e "$group/$_" } qw(memory.force_empty memory.reclaim))[0];
    return $self->{door} ? $self : undef;
}

# A program that is started in the group.
sub wrapped ($self, $program) {
    my $script = "$self->{folder}/program.sh";
    open my $out, '>', $script or die "$script: $!\n";
    print {$out} "#!/bin/sh\necho \$\$ > $self->{group}/cgroup.procs\nexec '$program' \"\$@\"\n";
    close $out;
    chmod 0755, $script;
    return $script;
}

# Some of it may be in use: then the system says so, which is no matter.
sub reclaim ($self) {
    for my $try (1 .. 5) {
        open my $out, '>', "$self->{group}/$self->{door}" or die "$self->{door}: $!\n";
        syswrite $out, $self->{door} eq 'memory.reclaim' ? "1G\n" : "0\n";
        close $out;
    }
}

# A group can be removed when its processes have ended.
sub DESTROY ($self) {
    local ($?, $!);
    for my $try (1 .. 50) {
        last if rmdir($self->{group}) || !-e $self->{group};
        select undef, undef, undef, 0.1;
    }
}

1;
