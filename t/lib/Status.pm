package Status;

# What nginx says of itself at a location with `idempotency_status`, which is
# /status at port 4 unless told otherwise.
#
#   my $before = counts($ng, 'shop');
#   post($ng->port, 'k');
#   is_deeply(counted($before, counts($ng, 'shop')), { 'requests.NEW' => 1, ... });

use v5.36;

use Exporter 'import';
use JSON::PP ();

use Nginx;

our @EXPORT = qw(status_of counts counted store_counts);

sub status_of ($ng, %opt) {
    my $response = request($ng->port($opt{port} // 4), 'GET', $opt{uri} // '/status',
        headers => [Accept => 'application/json']);
    return JSON::PP::decode_json($response->{body});
}

# The numbers of a zone as {'requests.NEW' => 1, ...}, without those that are 0.
sub counts ($ng, $zone, %opt) { return flat(status_of($ng, %opt)->{zones}{$zone}) }

sub store_counts ($ng, $store = 'default', %opt) {
    return flat(status_of($ng, %opt)->{stores}{$store});
}

# Of a histogram only the count: how long things take is no matter here.
sub flat ($object, $path = '') {
    my %flat;
    for my $name (keys %$object) {
        my $value = $object->{$name};
        my $at = $path eq '' ? $name : "$path.$name";
        if (ref $value eq 'HASH') {
            %flat = (%flat, exists $value->{buckets}
                ? ($value->{count} ? ($at => $value->{count}) : ()) : %{ flat($value, $at) });
        } elsif (!ref $value && defined $value && $value =~ /^[1-9]\d*$/) {
            $flat{$at} = $value;
        }
    }
    return \%flat;
}

# What has been added since.
sub counted ($before, $after) {
    my %added = map { $_ => $after->{$_} - ($before->{$_} // 0) } keys %$after;
    return { map { $added{$_} ? ($_ => $added{$_}) : () } keys %added };
}

1;
