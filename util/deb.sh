# The Debian package: built beside the tree, and tried in a fresh Debian.
# shellcheck shell=bash

PACKAGE=libnginx-mod-http-idempotency


deb()
{
    if [[ ${1:-} && $1 != --check ]]; then
        die "deb takes nothing or --check"
    fi

    refuse_other_packages
    deps build deb
    DEB=$BUILD/deb/${PACKAGE}_$(deb_version)_$(dpkg --print-architecture).deb
    locked build_deb

    if [[ ${1:-} == --check ]]; then
        check_deb
    fi
}


# Leaves the package in build/deb.  dh builds inside the tree it packs, so that
# is a copy.
build_deb()
{
    local out=$BUILD/deb

    say "building $PACKAGE"
    rm -rf "$out"
    copy_source "$out/source"

    (cd "$out/source" && DEB_BUILD_OPTIONS="parallel=$(nproc)" \
        dpkg-buildpackage -b -us -uc) > "$out/build.log" 2>&1 \
        || { tail -n 30 "$out/build.log" >&2; die "dpkg-buildpackage failed"; }

    say "lintian"
    lintian --fail-on error --info "$out"/*.changes

    rm -rf "$out/source"
    echo "$DEB"
}


deb_version()
{
    dpkg-parsechangelog -l debian/changelog -S Version
}


# In a fresh Debian: the package is installed, three lines protect a server,
# and nginx goes on without the package.
check_deb()
{
    (( EUID == 0 )) || die "deb --check makes a chroot: run it as root"
    deps run deb-check

    # Not local: the trap runs when this function is gone.
    CHECK_DIR=$(mktemp -d "${TMPDIR:-/tmp}/idempotency-deb.XXXXXX")
    CHECK_PIDS=()
    trap end_check EXIT
    local root=$CHECK_DIR/root before after port upstream
    port=$((20000 + RANDOM % 10000))
    upstream=$((port + 1))

    make_root "$root" "$(debian_codename)"
    check_deb_install "$root"
    check_deb_use "$root"
    check_deb_removal "$root"
    say "$PACKAGE works in a fresh Debian $(debian_codename)"
}


end_check()
{
    local pid

    for pid in "${CHECK_PIDS[@]}"; do
        kill "$pid" 2>/dev/null || true
    done

    wait
    remove_root "$CHECK_DIR/root"
    rm -rf "$CHECK_DIR"
}


check_deb_install()
{
    local root=$1

    say "apt-get install ./$(basename "$DEB")"
    cp "$DEB" "$root/tmp/"
    in_root "$root" apt-get -qq -y --no-install-recommends install nginx \
        "/tmp/$(basename "$DEB")" > "$CHECK_DIR/install.log" 2>&1 \
        || { tail "$CHECK_DIR/install.log" >&2; die "apt-get install failed"; }

    [[ -L $root/etc/nginx/modules-enabled/50-mod-http-idempotency.conf ]] \
        || die "the package does not enable itself"
    in_root "$root" nginx -t
}


# The README's three lines.
check_deb_use()
{
    local root=$1

    say "three lines in a server block"
    perl t/lib/upstream.pl --port "$upstream" --quiet --parent $$ \
        --ledger "$CHECK_DIR/ledger" &
    CHECK_PIDS+=($!)

    rm "$root/etc/nginx/sites-enabled/default"
    write_site "$root" \
        "idempotency on;" "idempotency_scope \$http_x_api_key;"
    start_root_nginx "$root"

    before=$(check_post first)
    after=$(check_post first)
    [[ $before == "201 1 " && $after == "201 1 true" ]] \
        || die "a retry is not replayed: '$before', then '$after'"
}


check_deb_removal()
{
    local root=$1

    say "apt-get purge $PACKAGE"
    write_site "$root"
    in_root "$root" apt-get -qq -y purge "$PACKAGE" \
        > "$CHECK_DIR/purge.log" 2>&1 \
        || { tail "$CHECK_DIR/purge.log" >&2; die "apt-get purge failed"; }

    after=$(check_post first)
    [[ $after == "201 1 true" ]] \
        || die "the nginx that runs does not work on: '$after'"

    [[ ! $(find "$root/etc" "$root/usr/lib" -iname '*idempotency*') ]] \
        || die "the package leaves files behind"

    in_root "$root" nginx -t
    in_root "$root" nginx -s quit
    wait "${CHECK_PIDS[-1]}" || die "nginx does not quit"
    start_root_nginx "$root"
    after=$(check_post first)
    [[ $after == "201 2 " ]] || die "nginx does not work without it: '$after'"
}


# write_site ROOT [line...]: in the server block.
write_site()
{
    local root=$1
    shift

    printf '%s\n' "server {" "listen 127.0.0.1:$port;" "$@" \
        "location / { proxy_pass http://127.0.0.1:$upstream; }" "}" \
        > "$root/etc/nginx/sites-enabled/api"
}


start_root_nginx()
{
    # Not by in_root: a shell in between would be the process that is known.
    chroot "$1" nginx -g "daemon off;" &
    CHECK_PIDS+=($!)

    until listening "$port" && listening "$upstream"; do
        kill -0 "${CHECK_PIDS[@]: -1}" || die "nginx does not start"
        sleep 0.1
    done
}


# check_post KEY: "status execution replayed".
check_post()
{
    curl -s -o /dev/null -H "Idempotency-Key: $1" -H "X-Api-Key: ann" -d item=tea \
        -w '%{http_code} %header{x-execution} %header{idempotent-replayed}' \
        "http://127.0.0.1:$port/orders"
}
