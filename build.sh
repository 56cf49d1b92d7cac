#!/usr/bin/env bash

# Builds, runs and tests the module on Debian.  ./build.sh help says how.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=$ROOT/build
MODULE=ngx_http_idempotency_module

cd "$ROOT"

# Another nginx than the installed one can be named by these two.
NGINX=${NGINX:-/usr/sbin/nginx}
NGINX_SRC=${NGINX_SRC:-/usr/share/nginx/src}

# The server too, as with Redis.
VALKEY=$BUILD/valkey/usr/bin/valkey-check-rdb
VALKEY_TESTS=(t/090-lease.t t/110-redis-basics.t)

# shellcheck disable=SC2034 # by name, in deps()
DEPS_build=(g++ make nginx nginx-dev libssl-dev libsimdjson-dev libhiredis-dev)
DEPS_run=(perl curl)
# From libtest-base-perl on: what Test::Nginx needs.  redis-tools has the server
# too: redis-server would only add a service that starts by itself.
DEPS_test=(catch2 curl libsimdjson-dev libnginx-mod-http-echo
    libnginx-mod-http-image-filter libnginx-mod-http-lua
    libnginx-mod-http-ndk openssl perl procps redis-tools libtest-base-perl
    libtest-longstring-perl libtext-diff-perl libwww-perl libhttp-message-perl
    liburi-perl libipc-run-perl liblist-moreutils-perl)
DEPS_chaos=(faketime perl procps redis-tools)
DEPS_asan=(dpkg-dev libpcre2-dev zlib1g-dev)
DEPS_fuzz=(make clang-14 libclang-rt-14-dev libssl-dev libsimdjson-dev)
# One version for all: each formats a little differently.
DEPS_lint=(clang-format-14)

SANITIZE="-fsanitize=address,undefined"
# nginx itself does not pass the three that are left out.  The warning is wrong
# too often about code that the sanitizers have gone through.
SANITIZE_CC=(-g -O1 "$SANITIZE" -fno-omit-frame-pointer
    -fno-sanitize="alignment,nonnull-attribute,pointer-overflow"
    -Wno-maybe-uninitialized -DNGX_DEBUG_PALLOC=1)


