# Packages: what each command needs, and what has to be fetched beside apt.
# shellcheck shell=bash

declare -A PACKAGES=(
    [build]="g++ make nginx nginx-dev libssl-dev libsimdjson-dev
        libhiredis-dev"
    # For an nginx that is not Debian's.
    [compile]="g++ make libssl-dev libsimdjson-dev libhiredis-dev libpcre2-dev
        zlib1g-dev"
    [run]="perl curl"
    # From libtest-base-perl on: what Test::Nginx needs.  redis-tools has the
    # server too: redis-server would only add a service that starts by itself.
    [test]="catch2 curl e2fsprogs util-linux libnghttp2-dev libsimdjson-dev openssl
        patch perl procps redis-tools
        libtest-base-perl libtest-longstring-perl libtext-diff-perl
        libwww-perl libhttp-message-perl liburi-perl libipc-run-perl
        liblist-moreutils-perl libnet-dns-perl libredis-perl prometheus
        chromium chromium-driver"
    [test-modules]="libnginx-mod-http-echo
        libnginx-mod-http-headers-more-filter libnginx-mod-http-image-filter
        libnginx-mod-http-js libnginx-mod-http-lua libnginx-mod-http-ndk
        libnginx-mod-http-perl libnginx-mod-http-srcache-filter
        libnginx-mod-nchan"
    [deb]="build-essential debhelper dpkg-dev fakeroot lintian"
    [deb-check]="debootstrap debian-archive-keyring"
    [asan]="dpkg-dev libpcre2-dev zlib1g-dev"
    # bench --check, which has a load too, and test --valgrind.
    [valgrind]="libnghttp2-dev valgrind"
    # The contenders.  One on Node comes from npm, where that is there.
    [bench]="libnginx-mod-http-lua libnginx-mod-http-memc
        libnginx-mod-http-ndk libnginx-mod-http-srcache-filter libnghttp2-dev
        libredis-perl memcached openssl perl redis-tools util-linux"
    [profile]="linux-perf"
    [zone-dump]="g++"
    [chaos]="e2fsprogs faketime iproute2 libnghttp2-dev libnginx-mod-http-lua
        libnginx-mod-http-ndk libredis-perl mount openssl patch perl procps
        redis-tools util-linux"
    [model]="gcc libc6-dev spin"
    [fuzz]="make clang-14 libclang-rt-14-dev libssl-dev libsimdjson-dev
        libhiredis-dev"
    # One clang-format for all: each formats a little differently.
    [lint]="clang-format-14 shellcheck"
)


# The names of the sets, for usage.
package_sets()
{
    printf '%s\n' "${!PACKAGES[@]}" | sort | paste -sd' '
}


# deps SET...: installs what is missing of these sets.
deps()
{
    local set package missing=()

    (( $# )) || die "deps takes one or more of: $(package_sets)"

    for set; do
        [[ ${PACKAGES[$set]:-} ]] \
            || die "no such set of packages: $set; there are: $(package_sets)"

        for package in ${PACKAGES[$set]}; do
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


debian_codename()
{
    sed -n 's/^VERSION_CODENAME=//p' /etc/os-release
}


# The machine's own package sources of its release, as "URL SUITE" lines.  apt
# itself is asked, as it reads all formats and places these are written in.
machine_sources()
{
    local codename
    codename=$(debian_codename)

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


# Valkey is younger than Debian 12 as well, so there it comes from backports.
# Only its program is needed, not its service.
get_valkey()
{
    local dir=$BUILD/valkey

    if [[ -x $VALKEY ]]; then
        return
    fi

    say "getting Valkey"
    rm -rf "$dir"
    mkdir -p "$dir"
    download_valkey "" || download_valkey "$(debian_codename)-backports" \
        || return
    dpkg -x "$dir"/valkey-tools_*.deb "$dir"
}


# download_valkey SUITE: empty for the machine's own release.
download_valkey()
{
    write_sources valkey deb "$1"
    (cd "$BUILD/valkey" && private_apt valkey download valkey-tools)
}


# Redis 6, the oldest that works, from Debian 11 with the libraries it had.
get_old_redis()
{
    local dir=$BUILD/redis6 package

    if [[ -x $OLD_REDIS ]]; then
        return
    fi

    say "getting Redis 6 from Debian 11"

    write_sources bullseye deb bullseye
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && private_apt bullseye download redis-tools/bullseye \
        lua-cjson/bullseye lua-bitop/bullseye liblua5.1-0/bullseye \
        libssl1.1/bullseye) || return

    for package in "$dir"/*.deb; do
        dpkg -x "$package" "$dir"
    done

    # One program looks at its name to know what it is.
    cat > "$OLD_REDIS" <<END
#!/usr/bin/env bash
export LD_LIBRARY_PATH=$(echo "$dir"/usr/lib/*-linux-gnu)
exec -a redis-server "$dir/usr/bin/redis-check-rdb" "\$@"
END
    chmod +x "$OLD_REDIS"
}


# The clients of others, from npm, with the programs that use them: node looks
# for modules beside a program only.  A machine need not have node.
get_clients()
{
    local dir=$BUILD/clients

    command -v node > /dev/null && command -v npm > /dev/null || return
    mkdir -p "$dir"
    cp t/clients/*.mjs "$dir/"

    # Written last: what was interrupted is done again.
    if cmp -s t/clients/package.json "$dir/installed.json"; then
        return
    fi

    say "getting clients from npm"
    cp t/clients/package.json "$dir/"
    (cd "$dir" && npm install --ignore-scripts --no-package-lock --no-audit \
        --no-fund --loglevel=error) > "$dir/npm.log" 2>&1 || return
    cp t/clients/package.json "$dir/installed.json"
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
        cd "$dir.new" || exit
        # A mirror keeps the latest of a release only.
        private_apt sources source "nginx=$version" \
            || private_apt sources source nginx
    ) > "$BUILD/asan/source.log"
    mv "$dir.new"/nginx-*/ "$dir"
    rm -rf "$dir.new"
}
