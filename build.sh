#!/usr/bin/env bash

# Builds, runs and tests the module on Debian.  ./build.sh help says how.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=$ROOT/build
MODULE=ngx_http_idempotency_module

cd "$ROOT"

# Another nginx than the installed one can be named by these two.
DEBIAN_NGINX=/usr/sbin/nginx
DEBIAN_NGINX_SRC=/usr/share/nginx/src
NGINX_BINARY=${NGINX_BINARY:-$DEBIAN_NGINX}
NGINX_SRC=${NGINX_SRC:-$DEBIAN_NGINX_SRC}

# shellcheck source=util/packages.sh
. util/packages.sh
# shellcheck source=util/nginx.sh
. util/nginx.sh
# shellcheck source=util/install.sh
. util/install.sh
# shellcheck source=util/demo.sh
. util/demo.sh
# shellcheck source=util/prove.sh
. util/prove.sh
# shellcheck source=util/test.sh
. util/test.sh
# shellcheck source=util/sanitizers.sh
. util/sanitizers.sh
# shellcheck source=util/chaos.sh
. util/chaos.sh
# shellcheck source=util/fuzz.sh
. util/fuzz.sh
# shellcheck source=util/model.sh
. util/model.sh
# shellcheck source=util/bench.sh
. util/bench.sh
# shellcheck source=util/zone.sh
. util/zone.sh
# shellcheck source=util/variants.sh
. util/variants.sh
# shellcheck source=util/roots.sh
. util/roots.sh
# shellcheck source=util/matrix.sh
. util/matrix.sh
# shellcheck source=util/deb.sh
. util/deb.sh
# shellcheck source=util/lint.sh
. util/lint.sh


