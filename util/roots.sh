# Other Debians in folders, each with the packages of its own release.
# shellcheck shell=bash

# make_root FOLDER RELEASE: a small Debian, from the machine's own sources.
make_root()
{
    local root=$1 release=$2 url suite mirror="" script=()

    while read -r url suite; do
        if [[ $suite == "$(debian_codename)" ]]; then
            mirror=${mirror:-$url}
        fi
    done < <(machine_sources)

    # A debootstrap that is older than the release does not know its name.
    if [[ ! -e /usr/share/debootstrap/scripts/$release ]]; then
        script=(/usr/share/debootstrap/scripts/sid)
    fi

    say "debootstrap $release"
    mkdir -p "$(dirname "$root")"
    debootstrap --variant=minbase "$release" "$root" "$mirror" \
        "${script[@]}" > "$root.log" \
        || { tail "$root.log" >&2; die "debootstrap failed"; }

    if [[ $release == "$(debian_codename)" ]]; then
        machine_sources
    else
        echo "$mirror $release"
    fi | sed 's/^/deb /; s/$/ main/' > "$root/etc/apt/sources.list"

    # What the machine's apt needs to get at its sources, such as a proxy.
    apt-config dump | grep -E '^Acquire::(https?|Check-Valid-Until)\b' \
        > "$root/etc/apt/apt.conf.d/90machine" || true

    # Tests call localhost by its name.
    cp /etc/hosts "$root/etc/hosts"

    # No service starts by itself, as nobody is there to stop it.
    printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
    chmod +x "$root/usr/sbin/policy-rc.d"
    mount_root "$root"
    in_root "$root" apt-get -qq update
}


mount_root()
{
    mountpoint -q "$1/proc" || mount -t proc proc "$1/proc"
    mountpoint -q "$1/dev" || mount --bind /dev "$1/dev"
}


# Killed tests may have left something that uses the folder.  It keeps what it
# sees, but nobody who removes the folder gets at it.
unmount_root()
{
    local folder

    for folder in "$1/proc" "$1/dev"; do
        if mountpoint -q "$folder"; then
            umount "$folder" 2>/dev/null || umount --lazy "$folder"
        fi
    done
}


# Never with anything mounted in it: /dev is the machine's own.
remove_root()
{
    unmount_root "$1"

    if mountpoint -q "$1/dev"; then
        say "$1 is in use, remove it by hand"
    else
        rm -rf --one-file-system "$1"
    fi
}


in_root()
{
    local root=$1
    shift
    DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" "$@" 8>&-
}


# copy_source FOLDER: what is or can be in the repository, or all of an unpacked
# archive.  Of what was in the folder only build/ stays.
copy_source()
{
    mkdir -p "$1" || return
    find "$1" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +

    if [[ -e .git ]]; then
        git ls-files -z -c -o --exclude-standard
    else
        find . -path ./build -prune -o -type f -print0
    fi | tar --null -T - -c | tar -x -C "$1"
}
