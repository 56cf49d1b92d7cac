#!/usr/bin/perl

# Instructions per request, counted by callgrind: a measure that does not swing
# with the machine. They are compared with those of bench/instructions, and may
# differ by 5 %.
#
#   check.pl            fails where they differ by more
#   check.pl --update   writes the file

use v5.36;

use FindBin;
use lib "$FindBin::Bin/lib", "$FindBin::Bin/../t/lib";

use Application;
use Gateway;

my $FILE = "$FindBin::Bin/instructions";
my $TOLERANCE = 0.05;
my $REQUESTS = 300;

# Each where the module is off, without a key, with keys of its own, and then
# with the same again.
my %LOAD = (
    off => { path => '/off', keys => -1 },
    'no-key' => { keys => -1 },
    new => { prefix => 'keys' },
    replay => { prefix => 'keys' },
);
my @KINDS = qw(off no-key new replay);
my @CASES = (
    { name => '300-bytes', path => 'small', body => 300 },
    { name => '16-KiB-JSON-request', path => 'small', body => 16384 },
    { name => '64-KiB-answer', path => 'large', body => 300 },
);

main(@ARGV);

sub main (@arguments) {
    my $update = @arguments && $arguments[0] eq '--update';
    my $measured = measure();
    if ($update) {
        write_file($measured);
        return;
    }
    exit(compare($measured, read_file()) ? 0 : 1);
}

# ---- measuring ------------------------------------------------------------

sub measure {
    my $application = Application->new;
    my %measured;
    for my $case (@CASES) {
        my $gateway = start_gateway($application, $case->{path});
        my %load = ($application->load, body => $case->{body}, expect => $Application::SIZE{ $case->{path} });
        # What is made once is not counted.
        $gateway->load(%load, prefix => 'before', requests => 50);
        $gateway->load(%load, %{ $LOAD{off} }, requests => 50);
        for my $kind (@KINDS) {
            my $ran;
            $measured{"$case->{name} $kind"} = count($gateway, $kind, sub {
                $ran = $gateway->load(%load, %{ $LOAD{$kind} }, requests => $REQUESTS)->{executions};
            });
            my $expected = $kind eq 'replay' ? 0 : $REQUESTS;
            die "$case->{name}, $kind: $ran executions, not $expected\n" if $ran != $expected;
        }
        $gateway->stop;
    }
    return \%measured;
}

sub start_gateway ($application, $path) {
    my $port = $application->port($path);
    return Gateway->start(
        modules => [$ENV{TEST_NGINX_LOAD_MODULES}],
        under => [qw(valgrind --tool=callgrind --callgrind-out-file=counted
            --collect-atstart=no --toggle-collect=ngx_process_events_and_timers)],
        http => <<"END");
    client_body_buffer_size 64k;
    upstream application { server 127.0.0.1:$port; keepalive 4; }
    server {
        listen %%PORT%%;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        location / {
            idempotency on;
            idempotency_scope none;
            proxy_pass http://application;
        }
        location /off { proxy_pass http://application; }
    }
END
}

# callgrind writes a file of its own for each dump.
sub count ($gateway, $name, $work) {
    control($gateway, '-z');
    $work->();
    control($gateway, "-d $name");
    my ($newest) = sort { $b cmp $a } glob $gateway->dir . "/counted.?";
    open my $file, '<', $newest // '' or die "callgrind has written nothing\n";
    while (my $line = readline $file) {
        return int($1 / $REQUESTS) if $line =~ /^summary: (\d+)/;
    }
    die "$newest has no summary\n";
}

sub control ($gateway, $option) {
    my $pid = $gateway->pid;
    my $said = qx(callgrind_control $option $pid 2>&1);
    die "callgrind_control: $said" if $?;
}

# ---- the file -------------------------------------------------------------

sub names {
    return map { my $case = $_; map {"$case->{name} $_"} @KINDS } @CASES;
}

sub write_file ($measured) {
    open my $file, '>', $FILE or die "$FILE: $!\n";
    print {$file} "# Instructions per request of the whole nginx, on memory, counted by callgrind.\n",
        "# Written by ./build.sh bench --update, compared by ./build.sh bench --check.\n";
    printf {$file} "%-28s %d\n", $_, $measured->{$_} for names();
    close $file;
    print "bench/instructions is written\n";
}

sub read_file {
    my %kept;
    open my $file, '<', $FILE or die "$FILE: $!\n";
    while (my $line = readline $file) {
        $kept{$1} = $2 if $line =~ /^(\S+ \S+)\s+(\d+)$/;
    }
    return \%kept;
}

sub compare ($measured, $kept) {
    my $good = 1;
    printf "%-28s %10s %10s\n", 'instructions per request', 'kept', 'now';
    for my $name (names()) {
        my ($was, $is) = ($kept->{$name} // 0, $measured->{$name});
        my $change = $was ? $is / $was - 1 : 1;
        my $off = abs $change > $TOLERANCE;
        printf "%-28s %10d %10d  %+.1f %%%s\n", $name, $was, $is, 100 * $change,
            $off ? '  <--' : '';
        $good = 0 if $off;
    }
    return 1 if $good;
    print "\nMore than 5 % away from bench/instructions. If this is meant, or nginx or a\n",
        "library is another now, run ./build.sh bench --update and say why in the commit.\n";
    return 0;
}
