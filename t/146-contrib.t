#!/usr/bin/env perl

# What is in contrib/ and docs/ speaks of metrics that nginx really has, with
# labels that they really have, and of all of them.

use v5.36;

use JSON::PP ();
use Test::More;

use Keyed;
use Ledger;
use Nginx;

my $ng = Nginx->start(http => <<'CONF');
    idempotency_store small memory:1m;
    idempotency_scope none;
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name shop;
        location / { idempotency small; proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
        location = /status { idempotency_status prometheus; }
    }
CONF
post($ng->port, 'k');
my $text = request($ng->port, 'GET', '/status')->{body};
ok($ng->stop, 'nginx has told what there is');

# {name => {label => {value => 1}}}. Some are there only while a store fills.
my %metrics = map { ("nginx_idempotency_store_$_" => { store => { small => 1 } }) }
    qw(full_in_seconds facts_full_in_seconds);
while ($text =~ /^(nginx_idempotency_\w+)\{(.*)\} \S+$/mg) {
    my ($name, $labels) = ($1, $2);
    $metrics{$name}{$1}{$2} = 1 while $labels =~ /(\w+)="((?:[^"\\]|\\.)*)"/g;
}
cmp_ok(scalar keys %metrics, '>', 25, 'and it is a lot');

# Labels that Prometheus adds.
my %added = map { $_ => 1 } qw(instance job);

sub check_query ($query, $where) {
    my @names = $query =~ /\b(nginx_idempotency_\w+)/g;
    ok(@names, "$where asks for a metric");
    for my $name (@names) {
        ok($metrics{$name}, "$where: there is a $name") or next;
    }
    while ($query =~ /\b(nginx_idempotency_\w+)\{([^}]*)\}/g) {
        my ($name, $selector) = ($1, $2);
        check_selector($name, $1, $2, $3, $where) while $selector =~ /(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"/g;
    }
    while ($query =~ /\bby \(([^)]*)\)/g) {
        for my $label (split /\s*,\s*/, $1) {
            ok($added{$label} || (grep { $metrics{$_}{$label} } @names), "$where: there is a label $label");
        }
    }
}

sub check_selector ($name, $label, $how, $wanted, $where) {
    return if $added{$label};
    ok($metrics{$name}{$label}, "$where: $name has a label $label") or return;
    # A variable of the dashboard.
    return if $wanted =~ /^\$/;
    for my $value ($how =~ /~/ ? split(/\|/, $wanted) : $wanted) {
        ok($metrics{$name}{$label}{$value}, "$where: $label of $name may be $value");
    }
}

subtest 'alerts' => sub {
    my $said = `promtool check rules contrib/prometheus-rules.yml 2>&1`;
    is($?, 0, 'promtool is content') or diag($said);
    $said = `cd t/contrib && promtool test rules rules-test.yml 2>&1`;
    is($?, 0, 'and the alerts fire when they should') or diag($said);
    my @rules = split /^ +- alert: /m, Nginx::slurp('contrib/prometheus-rules.yml');
    shift @rules;
    cmp_ok(scalar @rules, '>=', 11, 'rules');
    for my $rule (@rules) {
        my ($alert) = $rule =~ /^(\w+)/;
        my ($query) = $rule =~ /^ +expr: (?:>-\n)?(.*?)^ +(?:for|labels):/ms;
        check_query($query, $alert);
        like(Nginx::slurp('docs/operations.md'), qr/`$alert`/, "$alert is in the runbook");
    }
};

subtest 'dashboard' => sub {
    my $board = JSON::PP::decode_json(Nginx::slurp('contrib/grafana-dashboard.json'));
    my @panels = @{ $board->{panels} };
    my (%id, %cell);
    for my $panel (@panels) {
        ok(!$id{ $panel->{id} }++, "$panel->{title} has an id of its own");
        my $pos = $panel->{gridPos};
        for my $x ($pos->{x} .. $pos->{x} + $pos->{w} - 1) {
            $cell{"$x $_"}++ for $pos->{y} .. $pos->{y} + $pos->{h} - 1;
        }
        check_query($_->{expr}, $panel->{title}) for @{ $panel->{targets} };
    }
    is_deeply([grep { $_ > 1 } values %cell], [], 'no panel lies on another');
    for my $variable (grep { $_->{type} eq 'query' } @{ $board->{templating}{list} }) {
        my ($name, $label) = $variable->{query}{query} =~ /^label_values\((\w+), (\w+)\)$/;
        ok($metrics{$name} && ($added{$label} || $metrics{$name}{$label}), "\$$variable->{name}");
    }
    my $all = join ' ', map { $_->{expr} } map { @{ $_->{targets} } } @panels;
    for my $name (families()) {
        next if $name =~ /_(?:info|workers_without)$/;
        like($all, qr/\b$name/, "$name is shown");
    }
};

subtest 'docs/operations.md' => sub {
    my $docs = Nginx::slurp('docs/operations.md');
    for my $name (families()) {
        my $short = $name =~ s/^nginx_idempotency_//r;
        like($docs, qr/`$short(?:\{\w+\})?`/, "$name is explained");
    }
    while ($docs =~ /^\| `(\w+)(?:\{(\w+)\})?`/mg) {
        my ($name, $label) = ("nginx_idempotency_$1", $2);
        next if !grep { $_ eq $name } families();
        ok(!defined $label || grep { $metrics{$_}{$label} } grep {/^$name/} keys %metrics,
            "$name has the label") if defined $label;
    }
};

# Without the parts of histograms.
sub families {
    return sort { $a cmp $b } keys %{ { map { s/_(?:bucket|sum|count)$//r => 1 } keys %metrics } };
}

done_testing();
