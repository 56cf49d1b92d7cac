# Installing: the module for the nginx that is in use, put in place safely.
# shellcheck shell=bash

# Two trees can be built from: that of the package nginx-dev, which has
# conf_flags, and the unpacked source of nginx itself.
install_command()
{
    install_dependencies

    local version arguments folder target
    read_nginx
    check_source_version

    locked build_to_install
    check_signature
    check_loads

    target=$folder/$MODULE.so
    put_in_place "$BUILD/$MODULE.so" "${DESTDIR:-}$target"
    print_next_steps
}


install_dependencies()
{
    local found

    if [[ ! -x $NGINX_BINARY && $NGINX_BINARY == "$DEBIAN_NGINX" ]] \
        && found=$(command -v nginx)
    then
        NGINX_BINARY=$found
    fi

    if ! command -v dpkg-query > /dev/null; then
        say "this is not Debian or Ubuntu: docs/install.md lists what is needed"
    elif [[ $NGINX_BINARY == "$DEBIAN_NGINX" \
        && $NGINX_SRC == "$DEBIAN_NGINX_SRC" ]]
    then
        refuse_other_packages
        deps build
    else
        deps compile
    fi
}


# nginx-dev goes with the distribution's own nginx only, and apt would replace
# the other one.
refuse_other_packages()
{
    local maintainer
    maintainer=$(dpkg-query -W -f '${Maintainer}' nginx 2>/dev/null) || true

    if [[ $maintainer == *@nginx.com* || $maintainer == *@f5.com* ]]; then
        die "the installed nginx is a package of nginx.org: unpack the source" \
            "of its version and name the folder by NGINX_SRC," \
            "see docs/install.md"
    fi
}


# What the nginx in use says about itself.
read_nginx()
{
    local said

    [[ -x $NGINX_BINARY ]] || die "no nginx at $NGINX_BINARY, see NGINX_BINARY"
    said=$("$NGINX_BINARY" -V 2>&1) || die "$NGINX_BINARY -V failed: $said"

    # OpenResty and others print their own name in place of "nginx".
    version=$(sed -n 's#^nginx version: [^/]*/\([0-9]*\.[0-9]*\.[0-9]*\).*#\1#p' \
        <<< "$said")
    [[ $version ]] || die "cannot read a version from $NGINX_BINARY -V: $said"

    # As a shell would split them; printf repeats its format for each.
    mapfile -t arguments < <(sed -n 's/^configure arguments: *//p' \
        <<< "$said" | xargs printf '%s\n')

    folder=$(argument --modules-path)
    folder=${folder:-$(argument --prefix /usr/local/nginx)/modules}

    say "$NGINX_BINARY is nginx $version, its modules are in $folder"
    warn_of_other_nginx
}


# argument NAME [DEFAULT]: the value of a configure argument of nginx.
argument()
{
    local each value=${2:-}

    for each in "${arguments[@]}"; do
        if [[ $each == "$1="* ]]; then
            value=${each#*=}
        fi
    done

    echo "$value"
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

    source=$(sed -n 's/^#define NGINX_VERSION *"\(.*\)"/\1/p' "$header")

    [[ $source == "$version" ]] \
        || die "$NGINX_BINARY is nginx $version, but the source in $NGINX_SRC" \
            "is of nginx $source: nginx would refuse the module. Get the" \
            "source of nginx $version and name its folder by NGINX_SRC," \
            "see docs/install.md"
}


build_to_install()
{
    if [[ -f $NGINX_SRC/conf_flags ]]; then
        build_module "$BUILD" "$ROOT"
    else
        build_with_arguments
    fi
}


# From a plain source tree, with the arguments that nginx itself was built with.
build_with_arguments()
{
    local flags=()
    layout_arguments

    # A tree from version control has its configure elsewhere.
    if [[ ! -f $NGINX_SRC/configure ]]; then
        ln -s auto/configure "$NGINX_SRC/configure"
    fi

    configure "$BUILD/objs" "$NGINX_SRC" "$ROOT" "${flags[@]}"
    say "building ${BUILD#"$ROOT/"}/$MODULE.so"
    nginx_make "$BUILD/objs" "$NGINX_SRC" modules
    cp -u --remove-destination "$BUILD/objs/$MODULE.so" "$BUILD/"
}


# Sets flags: those arguments on which the layout of nginx's structures, or the
# libraries, depend.  Other modules are left out, as their sources are not here,
# and so are options of the compiler that only this or that distribution has.
layout_arguments()
{
    local each word cc=(-g -O2 -fPIC) ld=(-fPIC)

    for each in "${arguments[@]}"; do
        case $each in
            --with-cc-opt=*)
                for word in ${each#*=}; do
                    [[ $word != -[DI]* ]] || cc+=("$word")
                done ;;
            --with-ld-opt=*)
                for word in ${each#*=}; do
                    [[ $word != -L* && $word != -Wl,-rpath* ]] || ld+=("$word")
                done ;;
            --add-module=* | --add-dynamic-module=* | --*=dynamic)
                ;;
            --with-openssl=* | --with-pcre=* | --with-zlib=*)
                [[ -d ${each#*=} ]] \
                    || die "nginx was built with $each: put the same source" \
                        "there, see docs/install.md"
                flags+=("$each") ;;
            *)
                flags+=("$each") ;;
        esac
    done

    flags+=(--with-cc-opt="${cc[*]}" --with-ld-opt="${ld[*]}")
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


# The string NGX_MODULE_SIGNATURE, which every module and nginx itself contain.
signature_in()
{
    LC_ALL=C grep -aoE '[48],[48],[48],[01]{30,40}' "$1" | sort -u | head -n 1
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

    cat <<END

Load it with this line at the top of nginx.conf, outside of all blocks:

    $line

END

    if [[ -d $enabled && $NGINX_BINARY == "$DEBIAN_NGINX" ]]; then
        cat <<END
or, as Debian and Ubuntu do it:

    echo '$line' | sudo tee $enabled/60-idempotency.conf

END
    fi

    cat <<END
Then check the configuration and restart nginx:

    sudo $NGINX_BINARY -t && sudo systemctl restart nginx

A reload is enough the first time.  An nginx that has loaded an older build
keeps it until it is restarted: see docs/upgrading.md.
END
}
