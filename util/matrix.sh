# The matrix: all tests in other Debians, with what these have.
# shellcheck shell=bash

# RELEASE or RELEASE-WAY, see run_row.
MATRIX=(bookworm bookworm-static bookworm-small bookworm-clang
    trixie trixie-static trixie-small trixie-clang
    forky forky-static forky-small forky-clang)

declare -A MATRIX_CLANG=([bookworm]=14 [trixie]=19 [forky]=21)


matrix_rows()
{
    echo "${MATRIX[*]}"
}


# matrix [ROW...]: one after the other.  The roots are kept, as they take
# longer to make than the tests.
matrix()
{
    local row status=0

    (( EUID == 0 )) || die "matrix makes chroots: run it as root"
    (( $# )) || set -- "${MATRIX[@]}"

    for row; do
        [[ " ${MATRIX[*]} " == *" $row "* ]] \
            || die "no such row: $row; there are: ${MATRIX[*]}"
    done

    deps deb-check
    mkdir -p "$BUILD/matrix"

    for row; do
        matrix_row "$row" || status=1
    done

    matrix_table
    return "$status"
}


# matrix_row ROW: leaves its log and its line of the table in build/matrix.
matrix_row()
{
    local row=$1 release=${1%%-*} start=$SECONDS result=passed
    local root=/var/tmp/idempotency-matrix/$release log=$BUILD/matrix/$row.log

    # Rows of one release share its root.
    mkdir -p "${root%/*}"
    exec 8> "$root.lock"
    flock -n 8 || die "$root is in use by another row"

    # Also when it is interrupted: /dev in the root is the machine's own.
    # shellcheck disable=SC2064
    trap "unmount_root '$root'" EXIT

    if [[ ! -x $root/usr/bin/apt-get || ! -s $root/etc/apt/sources.list ]]; then
        remove_root "$root"
        make_root "$root" "$release"
    fi

    say "matrix: $row, see ${log#"$ROOT/"}"
    # Bash forgets to stop at an error in what is called with "||".
    { mount_root "$root" && copy_source "$root/module/$row" && run_row; } \
        > "$log" 2>&1 || result="**failed**"

    row_line > "$BUILD/matrix/$row.md"
    cat "$BUILD/matrix/$row.md"
    unmount_root "$root"
    [[ $result == passed ]]
}


# In the variables of matrix_row.
run_row()
{
    local way=${row#"$release"} clang=${MATRIX_CLANG[$release]:-}

    # A root that was kept may be of another day, and so may what it gets now.
    in_row "apt-get -qq update && apt-get -qq -y --no-install-recommends \
        dist-upgrade && ./build.sh deps build test test-modules asan && apt-get -qq -y \
        --no-install-recommends install curl ca-certificates git" || return

    case $way in
        "")
            in_row "./build.sh test" ;;
        -clang)
            in_row "apt-get -qq -y --no-install-recommends install \
                    clang-$clang libclang-rt-$clang-dev \
                && CC=clang-$clang TEST_IDEMPOTENCY_STORE=memory ./build.sh \
                    test t/000-unit.t t/003-symbols.t t/004-sanity.t \
                && make -s -C t/fuzz -j $(nproc) CXX=clang++-$clang \
                    OUT=/module/$row/build/fuzz" ;;
        *)
            in_row "./build.sh test -$way" ;;
    esac
}


# Its own /tmp: tests leave much there when they are interrupted.
in_row()
{
    in_root "$root" env -i HOME=/root PATH="/usr/sbin:/usr/bin:/sbin:/bin" \
        LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${TEST_IDEMPOTENCY_STORE:+TEST_IDEMPOTENCY_STORE=$TEST_IDEMPOTENCY_STORE} \
        bash -c "cd /module/$row && $1"
}


row_line()
{
    local files failed shown=$result

    if [[ $result == passed ]] && grep -q '^== the machine stood still' "$log"
    then
        shown="passed at the second try"
    fi

    # What failed is said once more at the end.
    files=$(sed '/^== FAILED/,$d' "$log" \
        | awk -F '[=,]' '/^Files=/ { n += $2 } END { print n + 0 }')
    failed=$(sed '/^== FAILED/,$d' "$log" | grep -c '^t/.*(Wstat:' || true)

    printf '| %s ' "$row" "$(nginx_of)" "$(compiler_of)" \
        "$(version_of libhiredis-dev)" "$(version_of libssl-dev)" \
        "$(version_of libsimdjson-dev)" "$(version_of redis-tools)" \
        "$(version_beside redis6/redis-tools)" \
        "$(version_beside valkey/valkey-tools)" "$files" "$failed" "$shown" \
        "$(( (SECONDS - start + 59) / 60 )) min"
    echo "|"
}


# Of the source, where nginx was built from it.
nginx_of()
{
    case $row in
        *-static | *-small)
            version_of_source "$root/module/$row/build/asan/source" ;;
        *)
            version_of nginx ;;
    esac
}


compiler_of()
{
    local compiler=gcc

    [[ $row != *-clang ]] || compiler=clang-${MATRIX_CLANG[$release]}
    echo "${compiler%%-*}" "$(in_root "$root" "$compiler" -dumpversion)"
}


# Without what Debian adds to it.
version_of()
{
    # shellcheck disable=SC2016
    in_root "$root" dpkg-query -W -f '${source:Upstream-Version}\n' "$1" \
        2>/dev/null | sed 's/[+~].*//' || echo "-"
}


# version_beside FOLDER/PACKAGE: of a server that is not installed.
version_beside()
{
    local file

    for file in "$root/module/$row/build/$1"_*.deb; do
        if [[ -e $file ]]; then
            dpkg-deb -f "$file" Version | sed 's/^[0-9]*://; s/[+~-].*//'
            return
        fi
    done

    echo "-"
}


matrix_table()
{
    local row

    echo
    printf '| %s ' row nginx compiler hiredis OpenSSL simdjson Redis "Redis 6" \
        Valkey files failed result time
    echo "|"
    printf '| --- %.0s' {1..13}
    echo "|"

    for row in "${MATRIX[@]}"; do
        cat "$BUILD/matrix/$row.md" 2>/dev/null || true
    done
}
