package Report;

# The table of a run.

use v5.36;

use POSIX ();

sub text ($result) {
    my @parts = (head($result), table($result), limits($result), latencies($result));
    return join "\n", @parts;
}

sub head ($result) {
    my $nginx = qx($ENV{TEST_NGINX_BINARY} -v 2>&1) =~ m{nginx/(\S+)} ? $1 : '?';
    my ($cpu) = qx(lscpu) =~ /^Model name:\s*(.*)/m;
    my $kernel = (POSIX::uname())[2];
    my $date = POSIX::strftime('%Y-%m-%d', gmtime);
    my $openssl = qx(openssl version) =~ /^OpenSSL (\S+)/ ? $1 : '?';
    my $redis = qx(redis-cli --version 2>&1) =~ /(\d[\d.]+)/ ? $1 : '?';
    my $mode = $result->{quick} ? ', quick' : '';
    return "$date, nginx $nginx, OpenSSL $openssl, Redis $redis, Linux $kernel, $cpu, "
        . "$result->{rounds} rounds$mode, load of the machine $result->{began} before, "
        . "$result->{ended} after\n";
}

# Ratios to the limit: 1 is the limit, more is better.
sub table ($result) {
    my @names = map { my $c = $_; map {"$c->{id} $_"} qw(new replay) } @{ $result->{columns} };
    my $lines = '| | ' . join(' | ', map { ("$_->{name}, new", 'replay') } @{ $result->{columns} })
        . " | ran too often |\n|" . ' --- |' x (@names + 2) . "\n";
    for my $row (@{ ratios($result) }) {
        my @cells = map { cell($row->{ratio}{$_}) } @names;
        my $twice = $result->{twice}{ $row->{id} } // '';
        $lines .= '| ' . join(' | ', $row->{name}, @cells, $twice) . " |\n";
    }
    return $lines;
}

sub cell ($value) {
    return '' if !defined $value;
    return $value < 0 ? 'wrong' : sprintf '%.2f', $value;
}

# Of each contender that is no limit itself: {name, id, ratio => {column}}.
sub ratios ($result) {
    my @rows;
    for my $one (grep { !$_->{limit} } @{ $result->{list} }) {
        my %ratio;
        for my $column (keys %{ $result->{rows}[0] }) {
            my $limit = limit_of($result, $one, $column);
            my @all = map { $_->{$column}{$limit} / $_->{$column}{ $one->{id} } }
                grep { $_->{$column}{ $one->{id} } } @{ $result->{rows} };
            # Wrong once is wrong.
            $ratio{$column} = (grep { $_ < 0 } @all) ? -1 : median(@all) if @all;
        }
        push @rows, { name => $one->{name}, id => $one->{id}, ratio => \%ratio };
    }
    return \@rows;
}

sub limit_of ($result, $one, $column) {
    my ($kind) = $column =~ /(\S+)$/;
    my ($limit) = grep {
        ($_->{limit} // '') eq $kind && !!$_->{http2} == !!$one->{http2}
    } @{ $result->{list} };
    return $limit->{id};
}

# What the limits cost, so that a ratio can be made a time.
sub limits ($result) {
    my $lines = "CPU time of a request, in microseconds, and how far rounds lay apart:\n\n"
        . '| | ' . join(' | ', map { ("$_->{name}, new", 'replay') } @{ $result->{columns} })
        . " |\n|" . ' --- |' x (2 * @{ $result->{columns} } + 1) . "\n";
    for my $one (@{ $result->{list} }) {
        my @cells = map { my $c = $_; map { time_of($result, $one, "$c->{id} $_") } qw(new replay) }
            @{ $result->{columns} };
        $lines .= '| ' . join(' | ', $one->{name}, @cells) . " |\n";
    }
    return $lines;
}

sub time_of ($result, $one, $column) {
    my @all = sort { $a <=> $b } grep {defined} map { $_->{$column}{ $one->{id} } }
        @{ $result->{rows} };
    return '' if !@all;
    return 'wrong' if $all[0] < 0;
    return sprintf '%.1f (%.1f–%.1f)', median(@all), $all[0], $all[-1];
}

sub latencies ($result) {
    my $lines = "Latency at 1,000 requests per second of 300 B, in microseconds:\n\n"
        . "| | new: p50 | p99 | p99.9 | replay: p50 | p99 | p99.9 |\n|" . ' --- |' x 7 . "\n";
    for my $one (grep { $result->{latency}{ $_->{id} } } @{ $result->{list} }) {
        my $of = $result->{latency}{ $one->{id} };
        my @cells = map { my $l = $of->{$_}; map { $l ? sprintf('%.0f', $l->[$_]) : '' } 0 .. 2 }
            qw(new replay);
        $lines .= '| ' . join(' | ', $one->{name}, @cells) . " |\n";
    }
    return $lines;
}

sub median (@values) {
    @values = sort { $a <=> $b } @values;
    my $half = int(@values / 2);
    return @values % 2 ? $values[$half] : ($values[$half - 1] + $values[$half]) / 2;
}

1;
