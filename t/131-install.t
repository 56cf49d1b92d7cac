# ./build.sh install: the module gets to the nginx in use, without harm to the
# one that runs, and what does not fit is refused before anything changes.

use v5.36;

use File::Temp ();
use Test::More;
use Ledger;
use Keyed;
use Nginx;

memory_only('about files');

my $NGINX = '/usr/sbin/nginx';
plan(skip_all => "about Debian's nginx")
    if ($ENV{TEST_NGINX_BINARY} // '') ne $NGINX || !-d '/usr/share/nginx/src';

my $dir = File::Temp->newdir('install-XXXXXX', TMPDIR => 1);
chmod 0755, "$dir";
my $name = 'ngx_http_idempotency_module.so';
my $built = $ENV{TEST_NGINX_LOAD_MODULES};
my $target = "$dir/root/usr/lib/nginx/modules/$name";

# (exit status, what it said)
sub install (%env) {
    local @ENV{ 'DESTDIR', keys %env } = ("$dir/root", values %env);
    my $text = `./build.sh install 2>&1`;
    return ($? >> 8, $text);
}

sub inode ($file) { return (stat $file)[1] }

# A copy of a program in which bytes differ.
sub patched ($from, $to, $change) {
    my $before = my $bytes = Nginx::slurp($from);
    $change->($bytes);
    die "$from was not changed\n" if $bytes eq $before;
    write_file($to, $bytes);
    chmod 0755, $to;
    return $to;
}

# ---- a first time ---------------------------------------------------------

my ($status, $said) = install();
is($status, 0, 'installs') or diag($said);
ok(Nginx::slurp($target) eq Nginx::slurp($built), 'what was built');
is((stat $target)[2] & 07777, 0644, 'everybody may read it');
like($said, qr{is nginx [\d.]+, its modules are in /usr/lib/nginx/modules$}m, 'says for whom');
like($said, qr{^\s+load_module /usr/lib/nginx/modules/$name;$}m, 'says what to write');

my $first = inode($target);
($status, $said) = install();
is($status, 0, 'once more');
is(inode($target), $first, 'the same file is left alone');
like($said, qr/is up to date/, 'and it says so');

write_file("$dir/wrapper", qq(#!/bin/sh\nexec $NGINX "\$@"\n));
chmod 0755, "$dir/wrapper";
($status, $said) = install(NGINX_BINARY => "$dir/wrapper");
is($status, 0, 'for an nginx that a script starts') or diag($said);

# ---- below a running nginx ------------------------------------------------

{
    # An older build: it must differ, and be loadable.
    unlink $target;
    patched($built, $target, sub { $_[0] .= 'older' });

    local $ENV{TEST_NGINX_LOAD_MODULES} = $target;
    my $ng = Nginx->start(http => <<'CONF');
    server {
        listen 127.0.0.1:%%PORT%%;
        idempotency on;
        idempotency_scope none;
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_UPSTREAM_PORT; }
    }
CONF
    my @pids = ($ng->master_pid, $ng->worker_pids);
    is(said(post($ng->port, 'a')), '201 #1', 'a run before');
    my $old = inode($target);
    ($status, $said) = install();
    is($status, 0, 'installs');
    isnt(inode($target), $old, 'another file is in its place');
    is(said(post($ng->port, 'a')), '201 #1 replayed', 'nginx works on, with its records');
    is(said(post($ng->port, 'b')), '201 #2', 'and runs others');
    ok($ng->reload, 'reloads');
    is(said(post($ng->port, 'a')), '201 #1 replayed', 'with its records');
    is($ng->master_pid, $pids[0], 'the master is the same');
    ok($ng->stop, 'stops');
    $ng->check_logs;
}

# ---- what does not fit ----------------------------------------------------

sub refused ($title, $pattern, %env) {
    my $before = inode($target);
    my ($status, $said) = install(%env);
    subtest $title => sub {
        isnt($status, 0, 'fails');
        like($said, $pattern, 'says why');
        is(inode($target), $before, 'nothing was changed');
    };
}

mkdir $_ for map {"$dir/$_"} 'src', 'src/src', 'src/src/core';
write_file("$dir/src/src/core/nginx.h", qq(#define NGINX_VERSION      "1.9.9"\n));

refused('a source of another version', qr{^build\.sh: $NGINX is nginx [\d.]+, but the source in \Q$dir\E/src is of nginx 1\.9\.9: nginx would refuse the module\.}m,
    NGINX_SRC => "$dir/src");
refused('no source', qr{no nginx source in \Q$dir\E/none: unpack the source of nginx \d},
    NGINX_SRC => "$dir/none");
refused('no nginx', qr{no nginx at \Q$dir\E/none, see NGINX_BINARY},
    NGINX_BINARY => "$dir/none");

my $other = patched($NGINX, "$dir/other", sub { $_[0] =~ s/([48],[48],[48],0)0(?=[01])/${1}1/g });
refused('an nginx with other options', qr{the module does not fit \Q$other\E: nginx was built with other options .* Signature of nginx: 8,\S+, of the module: 8,\S+, first difference at character \d+\.}s,
    NGINX_BINARY => $other);

done_testing;