usage()
{
    cat <<END
usage: ./build.sh command

  build                    build/$MODULE.so, for the installed nginx
  install                  build for the nginx in use, and put the module into
                           its modules folder; \$DESTDIR before it, if set
  deb                      a Debian package, in build/deb
  deb --check              the same, then use it and remove it in a fresh Debian
  run                      build, then nginx with a demo upstream on port
                           \${PORT:-8080}, until Ctrl-C
  test [arguments]         build, then unit tests and t/*.t; the arguments,
                           options or files, go to prove
  test --asan [arguments]  the same with nginx and the module built with
                           address and undefined behaviour sanitizers
  test --hup [files]       the Test::Nginx files with a reload, instead of a
                           restart, before each block
  test --valgrind [files]  the Test::Nginx files under valgrind
  test --static [files]    with nginx built from source and the module in it
  test --small [files]     with an nginx without SSL, HTTP/2 and mirror: those
                           files that can do without
  matrix [ROW...]          all tests on other Debians, with their nginx, Redis
                           and compilers, in folders under /var/tmp.  ROW is
                           one of $(matrix_rows)
  chaos [options]          break everything while clients retry, and check that
                           nothing ran twice: --seconds N --seed S
                           --store memory|file|redis|sentinel|cluster
                           --keep; --load fast --rate N --rounds N for many
                           keys
  chaos --without NAME     the same with one protection patched out of a copy
                           of the source, which has to fail.  NAME is one of
                           $(protections)
  chaos --mutants [NAME...]
                           does that for each of them, on the stores where it
                           matters, until a violation is found or 5 minutes
                           have passed; prints a table
  soak [minutes]           steady load, fails when memory grows
  fuzz [seconds]           fuzz with every program of t/fuzz, each for 60
                           seconds or as many as said
  fuzz --runs N            the same with N inputs each
  model                    check the models of the Redis store in docs/model
  model --quick            what holds and what does not hold today, but not the
                           cases that take long
  model NAME               the cases of one model, or the story of one case
  bench [--quick]          what a request costs, beside other gateways, in CPU
                           time: a table and a chart.  Quick: in a minute.
                           --rounds N --only NAME,NAME...
                           --against MODULE.so: another build beside this one
  bench --profile          where that time goes, by perf
  bench --growth           how that grows: with headers, body, requests in flight
  bench --check            count the instructions of a request, and compare them
                           with bench/instructions
  bench --update           count them and write that file
  zone-dump FILE           print the records of a memory store's file, which may
                           be in use: states, times and sizes, no responses
  format                   format the C++ sources
  lint                     check their format, and the shell scripts
  deps SET...              install the packages a command needs; SET is one of
                           $(package_sets)
  clean                    remove build/

Every command installs the packages it misses, and only those, so a first call
may need root or sudo.

environment:

  PORT, UPSTREAM_PORT      ports of the demo; 8080, and the one after PORT
  CC                       another compiler, e.g. clang-14
  NGINX_BINARY             nginx to run instead of $DEBIAN_NGINX
  NGINX_SRC                its headers, configure and conf_flags, instead of
                           $DEBIAN_NGINX_SRC of the package nginx-dev;
                           the source of nginx itself will do too
  TEST_IDEMPOTENCY_STORE   memory, file, redis, sentinel or cluster: test on
                           this store only
  TEST_REDIS_BINARY        the Redis server to test with
END
}


say()
{
    printf '\n== %s\n' "$*" >&2
}


die()
{
    printf 'build.sh: %s\n' "$*" >&2
    exit 1
}


# Two calls at once must not write to build/ at once.
locked()
{
    mkdir -p "$BUILD"
    (flock 9; "$@") 9> "$BUILD/lock"
}


# nginx takes a variable NGINX for a list of sockets that it inherits, and does
# not start when it holds something else.
forget_nginx_variable()
{
    if [[ ${NGINX:-} ]]; then
        say "NGINX is ignored: NGINX_BINARY names the nginx to run"
    fi

    unset NGINX
}


build()
{
    prepare_nginx
    build_module "$BUILD" "$ROOT"
}


# build_module OUT SOURCE: the module in folder SOURCE for the installed nginx,
# as OUT/$MODULE.so.
build_module()
{
    local out=$1 module=$2 flags=()

    [[ -x $NGINX_BINARY ]] || die "no nginx at $NGINX_BINARY, see NGINX_BINARY"
    configure_flags
    configure "$out/objs" "$NGINX_SRC" "$module" "${flags[@]}"

    say "building ${out#"$ROOT/"}/$MODULE.so"
    nginx_make "$out/objs" "$NGINX_SRC" modules
    cp -u --remove-destination "$out/objs/$MODULE.so" "$out/"
}


# configure OUT NGINX_SOURCE MODULE_SOURCE arguments...: runs nginx's configure
# if what it depends on has changed; MODULE_SOURCE is empty for nginx alone.
# OUT is then started anew, since nginx's make does not rebuild objects when
# their flags change.
configure()
{
    local out=$1 source=$2 module=$3 state
    shift 3

    if [[ $module ]]; then
        set -- "$@" --add-dynamic-module="$module"
    fi

    state=$(
        echo "$source $* ${CC:-}"
        ${CC:-c++} --version
        find "$source/" -name '*.h' -printf '%p %s %t\n' | sort | sha1sum
        [[ ! $module ]] || cat "$module"/{config,config.make,src/exports.map}
    )

    if [[ -f $out/Makefile && -f $out/configured \
        && $(< "$out/configured") == "$state" ]]
    then
        return
    fi

    say "configuring ${out#"$ROOT/"}"

    rm -rf "$out"
    mkdir -p "$out"
    # The features that configure tries out do not care about their leaks.
    (cd "$source" && ASAN_OPTIONS=detect_leaks=0 \
        ./configure --builddir="$out" "$@") > "$out/configure.log" \
        || { tail -n 20 "$out/configure.log" >&2; die "configure failed"; }
    echo "$state" > "$out/configured"
}


# nginx_make OUT NGINX_SOURCE TARGET
nginx_make()
{
    make -s -C "$2" -f "$1/Makefile" -j "$(nproc)" "$3"
}


clean()
{
    local pid

    if pid=$(demo_pid run build.sh); then
        die "the demo is running, stop process $pid first"
    fi

    rm -rf "$BUILD"
}


main()
{
    local command=${1:-help}
    shift || true

    forget_nginx_variable

    case $command in
        build)
            locked build ;;
        install)
            install_command ;;
        deb | matrix | run | chaos | soak | fuzz | bench | model | \
        format | lint | clean | deps)
            "$command" "$@" ;;
        test)
            test_command "$@" ;;
        zone-dump)
            zone_dump "$@" ;;
        # For fuzz itself, which runs several at once.
        fuzz-one)
            fuzz_one "$@" ;;
        # Likewise; the case is one word.
        model-one)
            # shellcheck disable=SC2086
            model_case $1 ;;
        help | -h | --help)
            usage ;;
        *)
            usage >&2
            exit 2 ;;
    esac
}


main "$@"
