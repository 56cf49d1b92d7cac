#!/usr/bin/env bash

# The Test::Nginx files in one of Test::Nginx's own modes:
#
#   util/block-modes.sh hup [files]       one nginx, reloaded between blocks
#   util/block-modes.sh valgrind [files]  every nginx under valgrind
#
# Without files it takes all of them; other test files are left out.  It needs
# the environment that ./build.sh test gives to prove, and runs on each store
# unless TEST_IDEMPOTENCY_STORE names one.

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."


main()
{
    local mode=${1:-}
    shift || true

    [[ $mode == hup || $mode == valgrind ]] \
        || die "takes hup or valgrind, then files"
    : "${TEST_NGINX_BINARY:?}" "${TEST_NGINX_LOAD_MODULES:?}" "${PERL5LIB:?}"

    local candidates=("$@") files
    (( $# )) || candidates=(t/*.t)
    mapfile -t files < <(grep -l '^use Test::Nginx::' "${candidates[@]}")
    (( ${#files[@]} )) || die "no Test::Nginx file among: ${candidates[*]}"

    # A port and a folder for each file, or they could not run side by side.
    export TEST_NGINX_RANDOMIZE=${TEST_NGINX_RANDOMIZE-1}

    local store status=0
    for store in ${TEST_IDEMPOTENCY_STORE:-memory redis}; do
        printf '\n== prove, %s, store %s\n' "$mode" "$store" >&2
        TEST_IDEMPOTENCY_STORE=$store "run_$mode" "${files[@]}" || status=$?
    done

    return "$status"
}


run_hup()
{
    TEST_NGINX_USE_HUP=1 prove -j"$(($(nproc) + 1))" "$@"
}


# valgrind writes what it finds and does not fail the test.  Only errors count:
# nginx leaves much of its memory to the end of the process, and leaks are found
# by ./build.sh test --asan.
run_valgrind()
{
    local status=0 reports
    reports=$(mktemp -d)

    TEST_NGINX_USE_VALGRIND="--leak-check=no --log-file=$reports/%p \
--suppressions=util/valgrind.supp" \
        prove -j"$(nproc)" "$@" || status=$?

    if [[ $(find "$reports" -type f -size +0) ]]; then
        find "$reports" -type f -size +0 -exec head -n 60 {} + >&2
        printf 'valgrind reported\n' >&2
        status=1
    fi

    rm -rf "$reports"
    return "$status"
}


die()
{
    printf 'block-modes.sh: %s\n' "$*" >&2
    exit 2
}


main "$@"