usage()
{
    cat <<END
usage: ./build.sh command

  build                    build/$MODULE.so, for the installed nginx
  run                      build, then nginx with a demo upstream on port
                           \${PORT:-8080}, until Ctrl-C
  test [arguments]         build, then unit tests and t/*.t; the arguments,
                           options or files, go to prove
  test --asan [arguments]  the same with nginx and the module built with
                           address and undefined behaviour sanitizers
  chaos [options]          break everything while clients retry, and check that
                           nothing ran twice: --seconds N --seed S
                           --store memory|redis --keep; --without fencing,
                           renewal, hold or abort: with that protection off
  soak [minutes]           steady load, fails when memory grows
  fuzz [seconds]           fuzz with every program of t/fuzz, each for 60
                           seconds or as many as said
  fuzz --runs N            the same with N inputs each
  format                   format the C++ sources
  lint                     check their format
  deps build|run|test|asan|chaos|fuzz|lint
                           install the packages the command of that name needs
  clean                    remove build/

Every command installs the packages it misses, and only those, so a first call
may need root or sudo.  In the environment: PORT and UPSTREAM_PORT of the demo,
NGINX and NGINX_SRC for another nginx than Debian's.
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


# ---- packages --------------------------------------------------------------

deps()
{
    local set package missing=()

    (( $# )) || die "deps takes one or more of build, run, test, asan, chaos, fuzz, lint"

    for set; do
        [[ $set =~ ^(build|run|test|asan|chaos|fuzz|lint)$ ]] \
            || die "no such set of packages: $set"

        local -n packages="DEPS_$set"

        for package in "${packages[@]}"; do
            if ! installed "$package"; then
                missing+=("$package")
            fi
        done
    done

    if (( ${#missing[@]} )); then
        install_packages "${missing[@]}"
    fi
}


installed()
{
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) \
        == installed ]]
}


install_packages()
{
    local sudo=()

    if (( EUID != 0 )); then
        command -v sudo >/dev/null \
            || die "packages are missing, install them as root: $*"
        sudo=(sudo)
    fi

    say "installing $*"

    # The package lists may be missing or old; fetching them takes longer than
    # most installations, so only then.
    local install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
        install -y -qq --no-install-recommends "$@")

    "${install[@]}" || { "${sudo[@]}" apt-get update -qq && "${install[@]}"; }
}


# private_apt NAME apt-get-arguments...: apt with the sources in
# build/apt/NAME.list and no other, beside the machine's own state.
private_apt()
{
    local dir=$BUILD/apt/$1
    shift

    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"

    apt-get -qq -o Dir::State::lists="$dir/lists" \
        -o Dir::Cache="$dir/cache" -o Dir::Etc::sourcelist="$dir.list" \
        -o Dir::Etc::sourceparts=- -o APT::Sandbox::User= "$@"
}


# The machine's own package sources of its release, as "URL SUITE" lines.  apt
# itself is asked, as it reads all formats and places these are written in.
machine_sources()
{
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

    apt-get --print-uris update \
        | sed -n "s#^'\(.*\)/dists/\(${codename}[^']*\)/InRelease'.*#\1 \2#p"
}


# write_sources NAME deb|deb-src [SUITE]: the machine's sources, or their
# SUITE, as sources of private_apt NAME.
write_sources()
{
    local name=$1 type=$2 suite=${3:-} keyring options="" url own

    for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [[ -f $keyring ]]; then
            options="[signed-by=$keyring] "
            break
        fi
    done

    mkdir -p "$BUILD/apt"

    machine_sources | while read -r url own; do
        if [[ -z $suite ]]; then
            echo "$type $options$url $own main"
        elif [[ $own != *-* ]]; then
            echo "$type $options$url $suite main"
        fi
    done > "$BUILD/apt/$name.list"

    # Sources of others, which have no such suite, may be among them: whether
    # what we want was found shows later.
    private_apt "$name" update || true
}


# Test::Nginx is younger than Debian 12, so it comes from Debian testing; as it
# is plain Perl it only needs to be unpacked.
get_test_nginx()
{
    local dir=$BUILD/test-nginx

    if [[ -d $dir/usr/share/perl5/Test/Nginx ]]; then
        return
    fi

    say "getting Test::Nginx from Debian testing"

    write_sources testing deb testing
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && private_apt testing download libtest-nginx-perl)
    dpkg -x "$dir"/libtest-nginx-perl_*.deb "$dir"
}


# Valkey is younger than Debian 12 as well.  Only its program is needed, not
# its service.
get_valkey()
{
    local dir=$BUILD/valkey codename

    if [[ -x $VALKEY ]]; then
        return
    fi

    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    say "getting Valkey from $codename-backports"

    write_sources backports deb "$codename-backports"
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && private_apt backports download valkey-tools) \
        && dpkg -x "$dir"/valkey-tools_*.deb "$dir"
}


get_nginx_source()
{
    local dir=$BUILD/asan/source version

    if [[ -d $dir ]]; then
        return
    fi

    version=$(dpkg-query -W -f '${source:Version}' nginx)
    say "getting the source of nginx $version"

    write_sources sources deb-src
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    (
        cd "$dir.new"
        # A mirror keeps the latest of a release only.
        private_apt sources source "nginx=$version" \
            || private_apt sources source nginx
    ) > "$BUILD/asan/source.log"
    mv "$dir.new"/nginx-*/ "$dir"
    rm -rf "$dir.new"
}


# ---- build -----------------------------------------------------------------

