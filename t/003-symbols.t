use v5.36;
use Test::More;
use Store;

memory_only('needs no store');

# nginx loads modules into one global scope, where any other name of ours could
# be bound to, or take the place of, a name of another module.

my ($module) = grep {/ngx_http_idempotency_module\.so$/}
    split ' ', $ENV{TEST_NGINX_LOAD_MODULES} // '';

plan skip_all => 'the module is linked into nginx' if !$module;

my @names = map { (split)[2] } readpipe "nm -D --defined-only $module";

is_deeply([sort @names], [qw(ngx_module_names ngx_module_order ngx_modules)],
    'the module exports only what nginx looks up');

done_testing;
