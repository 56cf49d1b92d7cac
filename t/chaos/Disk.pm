package Disk;

# A disk for the file of one nginx, which fails and stands still when it is
# told to: ext4 on a loop device, for root only.
#
# While it fails, writes behind the first part of the device get EIO: the
# device is made smaller. The file system's own blocks are in that part, or were
# written when the file was made: without extents none are added later.

use v5.36;

use Fcntl qw(O_RDWR);
use POSIX ();
use Time::HiRes qw(sleep);

use Waiting qw(wait_quietly);

my $SIZE = 96 << 20;
my $SOUND = 6 << 20;

my ($GET_STATUS, $SET_STATUS) = (0x4C05, 0x4C04);    # LOOP_*_STATUS64
my $STATUS_SIZE = 232;
my $LIMIT_AT = 32;                                   # lo_sizelimit

sub new ($class, $folder) {
    return if $> != 0 || !-e '/dev/loop-control';
    my $self = bless { image => "$folder/disk.img", path => "$folder/disk", owner => $$ }, $class;
    open my $image, '>', $self->{image} or die "$self->{image}: $!\n";
    truncate $image, $SIZE;
    mkdir $self->{path};
    run(qw(mkfs.ext4 -q -b 4096 -N 64 -E lazy_itable_init=0 -O), '^has_journal,^extent,^64bit', $self->{image})
        or return;
    $self->mount or return;
    # So that nothing else is in the part that always works.
    open my $sound, '>', "$self->{path}/sound" or die "sound: $!\n";
    print {$sound} "\0" x $SOUND;
    close $sound;
    run('sync', '-f', $self->{path});
    return $self;
}

sub path ($self) { return $self->{path} }

sub mount ($self) {
    run(qw(mount -o loop), $self->{image}, $self->{path}) or return 0;
    open my $mounts, '<', '/proc/mounts' or die "mounts: $!\n";
    ($self->{device}) = map { /^(\S+) \Q$self->{path}\E / ? $1 : () } readline $mounts;
    return 1;
}

sub fail ($self) { $self->limit($SOUND) }

sub mend ($self) { $self->limit(0) }

sub limit ($self, $bytes) {
    sysopen(my $device, $self->{device}, O_RDWR) or die "$self->{device}: $!\n";
    my $status = "\0" x $STATUS_SIZE;
    ioctl($device, $GET_STATUS, $status) or die "LOOP_GET_STATUS64: $!\n";
    substr($status, $LIMIT_AT, 8) = pack 'Q', $bytes;
    ioctl($device, $SET_STATUS, $status) or die "LOOP_SET_STATUS64: $!\n";
}

# Whoever writes waits. In a process of its own, as the caller may wait as well.
sub freeze_for ($self, $seconds) {
    run('fsfreeze', '-f', $self->{path}) or return;
    sleep $seconds;
    run('fsfreeze', '-u', $self->{path});
}

# While nobody uses it: what was not written yet is gone. A device for the next
# mount is a new one, which works.
sub lose_power ($self) {
    $self->fail;
    my $gone = wait_quietly(sub { run('umount', $self->{path}) }, 5);
    $self->mend if !$gone;
    return $gone && $self->mount;
}

sub stop ($self) {
    return if $$ != $self->{owner} || !$self->{device};
    run('fsfreeze', '-u', $self->{path});
    $self->mend;
    run('umount', '-l', $self->{path});
    delete $self->{device};
}

sub run (@command) {
    my $child = fork // die "fork: $!\n";
    if (!$child) {
        open STDERR, '>', '/dev/null';
        exec @command or POSIX::_exit(127);
    }
    waitpid $child, 0;
    return $? == 0;
}

1;
