# Sanitizers: nginx and the module built with them, and their reports.
# shellcheck shell=bash

SANITIZE="-fsanitize=address,undefined"
# nginx itself does not pass the three that are left out.  The warning is wrong
# too often about code that the sanitizers have gone through.
SANITIZE_CC=(-g -O1 "$SANITIZE" -fno-omit-frame-pointer
    -fno-sanitize="alignment,nonnull-attribute,pointer-overflow"
    -Wno-maybe-uninitialized -DNGX_DEBUG_PALLOC=1)


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
    configure "$BUILD/asan/nginx" "$source" "" "${flags[@]}" \
        --with-ld-opt="$SANITIZE -static-libasan -static-libubsan"
    # nginx unloads modules before leaks are looked for, and with them the
    # names of their functions.
    configure "$BUILD/asan/objs" "$source" "$ROOT" "${flags[@]}" \
        --with-ld-opt="-Wl,-z,nodelete"

    say "building nginx and the module with sanitizers"
    nginx_make "$BUILD/asan/nginx" "$source" binary
    nginx_make "$BUILD/asan/objs" "$source" modules
    cp -u --remove-destination "$BUILD/asan/objs/$MODULE.so" "$BUILD/asan/"
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