# configure OUT SOURCE arguments...: runs nginx's configure if what it depends
# on has changed.  OUT is then started anew, since nginx's make does not
# rebuild objects when their flags change.
configure()
{
    local out=$1 source=$2 state
    shift 2

    state=$(
        echo "$source $*"
        c++ -dumpfullversion
        find "$source/" -name '*.h' -printf '%p %s %t\n' | sort | sha1sum
        [[ $* != *--add-* ]] || cat config config.make src/exports.map
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


# nginx_make OUT SOURCE TARGET
nginx_make()
{
    make -s -C "$2" -f "$1/Makefile" -j "$(nproc)" "$3"
}


build()
{
    deps build
    build_module "$BUILD"
}


# build_module FOLDER [FLAGS]: the module for the installed nginx in FOLDER.
build_module()
{
    local out=$1 flags=${2:-}

    [[ -f $NGINX_SRC/conf_flags ]] || die "no nginx-dev in $NGINX_SRC"

    local NGX_CONF_FLAGS
    # shellcheck source=/dev/null
    . "$NGINX_SRC/conf_flags"

    configure "$out/objs" "$NGINX_SRC" \
        --with-cc-opt="-g -O2 -fPIC -fstack-protector-strong $flags" \
        --with-ld-opt="-fPIC -Wl,-z,relro -Wl,-z,now" \
        "${NGX_CONF_FLAGS[@]}" --add-dynamic-module="$ROOT"

    say "building ${out#"$ROOT/"}/$MODULE.so"
    nginx_make "$out/objs" "$NGINX_SRC" modules
    cp -u --remove-destination "$out/objs/$MODULE.so" "$out/"
}


build_asan()
{
    deps build asan
    get_nginx_source

    local source=$BUILD/asan/source
    local flags=(--with-cc-opt="${SANITIZE_CC[*]}"
        --with-compat --with-debug --with-threads
        --with-http_addition_module --with-http_auth_request_module
        --with-http_dav_module --with-http_gunzip_module
        --with-http_gzip_static_module --with-http_realip_module
        --with-http_slice_module --with-http_ssl_module
        --with-http_stub_status_module --with-http_sub_module
        --with-http_v2_module)

    # Apart, so that changes to the module leave the built nginx alone.  The
    # sanitizers are linked into nginx, and the module uses them from there: as
    # two shared libraries they would not agree where to write reports.
    configure "$BUILD/asan/nginx" "$source" "${flags[@]}" \
        --with-ld-opt="$SANITIZE -static-libasan -static-libubsan"
    # nginx unloads modules before leaks are looked for, and with them the
    # names of their functions.
    configure "$BUILD/asan/objs" "$source" "${flags[@]}" \
        --with-ld-opt="-Wl,-z,nodelete" --add-dynamic-module="$ROOT"

    say "building nginx and the module with sanitizers"
    nginx_make "$BUILD/asan/nginx" "$source" binary
    nginx_make "$BUILD/asan/objs" "$source" modules
    cp -u --remove-destination "$BUILD/asan/objs/$MODULE.so" "$BUILD/asan/"
}


# ---- test ------------------------------------------------------------------

test_command()
{
    local asan=

    if [[ ${1:-} == --asan ]]; then
        asan=yes
        shift
    fi

    deps build test
    locked get_test_nginx

    export TEST_NGINX_BINARY TEST_NGINX_LOAD_MODULES TEST_NGINX_LUA_MODULES

    if [[ $asan ]]; then
        locked build_asan
        TEST_NGINX_BINARY=$BUILD/asan/nginx/nginx
        TEST_NGINX_LOAD_MODULES=$BUILD/asan/$MODULE.so
        # Debian's modules do not go with this nginx.
        unset TEST_NGINX_LUA_MODULES
    else
        locked build
        TEST_NGINX_BINARY=$NGINX
        TEST_NGINX_LOAD_MODULES=$BUILD/$MODULE.so
        TEST_NGINX_LUA_MODULES=$(echo \
            /usr/lib/nginx/modules/{ndk_http,ngx_http_lua}_module.so)
    fi

    locked build_unit
    export TEST_UNIT_BINARY=$BUILD/unit/unit
    export PERL5LIB=$ROOT/t/lib:$BUILD/test-nginx/usr/share/perl5
    # A port and a folder for each file, or they could not run side by side.
    export TEST_NGINX_RANDOMIZE=${TEST_NGINX_RANDOMIZE-1}

    if [[ $asan ]]; then
        prove_asan "$@"
    elif [[ $* || ${TEST_IDEMPOTENCY_STORE:-} ]]; then
        prove_stores "$@"
    else
        prove_stores
        prove_valkey
    fi
}


build_unit()
{
    say "building the unit tests"
    make -s -C t/unit -j "$(nproc)" OUT="$BUILD/unit"
}


# The same files on every store: those that are about one skip themselves on
# the others.  TEST_IDEMPOTENCY_STORE in the environment names the only one.
prove_stores()
{
    local status=0 store

    for store in ${TEST_IDEMPOTENCY_STORE:-memory redis}; do
        say "prove, store $store"
        TEST_IDEMPOTENCY_STORE=$store run_prove "$@" || status=$?
    done

    return "$status"
}


# Valkey answers as Redis does, so only what leans on its scripts and clock.
prove_valkey()
{
    if locked get_valkey; then
        say "prove, store redis on Valkey"
        TEST_IDEMPOTENCY_STORE=redis TEST_REDIS_BINARY=$VALKEY \
            run_prove "${VALKEY_TESTS[@]}"
    else
        say "SKIPPED: the tests on Valkey, which could not be had"
    fi
}


run_prove()
{
    local argument files=(t/*.t)

    for argument; do
        if [[ -e $argument ]]; then
            files=()
        fi
    done

    # Most of the time they wait.
    prove -j"$(($(nproc) + 1))" "$@" "${files[@]}"
}


# A process that ends with a report need not fail a test, hence the look at the
# reports themselves.
prove_asan()
{
    local status=0 reports=$BUILD/asan/reports report found=()

    rm -rf "$reports"
    mkdir -p "$reports"

    # Commas, as Test::Nginx adds the name of the test to the path.
    export ASAN_OPTIONS=detect_leaks=1,log_path=$reports/report
    export UBSAN_OPTIONS=print_stacktrace=1,log_path=$reports/report
    export LSAN_OPTIONS=print_suppressions=0,suppressions=$ROOT/t/lib/lsan.supp

    prove_stores "$@" || status=$?

    for report in "$reports"/*; do
        if [[ -f $report ]] && ! only_leak_of_main "$report"; then
            found+=("$report")
        fi
    done

    if (( ${#found[@]} )); then
        head -n 60 "${found[@]}" >&2
        die "sanitizers reported, see build/asan/reports/"
    fi

    return "$status"
}


# nginx forgets its first pool when it refuses its configuration.  No
# suppression can tell that leak: main() is below everything.
only_leak_of_main()
{
    grep -q 'leaked in 1 allocation' "$1" \
        && grep -q '#2 .* in ngx_create_pool ' "$1" \
        && grep -q '#3 .* in main ' "$1"
}


# ---- fuzz ------------------------------------------------------------------

fuzz()
{
    local limit target targets=() failed

    case $#,${1:-60} in
        0,* | 1,[0-9]*)
            limit=-max_total_time=${1:-60} ;;
        2,--runs)
            limit=-runs=$2 ;;
        *)
            die "fuzz takes a number of seconds, or --runs and a number" ;;
    esac

    deps fuzz
    locked build_fuzz

    for target in t/fuzz/*.cpp; do
        targets+=("$(basename "$target" .cpp)")
    done

    say "fuzzing: ${targets[*]}"
    failed=$(printf '%s\n' "${targets[@]}" \
        | xargs -P "$(nproc)" -I TARGET \
            "$ROOT/build.sh" fuzz-one TARGET "$limit")

    if [[ $failed ]]; then
        for target in $failed; do
            tail -n 40 "$BUILD/fuzz/$target.log" >&2
        done
        die "fuzzing found something, see build/fuzz/:" $failed
    fi
}


build_fuzz()
{
    say "building the fuzz targets"
    make -s -C t/fuzz -j "$(nproc)" OUT="$BUILD/fuzz"
}


# fuzz_one TARGET LIMIT: prints the name if something was found.  libFuzzer
# adds what it learns to the first folder: the seeds stay as they are.
fuzz_one()
{
    local target=$1 limit=$2 dir=$BUILD/fuzz seeds=()

    mkdir -p "$dir/corpus/$target"

    if [[ -d t/fuzz/corpus/$target ]]; then
        seeds=("t/fuzz/corpus/$target")
    fi

    "$dir/$target" "$limit" -max_len=4096 -timeout=10 \
        -artifact_prefix="$dir/$target-" \
        "$dir/corpus/$target" "${seeds[@]}" > "$dir/$target.log" 2>&1 \
        || echo "$target"
}


# ---- chaos -----------------------------------------------------------------

# What the harness needs to know.  --without NAME takes a protection away, so
# that it can be seen to find what that protects from.
chaos()
{
    local dir=$BUILD without= arguments=()

    while (( $# )); do
        if [[ $1 == --without ]]; then
            without=${2:-}
            shift
        else
            arguments+=("$1")
        fi
        shift
    done

    deps build chaos

    if [[ $without ]]; then
        [[ $without =~ ^(fencing|renewal|hold|abort)$ ]] \
            || die "chaos --without takes fencing, renewal, hold or abort"
        dir=$BUILD/without-$without
        locked build_module "$dir" "-DIDEMPOTENCY_BREAK_${without^^}"
    else
        locked build
    fi

    TEST_NGINX_BINARY=$NGINX TEST_NGINX_LOAD_MODULES=$dir/$MODULE.so \
        perl t/chaos/chaos.pl "${arguments[@]}"
}


soak()
{
    deps build chaos
    locked build

    TEST_NGINX_BINARY=$NGINX TEST_NGINX_LOAD_MODULES=$BUILD/$MODULE.so \
        perl t/chaos/soak.pl "$@"
}


# ---- run -------------------------------------------------------------------

run()
{
    deps build run
    locked build

    local demo=$BUILD/demo port=${PORT:-8080}
    [[ $port =~ ^[0-9]+$ ]] || die "PORT is to be a number, not $port"
    local upstream_port=${UPSTREAM_PORT:-$((port + 1))}

    mkdir -p "$demo"
    stop_stale
    echo $$ > "$demo/run.pid"
    write_demo_conf "$demo" "$port" "$upstream_port" > "$demo/nginx.conf"
    rm -f "$demo"/*.log "$demo/ledger"
    touch "$demo/access.log" "$demo/error.log"

    demo_pids=()
    trap stop_demo EXIT
    trap 'exit 0' INT
    trap 'exit 143' TERM HUP

    start_demo upstream "$upstream_port" perl t/lib/upstream.pl \
        --port "$upstream_port" --ledger "$demo/ledger" --parent $$ --quiet
    start_demo nginx "$port" \
        "$NGINX" -p "$demo/" -e error.log -c nginx.conf
    start_demo tail "" tail -q -n 0 -F "$demo/access.log" "$demo/error.log"
    print_hints "$port"

    # Until Ctrl-C, or until one of them ends.
    wait -n "${demo_pids[@]}" || true
    die "a process of the demo has ended, see build/demo/error.log"
}


# start_demo NAME PORT command...: in the background, until it listens.
start_demo()
{
    local name=$1 port=$2
    shift 2

    if [[ $port ]] && listening "$port"; then
        die "port $port is in use, choose another: PORT=N ./build.sh run"
    fi

    "$@" &
    demo_pids+=($!)
    echo $! > "$BUILD/demo/$name.pid"

    while [[ $port ]] && ! listening "$port"; do
        kill -0 $! 2>/dev/null || die "$name did not start"
        sleep 0.1
    done
}


listening()
{
    (: < "/dev/tcp/127.0.0.1/$1") 2>/dev/null
}


stop_demo()
{
    trap '' INT TERM HUP
    kill "${demo_pids[@]}" 2>/dev/null || true
    wait
    rm -f "$BUILD"/demo/*.pid
}


# Ends what a killed run left behind.
stop_stale()
{
    local name pid

    if pid=$(demo_pid run build.sh); then
        die "the demo is running already, process $pid"
    fi

    for name in nginx upstream tail; do
        if pid=$(demo_pid "$name" "$BUILD/demo"); then
            say "stopping $name of an earlier run, process $pid"
            kill "$pid" 2>/dev/null || true
            timeout 5 tail -s 0.1 --pid="$pid" -f /dev/null || true
        fi
    done

    rm -f "$BUILD"/demo/*.pid
}


# demo_pid NAME WORD: the process in NAME.pid, if it lives.  The pid may belong
# to someone else by now, so its command has to contain WORD.
demo_pid()
{
    local pid
    pid=$(cat "$BUILD/demo/$1.pid" 2>/dev/null) || return 1

    [[ -r /proc/$pid/cmdline ]] || return 1
    tr '\0' ' ' < "/proc/$pid/cmdline" | grep -qF -e "$2" || return 1
    echo "$pid"
}


write_demo_conf()
{
    local demo=$1 port=$2 upstream_port=$3 user=

    # Started as root nginx would give up its rights, and with them its way
    # into a home directory.
    if (( EUID == 0 )); then
        user="user root;"
    fi

    cat <<END
$user
daemon off;
worker_processes 2;
pid master.pid;
error_log error.log warn;
load_module $BUILD/$MODULE.so;

events {
    worker_connections 512;
}

http {
    log_format demo escape=json
        '\$time_local "\$request" key=\$http_idempotency_key '
        '-> \$status \$idempotency_status';
    access_log access.log demo;

    client_body_temp_path client_body_temp;
    proxy_temp_path proxy_temp;
    fastcgi_temp_path fastcgi_temp;
    uwsgi_temp_path uwsgi_temp;
    scgi_temp_path scgi_temp;

    server {
        listen 127.0.0.1:$port;

        location / {
            idempotency on;
            # For a try without credentials.  In production this is what
            # identifies the caller, such as \$http_authorization.
            idempotency_scope \$remote_addr;

            proxy_http_version 1.1;
            proxy_pass http://127.0.0.1:$upstream_port;
        }

        # What the upstream really executed.
        location = /ledger {
            proxy_pass http://127.0.0.1:$upstream_port;
        }
    }
}
END
}


print_hints()
{
    local url=http://127.0.0.1:$1

    cat <<END

nginx listens on $url.  Try, from another terminal:

  # twice: the second answer is a replay
  curl -i $url/orders -H 'Idempotency-Key: "order-1"' -d item=tea

  # the same key with another body: refused
  curl -i $url/orders -H 'Idempotency-Key: "order-1"' -d item=coffee

  # two at once: one is executed, the other is refused or gets its answer
  for i in 1 2; do
      curl -i $url/orders?sleep=1 -H 'Idempotency-Key: "order-2"' -d item=tea &
  done; wait

  # what was really executed
  curl $url/ledger

Requests, with \$idempotency_status last, as they come.  Ctrl-C stops.

END
}


# ---- format ----------------------------------------------------------------

cpp_files()
{
    find src t/unit t/fuzz bench -name '*.cpp' -o -name '*.h'
}


format()
{
    deps lint
    cpp_files | xargs -r clang-format-14 -i
}


lint()
{
    deps lint
    say "clang-format"
    cpp_files | xargs -r clang-format-14 --dry-run -Werror
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

    case $command in
        build)
            locked build ;;
        run | chaos | soak | fuzz | format | lint | clean | deps)
            "$command" "$@" ;;
        test)
            test_command "$@" ;;
        # For fuzz itself, which runs several at once.
        fuzz-one)
            fuzz_one "$@" ;;
        help | -h | --help)
            usage ;;
        *)
            usage >&2
            exit 2 ;;
    esac
}


main "$@"
