package Retry;

# The former names of what is in Keyed.pm now.

use v5.36;

use Exporter 'import';
use JSON::PP ();

use Keyed;

our @EXPORT = qw(retry_against claim claim_key ends write_to start_write executions
    ledger_of header problem is_replay is_refused is_rerun closed_port
    lua_modules);

$Keyed::BODY = '{"amount":1}';

sub problem ($response) {
    return eval { JSON::PP::decode_json($response->{body}) } // {};
}

1;
