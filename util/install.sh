# Installing: the module for the nginx that is in use, put in place safely.
# shellcheck shell=bash

install_command()
{
    # shellcheck disable=SC2034
    local version arguments folder target

    find_nginx
    read_nginx
    say "$NGINX_BINARY is nginx $version, its modules are in $folder"
    warn_of_other_nginx
    check_source_version

    compile_dependencies
    locked build_module "$BUILD" "$ROOT"
    check_signature
    check_loads

    target=$folder/$MODULE.so
    put_in_place "$BUILD/$MODULE.so" "${DESTDIR:-}$target"
    print_next_steps
}


# The nginx that runs need not be the one in the path, nor the one that is
# installed now.
warn_of_other_nginx()
{
    local own exe running

    own=$(readlink -f "$NGINX_BINARY")

    for exe in /proc/[0-9]*/exe; do
        running=$(readlink "$exe" 2>/dev/null) || continue

        if [[ $running == "$own (deleted)" ]]; then
            say "note: an nginx is running whose program was replaced since it" \
                "started: restart it before it loads the module"
            return
        elif [[ ${running##*/} == nginx && $running != "$own" ]]; then
            say "note: $running is running too: for that one, set" \
                "NGINX_BINARY=$running and NGINX_SRC"
            return
        fi
    done
}


check_source_version()
{
    local header=$NGINX_SRC/src/core/nginx.h source

    [[ -f $header ]] \
        || die "no nginx source in $NGINX_SRC: unpack the source of nginx" \
            "$version and name its folder by NGINX_SRC, see docs/install.md"

    source=$(version_of_source "$NGINX_SRC")

    [[ $source == "$version" ]] \
        || die "$NGINX_BINARY is nginx $version, but the source in $NGINX_SRC" \
            "is of nginx $source: nginx would refuse the module. Get the" \
            "source of nginx $version and name its folder by NGINX_SRC," \
            "see docs/install.md"
}


# nginx compares these too, and only says "not binary compatible".
check_signature()
{
    local theirs ours i

    theirs=$(signature_in "$NGINX_BINARY")
    ours=$(signature_in "$BUILD/$MODULE.so")

    if [[ ! $theirs || ! $ours || $theirs == "$ours" ]]; then
        return
    fi

    for (( i = 0; i < ${#theirs}; i++ )); do
        [[ ${theirs:i:1} == "${ours:i:1}" ]] || break
    done

    die "the module does not fit $NGINX_BINARY: nginx was built with other" \
        "options than the source in $NGINX_SRC, most often with or without" \
        "--with-compat. Signature of nginx: $theirs, of the module: $ours," \
        "first difference at character $((i + 1)). See docs/install.md"
}


# The string NGX_MODULE_SIGNATURE, which every module and nginx itself contain,
# but not a script that calls nginx.
signature_in()
{
    { LC_ALL=C grep -aoE '[48],[48],[48],[01]{30,40}' "$1" || true; } \
        | sort -u | head -n 1
}


# What nginx itself says to it, before anything is changed.
check_loads()
{
    local dir=$BUILD/install said

    mkdir -p "$dir"
    printf '%s\n' "load_module $BUILD/$MODULE.so;" "pid $dir/nginx.pid;" \
        "error_log stderr;" "events {}" > "$dir/nginx.conf"

    said=$("$NGINX_BINARY" -t -p "$dir/" -c "$dir/nginx.conf" 2>&1) \
        || die "nginx does not load the module: $said"
}


# put_in_place FILE TARGET.  Never writes into TARGET itself: a running nginx
# has it mapped and would crash.  The rename leaves it the old file.
put_in_place()
{
    local file=$1 target=$2 dir sudo=()
    dir=$(dirname "$target")

    if cmp -s "$file" "$target"; then
        say "$target is up to date"
        return
    fi

    if ! writable "$dir"; then
        command -v sudo > /dev/null || die "$dir is not writable, run as root"
        sudo=(sudo)
    fi

    say "installing $target"
    "${sudo[@]}" install -d "$dir"
    "${sudo[@]}" install -m 644 "$file" "$target.new"
    "${sudo[@]}" mv -f "$target.new" "$target"
}


# writable FOLDER: or the nearest folder above it that exists.
writable()
{
    local dir=$1

    until [[ -e $dir ]]; do
        dir=$(dirname "$dir")
    done

    [[ -w $dir ]]
}


print_next_steps()
{
    local line="load_module $target;" enabled=/etc/nginx/modules-enabled
    local as_root='sudo '

    # A minimal system has no sudo, and root needs none.
    [[ $EUID -ne 0 ]] || as_root=

    cat <<END

Load it with this line at the top of nginx.conf, outside of all blocks:

    $line

END

    if [[ -d $enabled && $NGINX_BINARY == "$DEBIAN_NGINX" ]]; then
        cat <<END
or, as Debian and Ubuntu do it:

    echo '$line' | ${as_root}tee $enabled/50-mod-http-idempotency.conf

END
    fi

    cat <<END
Then check the configuration and restart nginx:

    $as_root$NGINX_BINARY -t && ${as_root}systemctl restart nginx

A reload is enough the first time.  An nginx that has loaded an older build
keeps it until it is restarted: see docs/upgrading.md.
END
}
