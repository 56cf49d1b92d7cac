# Tests: unit tests and t/*.t with prove, on each store, on Valkey and on an old
# Redis.
# shellcheck shell=bash

# The program is the server too, as with Redis.
VALKEY=$BUILD/valkey/usr/bin/valkey-check-rdb
SERVER_TESTS=(t/090-lease.t t/110-redis-basics.t t/117-redis-refusals.t
    t/119-redis-forgets.t t/150-redis-put-back.t
    t/152-redis-durability.t)

# Which does not know SET NX GET, and has other words for errors of scripts.
OLD_REDIS=$BUILD/redis6/redis-server


test_command()
{
    local mode=plain files

    if [[ ${1:-} =~ ^--(asan|hup|valgrind|static|small)$ ]]; then
        mode=${BASH_REMATCH[1]}
        shift
    fi

    prepare_nginx
    deps test

    # nginx from another place would have to give way to Debian's for them.
    if [[ $NGINX_SRC == "$DEBIAN_NGINX_SRC" ]]; then
        deps test-modules
    fi

    locked get_test_nginx
    prepare "$mode"

    case $mode in
        asan)
            prove_asan "$@" ;;
        hup | valgrind)
            prove_blocks "$mode" "$@" ;;
        small)
            if (( $# == 0 )); then
                mapfile -t files < <(small_tests)
                set -- "${files[@]}"
            fi
            prove_stores "$@" ;;
        static)
            prove_stores "$@" ;;
        plain)
            prove_plain "$@" ;;
    esac
}


# prepare MODE: builds what is tested, and says in the environment where it is.
prepare()
{
    export TEST_NGINX_BINARY TEST_NGINX_LOAD_MODULES TEST_NGINX_LUA_MODULES
    export TEST_NGINX_JS_MODULES

    if [[ $1 == asan ]]; then
        locked build_asan
        TEST_NGINX_BINARY=$BUILD/asan/nginx/nginx
        TEST_NGINX_LOAD_MODULES=$BUILD/asan/$MODULE.so
    elif [[ $1 == static || $1 == small ]]; then
        locked build_variant "$1"
        TEST_NGINX_BINARY=$BUILD/$1/nginx/nginx
        TEST_NGINX_LOAD_MODULES=$BUILD/$1/$MODULE.so
        [[ $1 == small ]] || TEST_NGINX_LOAD_MODULES=""
    else
        locked build
        TEST_NGINX_BINARY=$NGINX_BINARY
        TEST_NGINX_LOAD_MODULES=$BUILD/$MODULE.so
    fi

    # Debian's modules go with no other nginx.
    if [[ $TEST_NGINX_BINARY == "$DEBIAN_NGINX" ]]; then
        TEST_NGINX_LUA_MODULES=$(echo \
            /usr/lib/nginx/modules/{ndk_http,ngx_http_lua}_module.so)
        TEST_NGINX_JS_MODULES=/usr/lib/nginx/modules/ngx_http_js_module.so
    else
        unset TEST_NGINX_LUA_MODULES TEST_NGINX_JS_MODULES
    fi

    if locked get_clients; then
        export TEST_CLIENTS=$BUILD/clients
    else
        say "SKIPPED: the tests with clients from npm, which could not be had"
    fi

    locked build_chaos_programs
    export CHAOS_PROGRAMS=$BUILD/chaos
    locked build_unit
    export TEST_UNIT_BINARY=$BUILD/unit/unit
    export PERL5LIB=$ROOT/t/lib:$BUILD/test-nginx/usr/share/perl5
    # A port and a folder for each file, or they could not run side by side.
    export TEST_NGINX_RANDOMIZE=${TEST_NGINX_RANDOMIZE-1}
}


build_unit()
{
    local compiler=()

    case ${CC:-} in
        clang*)
            compiler=(CXX="clang++${CC#clang}") ;;
        gcc*)
            compiler=(CXX="g++${CC#gcc}") ;;
    esac

    say "building the unit tests"
    make -s -C t/unit -j "$(nproc)" OUT="$BUILD/unit" "${compiler[@]}"
}


prove_plain()
{
    if [[ $* || ${TEST_IDEMPOTENCY_STORE:-} ]]; then
        prove_stores "$@"
    else
        prove_stores
        prove_server Valkey get_valkey "$VALKEY"
        prove_server "Redis 6" get_old_redis "$OLD_REDIS"
    fi
}


# The same files on every store: those that are about one skip themselves on
# the others.  TEST_IDEMPOTENCY_STORE in the environment names the only one.
prove_stores()
{
    local store failed=()

    for store in ${TEST_IDEMPOTENCY_STORE:-memory file redis}; do
        say "prove, store $store"
        TEST_IDEMPOTENCY_STORE=$store run_prove "$@" \
            |& tee "$BUILD/prove-$store.log" || failed+=("$store")
    done

    # What failed on the first store has long left the screen by now.
    for store in "${failed[@]}"; do
        say "FAILED, store $store"
        sed -n "/^#/p; /^Test Summary Report/,\$p" "$BUILD/prove-$store.log" >&2
    done

    (( ${#failed[@]} == 0 ))
}


# prove_server NAME GET PROGRAM: others answer as Redis does, so only what leans
# on their scripts, clocks and errors.
prove_server()
{
    local name=$1 get=$2 program=$3

    if locked "$get"; then
        say "prove, store redis on $name"
        TEST_IDEMPOTENCY_STORE=redis TEST_REDIS_BINARY=$program \
            run_prove "${SERVER_TESTS[@]}"
    else
        say "SKIPPED: the tests on $name, which could not be had"
    fi
}


# prove_blocks hup|valgrind [files]: in a mode of Test::Nginx.
prove_blocks()
{
    if [[ $1 == valgrind ]]; then
        deps valgrind
    fi

    util/block-modes.sh "$@"
}
