#!/usr/bin/env perl

# One line for each unknown outcome and for each refusal, with the reason and
# the id of the record; what a dry run says; and the variables for access_log.

use v5.36;

use Test::More;

use Admin;
use Keyed;
use Ledger;
use Nginx;

my $pass = 'proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT;';

my $ng = Nginx->start(http => <<"CONF");
    idempotency_scope none;
    log_format outcome '\$uri|\$idempotency_status|\$idempotency_outcome|\$idempotency_error|'
        '\$idempotency_original_status|\$idempotency_original_location|\$idempotency_error_detail';
    access_log %%DIR%%/outcome.log outcome;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { idempotency on; $pass }
        location /required { idempotency on; idempotency_required on; $pass }
        location /dry { idempotency on; idempotency_dry_run on; $pass }
        location /quiet { idempotency on; idempotency_log_level warn; $pass }
        location /quiet/dry { idempotency on; idempotency_log_level notice; idempotency_dry_run on; $pass }
        location /silent { idempotency on; idempotency_log_level info; $pass }
        location /small { idempotency on; idempotency_max_response 10; $pass }
    }
    server {
        listen 127.0.0.1:%%PORT4%%;
        location = /admin { idempotency_admin; access_log off; }
    }
CONF
retry_against($ng);

my $read = 0;

# Of this module, since the last time, as "level: text".
sub news {
    my $log = $ng->error_log;
    my @lines = substr($log, $read) =~ /\[(\w+)\] [^\n]*?idempotency: ([^\n]*?)(?: while [^\n]*)?, client:/g;
    $read = length $log;
    my @news;
    while (my ($level, $text) = splice @lines, 0, 2) {
        push @news, "$level: $text";
    }
    return \@news;
}

# What access_log says of the last request. It is written after the answer.
sub is_logged ($wanted, $title) {
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $got;
    wait_until(sub {
        my @lines = split /\n/, $ng->read('outcome.log');
        my @fields = map { $_ eq '-' ? '' : $_ } split /\|/, $lines[-1] // '', -1;
        $got = join ' ', grep { length } @fields[1 .. 5];
        return $got eq $wanted;
    }, 3, 'a line');
    is($got, $wanted, $title);
}

sub id_of ($uri = '/x') { return find($ng, claim_key(), path => $uri)->{id} }

my $check = 'check in the application whether it executed the request';

claim 'an unknown outcome' => sub {
    write_to('/x', do => 'die=before');
    my $id = id_of();
    is_deeply(news(), ["error: outcome of record $id is unknown: the request was sent, but no "
        . "complete response arrived; $check"], 'one line, at level error');
    is_logged('NEW unknown', 'and in access_log');
    write_to('/x');
    is_deeply(news(), [qq(info: request refused with "outcome_unknown", record $id)],
        'a refusal has the same id');
    is_logged('UNKNOWN outcome_unknown', 'and its code');
};

claim 'an outcome that the status does not tell' => sub {
    write_to('/x', do => 'status=502');
    is_deeply(news(), ['error: outcome of record ' . id_of() . ' is unknown: the response status '
        . "does not tell whether it was executed; $check"], 'one line');
};

claim 'refusals before there is a record' => sub {
    write_to('/required', key => undef);
    is_deeply(news(), ['info: request refused with "key_missing", record -'], 'have no id');
};

claim 'no key and no body gets into the log' => sub {
    write_to('/x', body => 'a secret');
    write_to('/x', body => 'another secret');
    is_deeply(news(), ['info: request refused with "key_reused", record ' . id_of()], 'one line');
    unlike($ng->error_log, qr/secret|\Q${\ claim_key() }\E/, 'neither in any other');
};

claim 'outcomes in access_log' => sub {
    write_to('/x');
    is_logged('NEW completed', 'completed');
    write_to('/x');
    is_logged('REPLAY', 'a replay has none of its own');
    write_to('/x/released', do => 'status=500');
    is_logged('NEW released', 'released');
    write_to('/small', do => 'status=201&h=Location:/orders/9&size=500');
    is_logged('NEW not_kept', 'not kept');
    write_to('/small', do => 'status=201&h=Location:/orders/9&size=500');
    is_logged('NOT_KEPT response_not_kept 201 /orders/9', 'what is left of it');
    like($ng->read('outcome.log'), qr/\|An earlier request with this idempotency key was executed, /,
        'and the reason in words');
    news();
};

claim 'a dry run says what would happen' => sub {
    write_to('/dry');
    is_deeply(news(), [], 'nothing would');
    write_to('/dry');
    my $news = news();
    my ($id) = ($news->[0] // '') =~ /record ([0-9a-f]{32})$/;
    is_deeply($news, ["error: dry run: this request would get the stored response, which is 0 s "
        . "old, record $id"], 'a replay');
    is(answer_of(Admin::ask($ng, "id=$id"))->{state}, 'completed', 'the record is there');
    isnt(id_of('/dry') // '', $id, 'but it is not that of a real run');
    write_to('/dry', body => 'other');
    is_deeply(news(), [qq(error: dry run: this request would be refused with "key_reused", record $id)],
        'a refusal');
};

claim 'idempotency_log_level sets the level' => sub {
    write_to('/quiet', do => 'die=before');
    like(news()->[0], qr/^warn: outcome of record/, 'of an unknown outcome');
    write_to('/quiet');
    like(news()->[0], qr/^info: request refused/, 'a refusal stays below');
    write_to('/quiet/dry') for 1 .. 2;
    like(news()->[0], qr/^notice: dry run/, 'of a dry run');
    write_to('/silent', do => 'die=before') for 1 .. 2;
    my $news = news();
    is(@$news, 1, 'below info there is no line');
    like($news->[0], qr/^info: outcome of record/, 'of an unknown outcome');
};

ok($ng->stop, 'stops');
$ng->check_logs;

done_testing();
