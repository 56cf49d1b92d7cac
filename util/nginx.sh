# The nginx that the module is built for: its packages, its version and its
# configure arguments.
# shellcheck shell=bash

# The nginx to build for, and what it takes to build for it.
prepare_nginx()
{
    find_nginx
    compile_dependencies
}


# Installs Debian's nginx, if that is the one to build for and it is missing.
find_nginx()
{
    local found

    if [[ ! -x $NGINX_BINARY && $NGINX_BINARY == "$DEBIAN_NGINX" ]] \
        && found=$(command -v nginx)
    then
        ! has_dpkg || [[ $NGINX_SRC != "$DEBIAN_NGINX_SRC" ]] \
            || die "$found is not Debian's nginx: unpack the source of its" \
                "version and name the folder by NGINX_SRC, see docs/install.md"
        NGINX_BINARY=$found
    fi

    if has_dpkg && [[ $NGINX_SRC == "$DEBIAN_NGINX_SRC" ]]; then
        refuse_other_packages
        deps build
    fi
}


# What is missing to build from another source.
compile_dependencies()
{
    if ! has_dpkg; then
        say "this is not Debian or Ubuntu: docs/install.md lists what is needed"
    elif [[ $NGINX_SRC != "$DEBIAN_NGINX_SRC" ]]; then
        deps compile
    fi
}


has_dpkg()
{
    command -v dpkg-query > /dev/null
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


# Sets flags: how nginx itself was configured.  Two trees can be built from: that
# of the package nginx-dev, which has conf_flags, and the source of nginx.
configure_flags()
{
    local NGX_CONF_FLAGS version arguments folder

    if [[ -f $NGINX_SRC/conf_flags ]]; then
        # shellcheck source=/dev/null
        . "$NGINX_SRC/conf_flags"
        flags=(--with-cc-opt="-g -O2 -fPIC -fstack-protector-strong"
            --with-ld-opt="-fPIC -Wl,-z,relro -Wl,-z,now"
            "${NGX_CONF_FLAGS[@]}")
        return
    fi

    [[ -f $NGINX_SRC/src/core/nginx.h ]] \
        || die "no nginx-dev and no source of nginx in $NGINX_SRC, see NGINX_SRC"

    # A tree from version control has its configure elsewhere.
    if [[ ! -f $NGINX_SRC/configure ]]; then
        ln -s auto/configure "$NGINX_SRC/configure"
    fi

    read_nginx
    layout_arguments
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
}


# version_of_source FOLDER
version_of_source()
{
    sed -n 's/^#define NGINX_VERSION *"\(.*\)"/\1/p' "$1/src/core/nginx.h"
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


# Adds to flags those arguments of nginx on which the layout of its structures,
# or the libraries, depend.  Other modules are left out, as their sources are
# not here, and so are compiler options that only some distributions have.
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
            "" | --add-module=* | --add-dynamic-module=* | --*=dynamic)
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
