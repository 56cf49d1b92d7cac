#!/usr/bin/env perl

# The status page, in a real browser: it shows what the JSON says, is alive, can
# be used without a mouse, and needs nothing but its own address.
# TEST_SCREENSHOTS=folder keeps what it looks like.

use v5.36;

use Test::More;

use Browser;
use Keyed;
use Ledger;
use Nginx;
use Status;

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';
my $odd = '<img src=x onerror=alert(1)>';

sub serve ($servers) {
    return Nginx->start(http => <<"CONF");
    idempotency_scope none;
    $servers
    server { listen 127.0.0.1:%%PORT4%%; location = /status { idempotency_status; } }
CONF
}

my $ng = serve(<<"CONF");
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name shop.example;
        location / { idempotency on; $pass }
        location /odd { idempotency on; idempotency_status_zone '$odd'; $pass }
        location /pay { idempotency on; idempotency_status_zone payments; $pass }
    }
CONF

my $browser = Browser->start;
my $page = 'http://127.0.0.1:' . $ng->port(4) . '/status';

sub number ($id) { return $browser->run("return +document.getElementById('$id').dataset.value") }

sub text ($selector) {
    return $browser->run("return document.querySelector(arguments[0]).innerText", $selector);
}

sub cell ($zone, $id) {
    return $browser->run(<<'JS', $zone, $id);
    for (const row of document.querySelectorAll('#zones tbody tr')) {
        if (row.dataset.zone === arguments[0]) {
            return +row.querySelector(`td[data-id="${arguments[1]}"]`).dataset.value;
        }
    }
    return null;
JS
}

sub zone_names { return $browser->run(
    "return [...document.querySelectorAll('#zones tbody tr')].map(row => row.dataset.zone)") }

