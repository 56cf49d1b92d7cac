package Admin;

# Requests to a location with `idempotency_admin`, which is /admin at port 4.
#
#   my $id = find($ng, key => 'k', method => 'POST', ...)->{id};
#   is(act($ng, act => 'release', id => $id)->{status}, 200);

use v5.36;

use Exporter 'import';
use JSON::PP ();

use Nginx;

our @EXPORT = qw(ask act find unknown_of all_pages answer_of);

# A question: the query string.
sub ask ($ng, $query, %opt) {
    return request($ng->port(4), 'GET', "/admin?$query", headers => $opt{headers} // []);
}

# An act: a form. headers => instead of the one that is needed.
sub act ($ng, @fields) {
    my %opt = ref $fields[0] ? %{ shift @fields } : ();
    return request($ng->port(4), 'POST', $opt{uri} // '/admin', body => form(@fields),
        headers => ['Content-Type' => 'application/x-www-form-urlencoded',
            @{ $opt{headers} // ['X-Idempotency-Admin' => '1'] }]);
}

sub form (@fields) {
    my @pairs;
    while (my ($name, $value) = splice @fields, 0, 2) {
        push @pairs, "$name=" . ($value =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger);
    }
    return join '&', @pairs;
}

sub answer_of ($response) { return eval { JSON::PP::decode_json($response->{body}) } // {} }

# The record of a key that has no scope.
sub find ($ng, $key, %opt) {
    my %route = (host => 'localhost', port => $ng->port, method => 'POST', path => '/x', %opt);
    return answer_of(act($ng, act => 'find', key => $key, %route));
}

sub unknown_of ($ng) {
    return all_pages(sub ($query) { answer_of(ask($ng, $query)) });
}

# All unknown outcomes. A page can be empty: each server of a cluster has its
# own.
sub all_pages ($ask) {
    my ($from, @records) = 0;
    for (1 .. 1000) {
        my $page = $ask->("unknown&from=$from");
        push @records, @{ $page->{unknown} };
        $from = $page->{next} // return @records;
    }
    die "the list has no end\n";
}

1;
