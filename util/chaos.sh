# Chaos and soak runs: t/chaos with the module, or with a weakened copy of it.
# shellcheck shell=bash

# One patch for each protection that can be taken away.
WITHOUT=t/chaos/without


# The names of the patches, for usage.
protections()
{
    local patch names=()

    for patch in "$WITHOUT"/*.patch; do
        [[ ! -f $patch ]] || names+=("$(basename "$patch" .patch)")
    done

    echo "${names[*]}"
}


# What the harness needs to know.  --without NAME takes a protection away, so
# that it can be seen to find what that protects from.
chaos()
{
    local dir=$BUILD without="" arguments=() redis=${TEST_REDIS_BINARY:-}

    while (( $# )); do
        if [[ $1 == --without ]]; then
            without=${2:-}
            [[ -f $WITHOUT/$without.patch ]] \
                || die "chaos --without takes one of: $(protections)"
            shift
        else
            arguments+=("$1")
        fi
        shift
    done

    prepare_nginx
    deps chaos

    if [[ $without ]]; then
        dir=$BUILD/without-$without
        locked build_without "$without" "$dir"
    else
        locked build
    fi

    # WAITAOF is younger than Debian 12's Redis.
    if [[ -z $redis && ${arguments[*]} == *"--durability disk"* ]]; then
        get_valkey
        redis=$VALKEY
    fi

    TEST_NGINX_BINARY=$NGINX_BINARY TEST_NGINX_LOAD_MODULES=$dir/$MODULE.so \
        ${redis:+env TEST_REDIS_BINARY="$redis"} \
        perl t/chaos/chaos.pl "${arguments[@]}"
}


# build_without NAME FOLDER: the module from a patched copy, both in FOLDER.
build_without()
{
    local name=$1 dir=$2

    rm -rf "$dir/new"
    mkdir -p "$dir/new"
    cp -R src config config.make "$dir/new/"
    patch -d "$dir/new" -p1 --quiet --force --fuzz=0 \
        --no-backup-if-mismatch < "$WITHOUT/$name.patch" \
        || die "$WITHOUT/$name.patch does not apply to this source:" \
            "write it anew, its first lines say what it has to change"

    keep_times "$dir/new" "$dir"
    rm -rf "$dir"/{src,config,config.make}
    mv "$dir"/new/* "$dir/"
    rmdir "$dir/new"

    build_module "$dir" "$dir"
}


# keep_times NEW OLD: files that are as they were keep their time, so that make
# compiles no more than it has to.
keep_times()
{
    local new=$1 old=$2 file

    (cd "$new" && find . -type f) | while read -r file; do
        if cmp -s "$new/$file" "$old/$file"; then
            touch -r "$old/$file" "$new/$file"
        fi
    done
}


soak()
{
    prepare_nginx
    deps chaos
    locked build

    TEST_NGINX_BINARY=$NGINX_BINARY TEST_NGINX_LOAD_MODULES=$BUILD/$MODULE.so \
        perl t/chaos/soak.pl "$@"
}
