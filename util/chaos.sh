# Chaos and soak runs: t/chaos with the module, or with a weakened copy of it.
# shellcheck shell=bash

# One patch for each protection that can be taken away.
WITHOUT=t/chaos/without

# Each has to be missed within so many seconds.
MUTANT_LIMIT=${MUTANT_LIMIT:-300}

# As chaos.pl tells it.
FIRST_VIOLATION='the first after ([0-9.]+) s by rule ([0-9])'


# The names of the patches, for usage.
protections()
{
    local patch names=()

    for patch in "$WITHOUT"/*.patch; do
        [[ ! -f $patch ]] || names+=("$(basename "$patch" .patch)")
    done

    echo "${names[*]}"
}


# chaos [options]: one run.  --without NAME takes a protection away, so that the
# harness can be seen to find what that protects from.
chaos()
{
    local built=$BUILD/$MODULE.so without="" arguments=()

    if [[ ${1:-} == --mutants ]]; then
        shift
        mutants "$@"
        return
    fi

    while (( $# )); do
        if [[ $1 == --without ]]; then
            without=${2:-}
            check_protection "$without"
            shift
        else
            arguments+=("$1")
        fi
        shift
    done

    prepare_nginx
    deps chaos

    if [[ $without ]]; then
        built=$BUILD/without/$without.so
        locked build_without "$without" "$built"
    else
        locked build
    fi

    run_chaos "$built" "${arguments[@]}"
}


# run_chaos FILE options...
run_chaos()
{
    local built=$1 redis=${TEST_REDIS_BINARY:-}
    shift

    # WAITAOF is younger than Debian 12's Redis.
    if [[ -z $redis && $* == *"--durability disk"* ]]; then
        get_valkey
        redis=$VALKEY
    fi

    locked build_chaos_programs

    TEST_NGINX_BINARY=$NGINX_BINARY TEST_NGINX_LOAD_MODULES=$built \
        TEST_NGINX_LUA_MODULES=$(lua_modules) CHAOS_PROGRAMS=$BUILD/chaos \
        ${redis:+env TEST_REDIS_BINARY="$redis"} \
        perl t/chaos/chaos.pl "$@"
}


# Debian's modules go with no other nginx.
lua_modules()
{
    if [[ $NGINX_BINARY == "$DEBIAN_NGINX" ]]; then
        echo /usr/lib/nginx/modules/{ndk_http,ngx_http_lua}_module.so
    fi
}


check_protection()
{
    [[ $1 && -f $WITHOUT/$1.patch ]] \
        || die "no such protection: \"$1\"; there are: $(protections)"
}


# mutants [NAME...]: takes each protection away in turn and runs chaos where
# the patch says that it matters, until it finds a violation.
mutants()
{
    local name names=("$@") options table green=0

    (( $# )) || read -ra names <<< "$(protections)"

    for name in "${names[@]}"; do
        check_protection "$name"
    done

    prepare_nginx
    deps chaos
    table=$BUILD/without/table.md
    mkdir -p "$BUILD/without"
    printf '| %s | %s | %s |\n' 'protection removed' 'store' \
        'first violation after' '---' '---' '---' > "$table"

    for name in "${names[@]}"; do
        locked build_without "$name" "$BUILD/without/$name.so"

        while read -r options; do
            mutant "$name" "$options" >> "$table" || green=1
            tail -n 1 "$table" >&2
        done < <(chaos_lines "$name")
    done

    cat "$table"
    return "$green"
}


# What the lines "# chaos:" of a patch say, before its first change.
chaos_lines()
{
    sed -n -e '/^--- /q' -e 's/^# chaos: *//p' "$WITHOUT/$1.patch"
}


# mutant NAME OPTIONS: a row of the table.  Fails if no run found a violation.
mutant()
{
    local name=$1 options=$2 log seed run=0 words
    local end=$(( SECONDS + MUTANT_LIMIT ))
    log=$BUILD/without/$name.log

    read -ra words <<< "$options"

    while (( SECONDS < end )); do
        run=$(( run + 1 ))
        seed=$RANDOM$RANDOM
        echo "without $name: $options --seed $seed" >&2

        if ! run_chaos "$BUILD/without/$name.so" --until-red "${words[@]}" \
            --seed "$seed" > "$log" 2>&1 < /dev/null \
            && [[ $(tail -n 5 "$log") =~ $FIRST_VIOLATION ]]
        then
            printf '| %s | %s | %s s (rule %s), run %s, seed %s |\n' "$name" \
                "$options" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$run" \
                "$seed"
            return
        fi
    done

    printf '| %s | %s | **none** in %s runs |\n' "$name" "$options" "$run"
    return 1
}


# build_without NAME FILE: the module from a patched copy of the source.  All
# share one folder, so that little is compiled again.
build_without()
{
    local name=$1 built=$2 dir=$BUILD/without/build

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
    cp --remove-destination "$dir/$MODULE.so" "$built"
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


# The clients and the application of --load fast.
build_chaos_programs()
{
    local dir=$BUILD/chaos newest

    mkdir -p "$dir"
    newest=$(find t/chaos/load bench/load.h bench/load_connection.cpp \
        -newer "$dir/application" -print -quit 2> /dev/null || echo none)

    if [[ -x $dir/application && ! $newest ]]; then
        return
    fi

    say "building build/chaos"
    compile_load "$dir/clients" \
        t/chaos/load/{clients,exchange,workload,kit}.cpp -lcrypto
    compile_load "$dir/application" t/chaos/load/{application,kit}.cpp -lcrypto
}


soak()
{
    prepare_nginx
    deps chaos
    locked build

    TEST_NGINX_BINARY=$NGINX_BINARY TEST_NGINX_LOAD_MODULES=$BUILD/$MODULE.so \
        perl t/chaos/soak.pl "$@"
}
