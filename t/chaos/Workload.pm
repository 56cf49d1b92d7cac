package Workload;

# What the clients ask for. A key's route and bodies follow from its number, so
# that all clients agree on them without talking; how a run goes is each
# request's own wish.

use v5.36;

use Digest::SHA qw(sha1_hex);
use Exporter 'import';

our @EXPORT = qw(%ROUTES $LEASE $READ_TIMEOUT $SMALL_TTL key_of body_of response_body
    type_of instance_of wish some_key);

our $LEASE        = 1;      # seconds, of every route
our $READ_TIMEOUT = 4;      # of nginx, for the application
our $SMALL_TTL    = 6;

# unknown: what becomes of an unknown outcome. share: how many of all keys. breaks:
# the share of responses that break off.
our %ROUTES = (
    hold  => { unknown => 'hold',    share => 18, conf => '' },
    parts => { unknown => 'hold',    share => 8, conf => 'auth_request /allowed;',
        lua => 'auth_request /allowed; content_by_lua_file %%LUA%%;' },
    after => { unknown => 'hold',    share => 6, breaks => 0.3,
        conf => "idempotency_hold off;\nproxy_buffering off;\npost_action /afterwards;" },
    wait  => { unknown => 'hold',    share => 12, conf => 'idempotency_wait 1500ms;' },
    open  => { unknown => 'hold',    share => 12,
        conf => "idempotency_hold off;\nproxy_buffering off;" },
    free  => { unknown => 'release', share => 32,
        conf => 'idempotency_unknown_outcome release;' },
    queue => { unknown => 'release', share => 20,
        conf => "idempotency_unknown_outcome release;\nidempotency_wait 1500ms;" },
    json  => { unknown => 'hold',    share => 10, type => 'application/json',
        conf => 'idempotency_key json:/order;' },
    small => { unknown => 'hold',    share => 6, ttl => $SMALL_TTL, local => 1,
        conf => "idempotency small;\nidempotency_ttl 2xx 3xx ${SMALL_TTL}s;" },
);

# What this module is known to get wrong, by the names that --also takes.
our %ALSO = (
    mirror => 'clients that leave while a copy of mirror is under way',
);

my %also_routes = (
    mirror => { copy => { unknown => 'hold', share => 10, conf => 'mirror /copies;' } },
);

my @wheel;

# Adds the routes of these names.
sub add_routes (@names) {
    %ROUTES = (%ROUTES, %{ $also_routes{$_} // {} }) for @names;
    @wheel = ();
}

sub wheel { return map { ($_) x $ROUTES{$_}{share} } sort keys %ROUTES }

sub dice ($text) { return hex substr(sha1_hex($text), 0, 8) }

# ---- keys -----------------------------------------------------------------

sub key_of ($number) {
    @wheel = wheel() if !@wheel;
    my $route = $wheel[dice("route $number") % @wheel];
    return { name => "$route-$number", route => $route, number => $number };
}

# Of which readers of JSON think differently: half a surrogate pair, a name
# twice, a byte that is no UTF-8, a number that is too large. A byte order mark
# is another such thing.
my @ODD_BODIES = ('"%s \\ud83d"', '"%s","note":"twice"', qq("%s \xFF"), '"%s","sum":1e9999999999999999999');

# Either body of a key; whichever comes first is the one the key stands for.
sub body_of ($key, $kind) {
    my $filler = 'x' x (dice("length $key->{name}") % 3000);
    my $odd = $ODD_BODIES[dice("odd $key->{name}") % (4 * @ODD_BODIES)] // '"%s"';
    my $text = sprintf qq({"order":"$key->{name}","kind":"$kind","note":$odd}), $filler;
    return dice("mark $key->{name}") % 20 ? $text : "\xEF\xBB\xBF$text";
}

sub type_of ($key) {
    return $ROUTES{ $key->{route} }{type} // (dice("type $key->{name}") % 2 ? 'application/json' : undef);
}

# Where a memory store remembers, a key belongs to one machine.
sub instance_of ($key, $count) {
    return dice("instance $key->{name}") % $count;
}

# Mostly what others work on right now, sometimes what was long ago. A lease
# and its end are to fall into the time in which a key is asked for often.
sub some_key ($seconds, $rate) {
    my $odds = rand;
    my $age = $odds < 0.75 ? rand 2.5 : $odds < 0.92 ? rand 8 : rand $seconds;
    my $number = int(($seconds - $age) * $rate);
    return key_of($number < 0 ? 0 : $number);
}

# ---- runs -----------------------------------------------------------------

# What the application answers. No two runs give the same bytes.
sub response_body ($id, $key, $request, $size) {
    my $text = qq({"execution":"$id","key":"$key","request":"$request"}\n);
    my $block = sha1_hex($id);
    return $text . substr($block x ($size / 40 + 1), 0, $size);
}

# How the application is to behave if this request is the one that runs.
sub wish ($route) {
    my $seconds = $ROUTES{$route}{unknown} eq 'release' ? long_duration() : duration();
    my %do = (sleep => sprintf('%.3f', $seconds), size => size());
    $do{chunked} = 1 if rand() < 0.3;
    $do{pieces} = 4 if rand() < 0.2;
    my $odds = rand;
    if    ($odds < 0.07) { $do{refuse} = pick(400, 409, 422, 429, 500, 503) }
    elsif ($odds < 0.08) { $do{refuse} = 'word' }
    elsif ($odds < 0.11) { $do{die} = 'executed' }
    elsif ($odds < 0.13) { $do{die} = 'unread' }
    elsif ($odds < 0.15) { $do{die} = 'header' }
    elsif ($odds < 0.17) { $do{die} = 'body' }
    elsif ($odds < 0.18) { $do{status} = pick(502, 504) }
    elsif ($odds < 0.19) { $do{discard} = 1 }
    $do{die} = 'body' if rand() < ($ROUTES{$route}{breaks} // 0);
    $do{rst} = 1 if $do{die} && rand() < 0.5;
    return join '&', map {"$_=$do{$_}"} sort keys %do;
}

# Of an ordinary day.
sub calm_wish {
    my %do = (sleep => sprintf('%.3f', rand() < 0.95 ? rand 0.02 : rand 0.3), size => size());
    $do{chunked} = 1 if rand() < 0.3;
    my $odds = rand;
    if    ($odds < 0.08) { $do{refuse} = pick(400, 422, 500, 'word') }
    elsif ($odds < 0.10) { $do{die} = pick(qw(executed header body)) }
    elsif ($odds < 0.12) { $do{discard} = 1 }
    return join '&', map {"$_=$do{$_}"} sort keys %do;
}

# Many outlast a lease, a few outlast nginx's patience.
sub duration {
    my $odds = rand;
    return rand 0.03           if $odds < 0.40;
    return 0.05 + rand 0.4     if $odds < 0.65;
    return 0.4 + rand 0.8      if $odds < 0.80;
    return $LEASE + rand 2     if $odds < 0.99;
    return $READ_TIMEOUT + 0.5;
}

# Where a stopped owner has a successor, both are to be at it when it goes on.
sub long_duration { return rand() < 0.6 ? 0.3 + rand 2.7 : duration() }

sub size { return int(rand() < 0.9 ? rand 3000 : rand 60_000) }

sub pick (@list) { return $list[rand @list] }

1;
