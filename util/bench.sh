# Measuring: bench/, with what it needs built and named.
# shellcheck shell=bash

bench()
{
    local program=bench.pl

    case ${1:-} in
        --check)
            program=check.pl
            shift ;;
        --update)
            program=check.pl ;;
        --growth)
            program=growth.pl
            shift ;;
    esac

    prepare_nginx

    if [[ ${1:-} == --profile ]]; then
        deps profile
    fi

    if [[ $program == check.pl ]]; then
        deps valgrind
    else
        deps bench
    fi

    locked build
    locked build_load

    TEST_NGINX_BINARY=$NGINX_BINARY TEST_NGINX_LOAD_MODULES=$BUILD/$MODULE.so \
        BENCH_LOAD=$BUILD/load BENCH_OUT=$BUILD/bench \
        perl "bench/$program" "$@"
}


build_load()
{
    local newest
    newest=$(find bench -name 'load*' -newer "$BUILD/load" -print -quit \
        2> /dev/null || echo none)

    if [[ -x $BUILD/load && ! $newest ]]; then
        return
    fi

    say "building build/load"
    compile_load "$BUILD/load" bench/load.cpp bench/load_application.cpp
}


# compile_load PROGRAM FILES...: with the connections that all loads share.
compile_load()
{
    local program=$1
    shift

    g++ -std=c++20 -O2 -Wall -Wextra -Werror -I bench -o "$program" \
        bench/load_connection.cpp "$@" -lnghttp2
}