# Until the page shows the number.
sub shows ($id, $value) {
    return wait_until(sub { (number($id) // -1) == $value }, 20, "$id to be $value");
}

sub picture ($name) {
    my $folder = $ENV{TEST_SCREENSHOTS} or return;
    $browser->screenshot("$folder/$name.png");
}

subtest 'a page without numbers explains itself' => sub {
    $browser->go($page);
    ok(wait_until(sub { text('#empty-title') =~ /Nothing has been counted/ }, 20, 'the page'),
        'it says so');
    like(text('#empty-code'), qr/Idempotency-Key/, 'and what to try');
    picture('empty');
};

post($ng->port, "key-$_", uri => '/x') for 1 .. 8, 1 .. 5;
post($ng->port, "key-$_", uri => '/x', body => 'other') for 1 .. 2;
post($ng->port, "pay-$_", uri => '/pay') for 1 .. 3, 1 .. 3, 1 .. 3;
post($ng->port, 'dead', uri => '/pay', do => 'die=before') for 1 .. 2;
post($ng->port, 'odd', uri => '/odd');
post($ng->port, undef, uri => '/x');

subtest 'it is alive: the numbers come without a reload, and are those of the JSON' => sub {
    ok(shows('total-saved', 5 + 6), 'retries saved');
    my $status = status_of($ng);
    my @zones = values %{ $status->{zones} };
    my $sum = sub ($of) { my $all = 0; $all += $of->($_) for @zones; return $all };
    is(number('total-saved'), $sum->(sub ($z) { $z->{requests}{REPLAY} }), 'saved');
    is(number('total-ran'), $sum->(sub ($z) { $z->{requests}{NEW} }), 'runs');
    is(number('total-unknown'), $sum->(sub ($z) { $z->{runs}{unknown} }), 'unknown outcomes');
    is(number('total-stopped'), 2 + 1, 'duplicates stopped');
    my %column = (runs => 'NEW', replays => 'REPLAY', in_progress => 'IN_PROGRESS',
        reused => 'REUSED', unknown => 'UNKNOWN', not_kept => 'NOT_KEPT', invalid => 'INVALID',
        store_error => 'STORE_ERROR', unprotected => '-');
    for my $zone (sort keys %{ $status->{zones} }) {
        is_deeply({ map { $_ => cell($zone, $_) } keys %column },
            { map { $_ => $status->{zones}{$zone}{requests}{ $column{$_} } } keys %column }, $zone);
    }
    my $ages = $browser->run(
        "return [...document.querySelectorAll('#ages td[data-value]')].map(c => +c.dataset.value)");
    my $age_sum = 0;
    $age_sum += $_ for @$ages;
    is($age_sum, 11, 'ages of all replays');
    like(text('[data-store=default]'), qr/available/, 'the store');
    ok($browser->run("return document.getElementById('empty').hidden"), 'no explanation any more');
};

subtest 'a name is text, whatever it is' => sub {
    ok((grep { $_ eq $odd } @{ zone_names() }), 'shown as it is');
    is($browser->run("return document.querySelectorAll('#zones img').length"), 0, 'and no more');
};

subtest 'charts show rates' => sub {
    post($ng->port, 'key-1', uri => '/x') for 1 .. 10;
    ok(shows('total-saved', 21), 'more replays');
    ok(wait_until(sub {
        $browser->run("return [...document.querySelectorAll('#charts svg')].map(s => "
            . "s.getAttribute('aria-label'))")->[1] =~ /highest (?!0)/;
    }, 20, 'a rate'), 'and say it in words too');
};

subtest 'the table is sorted by the keyboard' => sub {
    is_deeply(zone_names(), [sort @{ zone_names() }], 'by name at first');
    $browser->run("document.querySelector('th[data-id=replays] button').focus()");
    $browser->keys('Enter');
    is(zone_names()->[0], 'shop.example', 'most replays first');
    is($browser->run("return document.querySelector('th[data-id=replays]').ariaSort"),
        'descending', 'a screen reader is told');
    $browser->keys('Enter');
    is(zone_names()->[0], $odd, 'then the fewest');
    $browser->run("document.activeElement.blur()");
    my @stops;
    for (1 .. 3) {
        $browser->keys('Tab');
        push @stops, $browser->run("return document.activeElement.tagName");
    }
    ok((grep { $_ eq 'BUTTON' } @stops), 'the tab key gets there');
};

subtest 'it can be paused' => sub {
    $browser->run("document.getElementById('pause').focus()");
    $browser->keys('Space');
    is($browser->run("return document.getElementById('pause').ariaPressed"), 'true', 'paused');
    my $was = number('total-saved');
    post($ng->port, 'key-1', uri => '/x');
    # Longer than it would take to ask twice.
    select undef, undef, undef, 4.5;
    is(number('total-saved'), $was, 'stands still');
    $browser->keys('Space');
    ok(shows('total-saved', $was + 1), 'goes on');
};

subtest 'headings, names and languages' => sub {
    is($browser->run("return document.documentElement.lang"), 'en', 'language');
    is_deeply($browser->run("return [...document.querySelectorAll('section')].filter(s => "
        . "!document.getElementById(s.getAttribute('aria-labelledby'))).length"), 0,
        'each section has a name');
    is($browser->run("return [...document.querySelectorAll('svg, progress')].filter(e => "
        . "!e.getAttribute('aria-label')).length"), 0, 'so has each picture');
};

for my $look (['light', 1100], ['dark', 1100], ['light', 360], ['dark', 360]) {
    my ($scheme, $width) = @$look;
    subtest "$scheme, $width wide" => sub {
        $browser->media($scheme);
        $browser->size($width, 900);
        cmp_ok($browser->run('return document.documentElement.scrollWidth'), '<=', $width,
            'nothing sticks out');
        cmp_ok($browser->run("const t = document.querySelector('#zones').parentElement;"
            . "return t.scrollWidth - t.clientWidth"), '<=', 0, 'nor is a column hidden');
        cmp_ok(lowest_contrast(), '>=', 4.5, 'all text is readable');
        picture("$scheme-$width");
    };
}

subtest 'one address, a strict policy, nothing in the console' => sub {
    is_deeply([grep { $_ ne $page } @{ $browser->run(
        "return performance.getEntriesByType('resource').map(e => e.name)") }], [],
        'nothing else was loaded');
    my $response = request($ng->port(4), 'GET', '/status', headers => [Accept => 'text/html']);
    my $policy = header($response, 'Content-Security-Policy');
    like($policy, qr/^default-src 'none'; script-src 'sha256-/, 'policy');
    unlike($policy, qr/unsafe/, 'without exceptions');
    is_deeply([$browser->complaints], [], 'console');
};

subtest 'when nginx is gone the page says so' => sub {
    my $port = $ng->port(4);
    ok($ng->stop, 'stops');
    $ng->check_logs;
    ok(wait_until(sub { text('#alarm') =~ /out of date/ }, 20, 'an alarm'), 'alarm');
    picture('gone');
    ok($ng->launch, 'starts again');
    ok(wait_until(sub { text('#alarm') eq '' }, 20, 'the end of it'), 'and takes it back');
};

subtest 'nothing is protected' => sub {
    my $none = serve('');
    $browser->go('http://127.0.0.1:' . $none->port(4) . '/status');
    ok(wait_until(sub { text('#empty-title') =~ /No location is protected/ }, 20, 'the page'),
        'it says what to do');
    ok($none->stop, 'stops');
};

$browser->stop;
$ng->stop;

# Of any text with what is behind it, as WCAG computes it.
sub lowest_contrast {
    return $browser->run(<<'JS');
    const parse = c => c.match(/[\d.]+/g).map(Number);
    const light = c => c.slice(0, 3).map(v => v / 255)
        .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] > 0) { return c; }
        }
        return [255, 255, 255];
    };
    let lowest = 21;
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!own || !e.checkVisibility() || e.closest('script, noscript, svg')) { continue; }
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
        lowest = Math.min(lowest, (a + .05) / (b + .05));
    }
    return lowest;
JS
}

done_testing();
