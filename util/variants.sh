# nginx built from its source in other ways than Debian does, for tests.
# shellcheck shell=bash

# What the tests use of nginx, beside what is in every nginx.
VARIANT_FLAGS=(--with-cc-opt="-g -O2" --with-debug
    --with-http_addition_module --with-http_auth_request_module
    --with-http_dav_module --with-http_gunzip_module
    --with-http_gzip_static_module --with-http_realip_module
    --with-http_slice_module --with-http_stub_status_module
    --with-http_sub_module)

# What a small nginx lacks, as test files name it.
LACKING="http2|Http2|ssl|SSL|tls|mirror|grpc|start_nginx"


# build_variant static|small: static has the module linked in; small has no
# SSL, HTTP/2 and mirror, and is not built with --with-compat.
build_variant()
{
    deps build asan
    mkdir -p "$BUILD/asan"
    get_nginx_source

    local out=$BUILD/$1 source=$BUILD/asan/source

    if [[ $1 == static ]]; then
        configure "$out/nginx" "$source" "" "${VARIANT_FLAGS[@]}" \
            --with-http_ssl_module --with-http_v2_module --with-threads \
            --add-module="$ROOT"
        say "building nginx with the module in it"
        nginx_make "$out/nginx" "$source" binary
        return
    fi

    local small=("${VARIANT_FLAGS[@]}" --without-http_mirror_module)

    configure "$out/nginx" "$source" "" "${small[@]}"
    configure "$out/objs" "$source" "$ROOT" "${small[@]}"
    say "building a small nginx and the module for it"
    nginx_make "$out/nginx" "$source" binary
    nginx_make "$out/objs" "$source" modules
    cp -u --remove-destination "$out/objs/$MODULE.so" "$out/"
}


# The files that need nothing of what a small nginx lacks.
small_tests()
{
    grep -LE "$LACKING" t/*.t
}
